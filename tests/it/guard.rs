//! Every write of an owner is guarded by its epoch, and holds the cursor that it is guarded by.

use std::sync::Mutex;
use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, TestDatabase, eventually, quick};

const EMIT: &str = "\
INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a', 'account', '1', 'account.changed', '{}')";

#[tokio::test(flavor = "multi_thread")]
async fn a_settle_under_an_old_epoch_moves_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    // While the event is at the broker, the epoch changes: the settle that follows is too late.
    let changes = Mutex::new(Some(database.sync()));
    broker.reject(move |_| {
        if let Some(mut conn) = changes.lock().expect("no holder panics").take() {
            conn.batch_execute("UPDATE outbox.cursors SET epoch = epoch + 1").expect("updates");
        }
        None
    });
    database.sql(EMIT);
    eventually(SOON, async || (broker.repeats() > 0).then_some(())).await;
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_takes_a_shard_over_in_the_middle_of_a_park() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some("not now".to_owned()));
    let options = quick().publish_timeout(Duration::from_millis(500));
    let relay = database.relay_with(broker.clone(), options).await;
    let leased = "SELECT count(*) = 16 FROM outbox.cursors WHERE owner IS NOT NULL";
    eventually(SOON, async || database.value::<bool>(leased).then_some(())).await;
    // The relay's park waits for the end of this one.
    let mut blocks = database.sync();
    blocks
        .batch_execute(
            "BEGIN;
             INSERT INTO outbox.parked (subscription, shard, tick, seq, id, topic, aggregate_type,
                 aggregate_id, event_type, event_version, payload, headers, created_at)
             VALUES ('default', 0, 0, pg_sequence_last_value('outbox.event_seq') + 1, gen_random_uuid(), 'a', 'other',
                     '1', 'x', 1, '{}', '{}', now())",
        )
        .expect("parks");
    database.sql(EMIT);
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                 AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO outbox.parked%')";
    eventually(SOON, async || database.value::<bool>(waits).then_some(())).await;
    let taken_over = database.sync().batch_execute(
        "SET lock_timeout = '300ms';
         UPDATE outbox.cursors SET epoch = epoch + 1, owner = NULL
         WHERE shard = (SELECT max(shard) FROM outbox.events)",
    );
    blocks.batch_execute("ROLLBACK").expect("rolls back");
    let refused = taken_over.expect_err("the park holds the cursor").to_string();
    assert!(refused.contains("lock timeout"), "{refused}");
    relay.shutdown().await;
}
