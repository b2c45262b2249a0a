//! Databases whose past is not what their rows say: gone back in time, or restored from a dump.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{TestDatabase, insert, orders};

/// The first tick that sees the event of this order.
fn tick_of(database: &TestDatabase, order: &str) -> i64 {
    database.value(&format!(
        "SELECT min(t.tick) FROM outbox.ticks t JOIN outbox.events e ON pg_visible_in_snapshot(e.xid, t.snapshot)
         WHERE e.aggregate_id = '{order}'"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tick_of_another_history_under_the_same_id_is_not_taken_for_ours() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    database.insert("a");
    orders(&broker, 1).await;
    database.insert("b");
    orders(&broker, 2).await;
    relay.shutdown().await;
    let (seen_a, seen_b) = (tick_of(&database, "a"), tick_of(&database, "b"));
    let seq_of_b: i64 = database.value("SELECT seq FROM outbox.events WHERE aggregate_id = 'b'");
    // A replica that had not got b yet takes over. Its clock lags behind the other's by so much that
    // its next tick has the same id, and its next event, of the same shard, the same place.
    database.sql(&format!(
        "DELETE FROM outbox.events WHERE aggregate_id = 'b';
         DELETE FROM outbox.ticks WHERE tick > {seen_a};
         UPDATE outbox.cursors SET tick = {seen_a}, target = NULL, seq = 0;
         SELECT setval('outbox.event_seq', {seq_of_b} - 1)"
    ));
    database.insert("b");
    database.sql("SELECT outbox.take_tick()");
    database.sql(&format!("UPDATE outbox.ticks SET tick = {seen_b} WHERE tick > {seen_a}"));
    let again = "SELECT seq FROM outbox.events WHERE aggregate_id = 'b'";
    assert_eq!(database.value::<i64>(again), seq_of_b);
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 3).await, ["a", "b", "b"]);
    relay.shutdown().await;
    assert!(database.value::<bool>("SELECT generation > 1 FROM outbox.subscriptions"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_row_whose_foreign_transaction_id_comes_up_again_is_not_sent_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut open = database.sync();
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").unwrap();
    let xid: i64 = database
        .value("SELECT min(backend_xid::text::bigint) FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL");
    database.insert("restored");
    let relay = database.relay(broker.clone()).await;
    orders(&broker, 1).await;
    // As a rebase leaves it: what was restored lies at or below the floor.
    database.sql(&format!(
        "UPDATE outbox.meta SET seq_floor = pg_sequence_last_value('outbox.event_seq');
         UPDATE outbox.events SET xid = '{xid}'"
    ));
    database.insert("other");
    orders(&broker, 2).await;
    open.batch_execute(&format!("{}; COMMIT", insert("straggler"))).unwrap();
    orders(&broker, 3).await;
    database.insert("last");
    assert_eq!(orders(&broker, 4).await, ["restored", "other", "straggler", "last"]);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 4);
}
