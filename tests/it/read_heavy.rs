//! A backlog of large events costs what they are large, not its square.

use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, TestDatabase, backlog, eventually, quick};

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
