//! Startup: a relay that may not run publishes nothing, says what to do, and runs once it was done.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{Health, RelayHandle};
use outbox_tests::{SOON, TestDatabase, eventually, orders};

/// Why the relay does not run.
async fn refusal(relay: &RelayHandle) -> String {
    eventually(SOON, async || match relay.health() {
        Health::Interrupted { cause } => Some(cause),
        _ => None,
    })
    .await
}

/// A relay over what `spoil` does refuses with these words, and delivers after `mend`.
async fn refuses_until_mended(spoil: &str, words: &[&str], mend: &str) {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.insert("a");
    database.sql(spoil);
    let relay = database.relay(broker.clone()).await;
    let cause = refusal(&relay).await;
    for word in words {
        assert!(cause.contains(word), "{cause:?} without {word:?}");
    }
    assert!(broker.delivered().is_empty());
    // A read-only default holds for this session too.
    let mut conn = database.sync();
    conn.batch_execute("SET default_transaction_read_only = off").unwrap();
    conn.batch_execute(mend).unwrap();
    orders(&broker, 1).await;
    assert_eq!(relay.health(), Health::Running);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_schema_is_named_with_what_makes_it() {
    let database = TestDatabase::empty();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    let cause = refusal(&relay).await;
    assert!(cause.contains("schema outbox is missing; run outbox_diesel::migrate::run"), "{cause}");
    outbox_diesel::migrate::run(&mut database.sync()).unwrap();
    database.insert("a");
    orders(&broker, 1).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_schema_is_named_with_what_updates_it() {
    refuses_until_mended(
        "CREATE TABLE kept AS SELECT * FROM outbox.migrations;
         DELETE FROM outbox.migrations WHERE version = (SELECT max(version) FROM outbox.migrations)",
        &["older than the", "migrate::run"],
        "INSERT INTO outbox.migrations SELECT * FROM kept ON CONFLICT DO NOTHING",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_schema_is_named_with_the_version_of_the_library() {
    refuses_until_mended(
        "INSERT INTO outbox.migrations (version, name) VALUES ('99991231235959', 'from_the_future')",
        &["99991231235959", "newer than the", "update outbox-diesel"],
        "DELETE FROM outbox.migrations WHERE version = '99991231235959'",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_restored_into_another_cluster_are_foreign() {
    refuses_until_mended(
        "UPDATE outbox.meta SET system_identifier = system_identifier + 1",
        &["made in another database", "outbox rebase"],
        "UPDATE outbox.meta SET system_identifier = DEFAULT",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_restored_into_another_database_are_foreign() {
    refuses_until_mended(
        "UPDATE outbox.meta SET database_oid = 1",
        &["made in another database", "database 1;", "outbox rebase"],
        "UPDATE outbox.meta SET database_oid = DEFAULT",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hides_its_identity_is_no_reason_not_to_run() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.sql("UPDATE outbox.meta SET system_identifier = NULL, database_oid = NULL");
    let relay = database.relay(broker.clone()).await;
    database.insert("a");
    orders(&broker, 1).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_below_the_newest_event_is_named() {
    refuses_until_mended(
        "SELECT setval('outbox.event_seq', 1)",
        &["outbox.event_seq is at 1, but 2 was drawn", "outbox rebase"],
        "SELECT setval('outbox.event_seq', 2)",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_was_not_restored_at_all_is_named() {
    refuses_until_mended(
        "ALTER SEQUENCE outbox.event_seq RESTART",
        &["outbox.event_seq is at 0, but 2 was drawn"],
        "SELECT setval('outbox.event_seq', 2)",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_below_what_a_tick_saw_is_named_though_the_events_are_gone() {
    refuses_until_mended(
        "SELECT outbox.take_tick(); TRUNCATE outbox.events; SELECT setval('outbox.event_seq', 1)",
        &["outbox.event_seq is at 1, but 2 was drawn"],
        "SELECT setval('outbox.event_seq', 2);
         INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('t', 't', 'b', 't', '{}')",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_altered_sequence_is_named_with_the_statement_that_mends_it() {
    for spoil in ["CACHE 20", "CYCLE", "INCREMENT BY 2"] {
        refuses_until_mended(
            &format!("ALTER SEQUENCE outbox.event_seq {spoil}"),
            &["ALTER SEQUENCE outbox.event_seq CACHE 1 INCREMENT BY 1 NO CYCLE"],
            "ALTER SEQUENCE outbox.event_seq CACHE 1 INCREMENT BY 1 NO CYCLE",
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_subscription_is_named_with_what_creates_it() {
    refuses_until_mended(
        "DELETE FROM outbox.subscriptions",
        &["no subscription \"default\"", "subscription::create"],
        "INSERT INTO outbox.subscriptions (name) VALUES ('default');
         INSERT INTO outbox.topic_filters (subscription, from_tick) VALUES ('default', 0);
         INSERT INTO outbox.cursors (subscription, shard, tick) SELECT 'default', s, 0 FROM generate_series(0, 15) s",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server_is_no_place_for_a_relay() {
    refuses_until_mended(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$",
        &["read-only server", "primary"],
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET default_transaction_read_only', current_database()); END $$",
    )
    .await;
}

/// What a relay's role needs, and nothing else.
fn relay_role(database: &TestDatabase) -> String {
    let role = format!("{}_relay", database.name());
    database.sql(&format!(
        "DROP ROLE IF EXISTS {role};
         CREATE ROLE {role} LOGIN;
         GRANT USAGE ON SCHEMA outbox TO {role};
         -- Startup: versions, identity, filters.
         GRANT SELECT ON outbox.migrations, outbox.meta, outbox.topic_filters TO {role};
         -- The value of the sequence; never draws from it.
         GRANT SELECT ON SEQUENCE outbox.event_seq TO {role};
         -- Diffs.
         GRANT SELECT ON outbox.events TO {role};
         -- Ticks are taken, and deleted below every cursor.
         GRANT SELECT, INSERT, DELETE ON outbox.ticks TO {role};
         -- The generation is raised when the database went back in time.
         GRANT SELECT, UPDATE (generation) ON outbox.subscriptions TO {role};
         GRANT SELECT, UPDATE ON outbox.cursors TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.relays, outbox.parked TO {role};
         -- What operators ask for: changes to heed, replays to work on.
         GRANT SELECT ON outbox.revisions, outbox.discarded TO {role};
         GRANT SELECT, UPDATE (finished_at) ON outbox.replays TO {role};
         GRANT SELECT, UPDATE ON outbox.replay_cursors TO {role}"
    ));
    role
}

fn drop_role(database: &TestDatabase, role: &str) {
    database.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_the_rights_of_a_relay_delivers_parks_and_retries_without_ddl() {
    let database = TestDatabase::new();
    let role = relay_role(&database);
    let broker = RecordingPublisher::default();
    let once = std::sync::atomic::AtomicBool::new(true);
    broker.reject(move |event| {
        (event.aggregate_id() == "b" && once.swap(false, std::sync::atomic::Ordering::SeqCst))
            .then(|| String::from("once"))
    });
    let relay = database.relay_as(&role, broker.clone()).await;
    for order in ["a", "b", "c"] {
        database.insert(order);
    }
    let mut sent = orders(&broker, 3).await;
    sent.sort();
    assert_eq!(sent, ["a", "b", "c"]);
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked").then_some(())
    })
    .await;
    assert_eq!(relay.health(), Health::Running);
    relay.shutdown().await;
    drop_role(&database, &role);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_security_that_hides_events_from_the_relay_is_an_error_and_no_empty_diff() {
    let database = TestDatabase::new();
    let role = relay_role(&database);
    database.sql("ALTER TABLE outbox.events ENABLE ROW LEVEL SECURITY");
    let broker = RecordingPublisher::default();
    database.insert("a");
    let relay = database.relay_as(&role, broker.clone()).await;
    let cause = refusal(&relay).await;
    assert!(cause.contains("row-level security policy for table \"events\""), "{cause}");
    assert!(database.value::<bool>("SELECT bool_and(tick = 0) FROM outbox.cursors"));
    database.sql("ALTER TABLE outbox.events DISABLE ROW LEVEL SECURITY");
    assert_eq!(orders(&broker, 1).await, ["a"]);
    relay.shutdown().await;
    drop_role(&database, &role);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_see_the_sequence_is_told_so() {
    let database = TestDatabase::new();
    let role = relay_role(&database);
    database.sql(&format!("REVOKE ALL ON SEQUENCE outbox.event_seq FROM {role}"));
    let broker = RecordingPublisher::default();
    database.insert("a");
    let relay = database.relay_as(&role, broker.clone()).await;
    let cause = refusal(&relay).await;
    assert!(cause.contains("sequence") && cause.contains("event_seq"), "{cause}");
    database.sql(&format!("GRANT SELECT ON SEQUENCE outbox.event_seq TO {role}"));
    assert_eq!(orders(&broker, 1).await, ["a"]);
    relay.shutdown().await;
    drop_role(&database, &role);
}
