//! A backlog of large events costs what they are large, not its square.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_diesel::message::Message;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{Hooked, SOON, TestDatabase, backlog, eventually, quick};

#[tokio::test(flavor = "multi_thread")]
async fn large_compressed_events_are_unpacked_a_few_times_and_not_once_per_chunk() {
    let database = TestDatabase::new();
    backlog(&database, 200, 20, 256 * 1024);
    // A connection's numbers count when it ends, and each of these ends at once.
    let touched = || -> i64 {
        database.value(
            "SELECT sum(toast_blks_hit + toast_blks_read)::bigint FROM pg_statio_user_tables
             WHERE schemaname = 'outbox' AND relname LIKE 'events%'",
        )
    };
    let before = touched();
    database.sql("SELECT sum(octet_length(payload::text)) FROM outbox.events");
    let once = eventually(SOON, async || Some(touched() - before).filter(|read| *read > 0)).await;

    let before = touched();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), quick().batch_bytes(1024 * 1024)).await;
    eventually(SOON * 3, async || (broker.delivered().len() == 200).then_some(())).await;
    relay.shutdown().await;
    let alone = "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database()";
    eventually(SOON, async || database.value::<bool>(alone).then_some(())).await;
    let read = touched() - before;
    println!("unpacked {} times", read / once);
    assert!(read <= 8 * once, "{read} blocks, where {once} hold all events");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_all_sizes_come_in_order_and_in_batches_of_bounded_size() {
    /// 16 KiB for each of 4 events: those of 50 KiB are beyond their share of a batch.
    const BYTES: usize = 64 * 1024;
    let database = TestDatabase::new();
    // Compressed, stored apart, and plain; large ones first, last, alone and in a row.
    for (large, events) in [(true, 3), (false, 9), (true, 1), (false, 1), (true, 4), (false, 30)] {
        let fill = if large { "repeat(md5(n::text), 1600)" } else { "repeat('x', n)" };
        database.sql(&format!(
            "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload, headers)
             SELECT 'a', 'order', 'o', 'order.placed', json_build_object('fill', {fill}),
                    json_build_object('h', CASE WHEN n % 2 = 0 THEN {fill} ELSE '' END)
             FROM generate_series(1, {events}) n"
        ));
    }
    database.sql("ALTER TABLE outbox.events_s1 ALTER payload SET STORAGE external");
    database.sql(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT 'a', 'order', 'o', 'order.placed', json_build_object('fill', repeat('x', n * 10000))
         FROM generate_series(1, 12) n",
    );
    let largest = Arc::new(AtomicUsize::new(0));
    let broker = RecordingPublisher::default();
    let hooked = Hooked::new(&broker, {
        let largest = Arc::clone(&largest);
        move |batch| {
            let size = |m: &Message<'_>| m.payload().len() + m.headers().len();
            let (_, before) = batch.messages().split_last().expect("no batch is empty");
            largest.fetch_max(before.iter().map(size).sum(), Ordering::Relaxed);
            None
        }
    });
    let options = quick().batch_events(4).batch_bytes(u32::try_from(BYTES).unwrap());
    let relay = database.relay_with(hooked, options).await;
    eventually(SOON, async || (broker.delivered().len() >= 60).then_some(())).await;
    relay.shutdown().await;
    let sent: Vec<String> =
        broker.delivered().iter().map(|sent| sent.message.id().to_string()).collect();
    let emitted: Vec<String> =
        database.value("SELECT ARRAY(SELECT id::text FROM outbox.events ORDER BY seq)");
    assert_eq!(sent, emitted);
    let largest = largest.load(Ordering::Relaxed);
    assert!(largest <= BYTES, "{largest} bytes before the last event of a batch");
}
