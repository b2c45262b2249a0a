//! `outbox migrate`.

use std::fs;

use diesel_migrations::{FileBasedMigrations, MigrationHarness as _};
use outbox_diesel::migrate::MIGRATIONS;
use outbox_tests::TestDatabase;

use crate::program::{json, outbox};

fn is_installed(database: &TestDatabase) -> bool {
    database.value("SELECT to_regclass('outbox.events') IS NOT NULL")
}

#[test]
fn run_creates_the_schema_and_then_does_nothing() {
    let database = TestDatabase::empty();
    let said = outbox(&database, &["migrate", "status"]).failed(4);
    assert!(said.contains("outbox migrate run"), "{said}");
    assert_eq!(outbox(&database, &["migrate", "run"]).said().lines().count(), MIGRATIONS.len());
    assert_eq!(json(&database, &["migrate", "run"])["ran"].as_array().unwrap().len(), 0);
    let status = json(&database, &["migrate", "status"]);
    assert!(status["migrations"].as_array().unwrap().iter().all(|m| m["ran"] == true));
    assert!(is_installed(&database));
}

#[test]
fn copied_migrations_run_revert_and_redo_by_diesel() {
    let database = TestDatabase::empty();
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("2026-01-01-101010_create_orders");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("up.sql"), "CREATE TABLE orders (id bigint)").unwrap();
    fs::write(own.join("down.sql"), "DROP TABLE orders").unwrap();
    let path = directory.path().to_str().unwrap();
    let copied = json(&database, &["migrate", "copy", path]);
    assert_eq!(copied["written"].as_array().unwrap().len(), MIGRATIONS.len());
    assert!(outbox(&database, &["migrate", "copy", path]).said().contains("has all of them"));

    let mut conn = database.sync();
    let source = FileBasedMigrations::from_path(directory.path()).unwrap();
    let ran = conn.run_pending_migrations(source.clone()).unwrap().len();
    assert_eq!(ran, MIGRATIONS.len() + 1);
    outbox(&database, &["migrate", "status"]).said();
    // Redo: down and up again.
    conn.revert_last_migration(source.clone()).unwrap();
    outbox(&database, &["migrate", "status"]).failed(4);
    conn.run_pending_migrations(source.clone()).unwrap();
    outbox(&database, &["migrate", "status"]).said();
    assert!(outbox(&database, &["migrate", "run"]).said().contains("up to date"));
    conn.revert_all_migrations(source.clone()).unwrap();
    assert!(!is_installed(&database));
    conn.run_pending_migrations(source).unwrap();
    outbox(&database, &["status"]).said();
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let database = TestDatabase::empty();
    let said = outbox(&database, &["migrate", "copy", "/proc/nowhere"]).failed(1);
    assert!(said.contains("/proc/nowhere"), "{said}");
}
