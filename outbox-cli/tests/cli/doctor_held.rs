//! `outbox doctor`: relays work, and events wait all the same.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::TestDatabase;

use crate::dead::refused;
use crate::doctor::{first, told};

const EMIT: &str = "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'order', 'mine', 'order.placed', '{}')";

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_that_is_held_is_named_with_the_event_that_holds_it() {
    let database = TestDatabase::new();
    let (relay, _) = refused(&database).await;
    let finding = first(&database, "aggregate-held", 20).await;
    let told = told(&finding);
    let id: String = database.value("SELECT id::text FROM outbox.parked WHERE dead");
    assert!(
        told.contains(&format!(
            "order a of subscription \\\"default\\\" is held by its dead event {id}"
        )),
        "{told}"
    );
    assert!(told.contains("2 events behind it: no such stream"), "{told}");
    assert!(told.contains(&format!("outbox dead retry --subscription default {id}")), "{told}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_that_holds_its_events_is_named_with_process_age_and_query() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    let mut open = database.sync();
    open.batch_execute(&format!("BEGIN; {EMIT}")).unwrap();
    let finding = first(&database, "open-transaction", 10).await;
    let told = told(&finding);
    let pid: i64 = database.value(
        "SELECT pid::bigint FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'",
    );
    assert!(told.contains(&format!("process {pid} ")), "{told}");
    assert!(
        told.contains(&format!("pg_terminate_backend({pid})"))
            && told.contains("INSERT INTO outbox.events"),
        "{told}"
    );
    open.batch_execute("ROLLBACK").unwrap();
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_that_holds_its_events_is_named() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    let gid = format!("{}'s", database.name());
    let quoted = gid.replace('\'', "''");
    database.sql(&format!("BEGIN; {EMIT}; PREPARE TRANSACTION '{quoted}'"));
    let finding = first(&database, "prepared-transaction", 10).await;
    assert!(told(&finding).contains(&format!("COMMIT PREPARED '{quoted}'")), "{finding}");
    database.sql(&format!("ROLLBACK PREPARED '{quoted}'"));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_in_the_default_partition_are_named() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    database.sql(&format!("SELECT setval('outbox.event_seq', 4000000); {EMIT}"));
    let finding = first(&database, "default-partition-not-empty", 10).await;
    assert!(told(&finding).contains("seq 4000001 to 4000001"), "{finding}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_keeps_partitions_from_being_made_leaves_none_ahead() {
    let database = TestDatabase::new();
    database.sql("DROP TABLE outbox.events_s1000000, outbox.events_s2000000; SELECT setval('outbox.event_seq', 999000)");
    // As a long dump does.
    let mut dump = database.sync();
    dump.batch_execute("BEGIN; SELECT FROM outbox.events_default").unwrap();
    let relay = database.relay(RecordingPublisher::default()).await;
    let finding = first(&database, "no-partition-ahead", 10).await;
    assert!(told(&finding).contains("room for 999 events"), "{finding}");
    dump.batch_execute("ROLLBACK").unwrap();
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_vacuumed_is_named() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    database.sql("ALTER TABLE outbox.cursors SET (autovacuum_enabled = off)");
    let finding = first(&database, "autovacuum-off", 10).await;
    assert!(
        told(&finding).contains("ALTER TABLE outbox.cursors RESET (autovacuum_enabled)"),
        "{finding}"
    );
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_set_back_is_named() {
    let database = TestDatabase::new();
    // A tick of an hour from now, as if the clock had been there.
    database.sql("SELECT outbox.take_tick()");
    database.sql("UPDATE outbox.ticks SET tick = tick + 3600000000 WHERE tick > 0");
    let relay = database.relay(RecordingPublisher::default()).await;
    let finding = first(&database, "clock-set-back", 10).await;
    assert!(told(&finding).contains("min"), "{finding}");
    relay.shutdown().await;
}
