//! Retry: parked events go out again, in order, once, and when they may.

use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use outbox_diesel::RetryOptions;
use outbox_diesel::publish::{OwnedMessage, RecordingPublisher};
use outbox_tests::{Crashable, SOON, TestDatabase, eventually, insert, orders, quick};

/// Rejects the events of this order for the first so many times.
fn reject_first(broker: &RecordingPublisher, order: &'static str, times: usize) {
    let left = std::sync::Mutex::new(times);
    broker.reject(move |event: &OwnedMessage| {
        let mut left = left.lock().unwrap();
        (event.aggregate_id() == order && *left > 0).then(|| {
            *left -= 1;
            String::from("not yet")
        })
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_event_waits_until_the_cursor_has_passed_its_position() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut straggler = database.sync();
    straggler.batch_execute(&format!("BEGIN; {}", insert("late"))).unwrap();
    database.sql(&[insert("late"), insert("late")].join(";"));
    let _ = database.tick();
    straggler.batch_execute("COMMIT").unwrap();
    let _ = database.tick();
    // Half of the first diff is delivered; the straggler of the second one has a lower seq.
    database.sql("UPDATE outbox.cursors SET seq = 3");
    let attempts = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = attempts.clone();
    broker.reject(move |event: &OwnedMessage| {
        let is_straggler = event.seq() == 2;
        let nth = count.fetch_add(usize::from(is_straggler), std::sync::atomic::Ordering::SeqCst);
        (is_straggler && nth == 0).then(|| String::from("once"))
    });
    // Nothing is settled but what must be.
    let options = quick().settle_interval(Duration::from_secs(3600));
    let relay = Crashable::start(&database, "default", broker.clone(), options.clone()).await;
    eventually(SOON, async || {
        database
            .value::<bool>("SELECT EXISTS (SELECT FROM outbox.parked WHERE seq = 2)")
            .then_some(())
    })
    .await;
    // Due long ago, had the cursor passed it: the retries of another aggregate come and go.
    database.sql(
        "UPDATE outbox.parked SET next_attempt_at = '-infinity';
         INSERT INTO outbox.parked (subscription, shard, tick, seq, id, topic, aggregate_type, aggregate_id,
             event_type, event_version, payload, headers, created_at, attempts, next_attempt_at)
         SELECT 'default', shard, 0, 1, gen_random_uuid(), 'probe', 'probe', 'probe', 'probe', 1, '{}', '{}', now(), 1, now()
         FROM outbox.parked WHERE seq = 2",
    );
    orders(&broker, 2).await;
    relay.crash(&database).await;
    let relay = Crashable::start(&database, "default", broker.clone(), quick()).await;
    database.insert("end");
    eventually(SOON, async || {
        let sent = broker.delivered();
        sent.iter().any(|sent| sent.message.aggregate_id() == "end").then_some(())?;
        database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked").then_some(())
    })
    .await;
    relay.crash(&database).await;
    let mut sent = orders(&broker, 4).await;
    sent.sort();
    assert_eq!(sent, ["end", "late", "late", "probe"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn later_events_of_an_aggregate_wait_for_an_earlier_ones_retry_and_others_do_not() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|event: &OwnedMessage| {
        (event.aggregate_id() == "A").then(|| String::from("not yet"))
    });
    let relay = database.relay(broker.clone()).await;
    for order in ["A", "A", "B", "A"] {
        database.insert(order);
    }
    assert_eq!(orders(&broker, 1).await, ["B"]);
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 3 FROM outbox.parked").then_some(())
    })
    .await;
    broker.reject(|_| None);
    orders(&broker, 4).await;
    let sequence: Vec<_> = broker.delivered()[1..].iter().map(|sent| sent.message.seq()).collect();
    assert_eq!(sequence, [2, 3, 5]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_tried_as_often_as_allowed_and_then_dead_with_its_followers_held() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = tries.clone();
    broker.reject(move |event: &OwnedMessage| {
        (event.aggregate_id() == "poison").then(|| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            format!("\0{}", "é".repeat(5000))
        })
    });
    let retry = RetryOptions::default().base(Duration::from_millis(5)).attempts(3);
    let relay = database.relay_with(broker.clone(), quick().retry(retry)).await;
    database.insert("poison");
    database.insert("poison");
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 1 FROM outbox.dead_letters").then_some(())
    })
    .await;
    database.insert("poison");
    database.insert("good");
    assert_eq!(orders(&broker, 1).await, ["good"]);
    assert_eq!(tries.load(std::sync::atomic::Ordering::SeqCst), 3);
    eventually(SOON, async || {
        let held = "SELECT count(*) = 2 FROM outbox.event_status WHERE status = 'held'";
        database.value::<bool>(held).then_some(())
    })
    .await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_whose_answer_was_lost_is_not_sent_twice() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    reject_first(&broker, "A", 1);
    let relay = database.relay(broker.clone()).await;
    database.insert("A");
    eventually(SOON, async || {
        let parked = database.value::<bool>("SELECT count(*) = 1 FROM outbox.parked");
        (parked || !broker.delivered().is_empty()).then_some(())
    })
    .await;
    broker.lose_answers(2);
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked").then_some(())
    })
    .await;
    assert_eq!(orders(&broker, 1).await, ["A"]);
    relay.shutdown().await;
}
