//! Connections to the database that are cut while the relay reads ahead of what it has delivered.

use std::time::Duration;

use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::oracle::{Arrivals, Committed, Verdict};
use outbox_tests::{SOON, TestDatabase, backlog, eventually, quick};

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_ahead_is_read_again_after_a_lost_connection() {
    let database = TestDatabase::new();
    backlog(&database, 2_000, 20, 2);
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(5));
    let relay = database.relay_with(broker.clone(), quick().batch_events(10)).await;
    for round in 1..=5 {
        let some = round * 150;
        eventually(SOON, async || (broker.delivered().len() >= some).then_some(())).await;
        database.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
        );
    }
    let passed = "SELECT bool_and(pg_visible_in_snapshot(e.xid, t.snapshot)) FROM outbox.events e
                  JOIN outbox.cursors c USING (shard) JOIN outbox.ticks t USING (tick)";
    eventually(SOON, async || database.value::<bool>(passed).then_some(())).await;
    relay.shutdown().await;
    let arrivals = Arrivals::recorded(&broker.delivered(), "default");
    Verdict::on(&Committed::read(&mut database.sync()), &arrivals).assert_clean(0);
}
