//! Catching up: a subscription that stood still keeps its ticks, and steps over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{Hooked, SOON, TestDatabase, eventually, quick};

const TICKS: usize = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_stood_still_catches_up_in_full_batches_and_not_tick_by_tick() {
    let database = TestDatabase::new();
    // Each event in a tick of its own, as relays of another subscription have taken them.
    database.sql(&format!(
        "DO $$ BEGIN
             FOR n IN 1..{TICKS} LOOP
                 INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('order', 'order', n % 100, 'order.created', '{{}}');
                 COMMIT;
                 PERFORM outbox.take_tick();
                 COMMIT;
             END LOOP;
         END $$"
    ));
    let ticks: i64 = database.value("SELECT count(*) FROM outbox.ticks WHERE tick > 0");
    assert_eq!(usize::try_from(ticks).unwrap(), TICKS);
    let broker = RecordingPublisher::default();
    let batches = Arc::new(AtomicUsize::new(0));
    let count = batches.clone();
    let hooked = Hooked::new(&broker, move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        None
    });
    let begin = Instant::now();
    let relay = database.relay_with(hooked, quick()).await;
    eventually(SOON * 3, async || (broker.delivered().len() == TICKS).then_some(())).await;
    relay.shutdown().await;
    let batches = batches.load(Ordering::SeqCst);
    println!("{TICKS} ticks: {batches} batches, {:?}", begin.elapsed());
    // The first ticks are walked one by one; the rest fills batches of a thousand.
    assert!(batches <= 33 + 4 * TICKS / 1000, "{batches} batches");
    let seqs: Vec<_> = broker.delivered().iter().map(|sent| sent.message.seq()).collect();
    assert!(seqs.is_sorted(), "within a shard, and here all of them");
}
