//! `outbox doctor`: the database is not what it should be.

use outbox_tests::TestDatabase;

use crate::doctor::{first, told};

/// After `spoil`, it names this first, and says to do that.
async fn names(spoil: &str, name: &str, remedy: &str) {
    let database = TestDatabase::new();
    database.insert("a");
    database.sql(spoil);
    let finding = first(&database, name, 20).await;
    assert!(told(&finding).contains(remedy), "{finding}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_schema_is_named() {
    let database = TestDatabase::empty();
    let finding = first(&database, "schema-missing", 20).await;
    assert_eq!(finding["remedy"], "outbox migrate run");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_named() {
    let older = "DELETE FROM outbox.migrations WHERE version = (SELECT max(version) FROM outbox.migrations)";
    names(older, "schema-older", "outbox migrate run").await;
    let newer = "INSERT INTO outbox.migrations (version, name) VALUES ('99991231235959', 'later')";
    names(newer, "schema-newer", "outbox-cli").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_was_restored_elsewhere_is_named() {
    let restored = "UPDATE outbox.meta SET system_identifier = system_identifier + 1";
    names(restored, "foreign-database", "outbox rebase").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_was_set_back_or_altered_is_named() {
    names("SELECT setval('outbox.event_seq', 1)", "sequence-behind", "outbox rebase").await;
    names("ALTER SEQUENCE outbox.event_seq CACHE 20", "sequence-altered", "CACHE 1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_writes_is_named() {
    let read_only = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$";
    names(read_only, "read-only-server", "primary").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_without_any_subscription_is_named() {
    names("DELETE FROM outbox.subscriptions", "no-subscription", "outbox subscriptions create")
        .await;
}
