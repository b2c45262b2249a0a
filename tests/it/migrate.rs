//! The schema comes and goes, whoever runs the migrations.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use diesel::migration::{Migration, MigrationSource as _};
use diesel::pg::Pg;
use diesel::{Connection as _, PgConnection};
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use diesel_migrations::{FileBasedMigrations, MigrationHarness as _};
use outbox_diesel::migrate::{self, MIGRATIONS};
use outbox_diesel::{Emit, EmitError};
use outbox_tests::{TestDatabase, TestEvent};

fn names() -> Vec<&'static str> {
    MIGRATIONS.iter().map(|migration| migration.name).collect()
}

fn is_installed(database: &TestDatabase) -> bool {
    database.value("SELECT to_regnamespace('outbox') IS NOT NULL")
}

/// Every relation, column, constraint, index, function and view of the schema, as text.
fn catalog(database: &TestDatabase) -> Vec<String> {
    database.value(
        "SELECT ARRAY(
            SELECT format('%s %s %s %s', c.relkind, c.relname, c.reloptions, pg_get_expr(c.relpartbound, c.oid))
            FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace
            UNION ALL
            SELECT format('%s.%s %s %s %s', a.attrelid::regclass, a.attname,
                format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
            FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
            LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
            WHERE c.relnamespace = 'outbox'::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL
            SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
            FROM pg_constraint WHERE connamespace = 'outbox'::regnamespace
            UNION ALL
            SELECT indexdef FROM pg_indexes WHERE schemaname = 'outbox'
            UNION ALL
            SELECT format('%s %s', pg_get_functiondef(oid), proacl) FROM pg_proc
            WHERE pronamespace = 'outbox'::regnamespace
            UNION ALL
            SELECT format('%s %s', viewname, definition) FROM pg_views WHERE schemaname = 'outbox'
            UNION ALL
            SELECT format('%s %s %s', objoid::regclass, objsubid, description) FROM pg_description
            JOIN pg_class c ON c.oid = objoid WHERE c.relnamespace = 'outbox'::regnamespace
            UNION ALL
            SELECT version || name FROM outbox.migrations
            ORDER BY 1)",
    )
}

#[test]
fn a_fresh_database_gets_every_migration_and_then_none() {
    let database = TestDatabase::empty();
    let mut conn = database.sync();
    assert_eq!(migrate::run(&mut conn).unwrap(), names());
    assert!(migrate::run(&mut conn).unwrap().is_empty());
    conn.transaction(|conn| conn.emit(&TestEvent::new(1))).unwrap();
}

#[tokio::test]
async fn a_fresh_database_gets_every_migration_on_an_asynchronous_connection_too() {
    let database = TestDatabase::empty();
    let mut conn = database.connect().await;
    assert_eq!(migrate::run_async(&mut conn).await.unwrap(), names());
    assert!(migrate::run_async(&mut conn).await.unwrap().is_empty());
}

#[test]
fn of_eight_runners_at_once_one_runs_the_migrations_and_none_fails() {
    let database = TestDatabase::empty();
    let barrier = Barrier::new(8);
    let ran: Vec<_> = thread::scope(|scope| {
        let synchronous = (0..4).map(|_| {
            scope.spawn(|| {
                let mut conn = database.sync();
                barrier.wait();
                migrate::run(&mut conn).unwrap()
            })
        });
        // Each on a runtime of its own thread only.
        let asynchronous = (0..4).map(|_| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(async {
                    let mut conn = database.connect().await;
                    barrier.wait();
                    migrate::run_async(&mut conn).await.unwrap()
                })
            })
        });
        let runners: Vec<_> = synchronous.chain(asynchronous).collect();
        runners.into_iter().flat_map(|runner| runner.join().unwrap()).collect()
    });
    assert_eq!(ran, names());
}

#[test]
fn runners_whose_transactions_are_serializable_by_default_wait_for_each_other_too() {
    let database = TestDatabase::empty();
    let name = database.name();
    database
        .sql(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"));
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut conn = database.sync();
                barrier.wait();
                migrate::run(&mut conn).unwrap();
            });
        }
    });
    assert!(is_installed(&database));
}

#[test]
fn down_and_up_again_makes_the_same_schema() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let before = catalog(&database);
    for migration in MIGRATIONS.iter().rev() {
        assert_eq!(migrate::revert(&mut conn).unwrap(), Some(migration.name));
    }
    assert_eq!(migrate::revert(&mut conn).unwrap(), None);
    assert!(!is_installed(&database));
    migrate::run(&mut conn).unwrap();
    assert_eq!(catalog(&database), before);
    // Each step on its own too, from the top.
    for depth in 1..=MIGRATIONS.len() {
        for _ in 0..depth {
            migrate::revert(&mut conn).unwrap();
        }
        assert_eq!(migrate::run(&mut conn).unwrap(), names()[MIGRATIONS.len() - depth..]);
        assert_eq!(catalog(&database), before, "{depth} down and up");
    }
}

#[test]
fn migrations_that_run_in_a_rolled_back_transaction_leave_nothing() {
    let database = TestDatabase::empty();
    let mut conn = database.sync();
    conn.test_transaction::<_, EmitError, _>(|conn| {
        assert_eq!(migrate::run(conn)?, names());
        assert!(migrate::run(conn)?.is_empty());
        conn.emit(&TestEvent::new(1))
    });
    assert!(!is_installed(&database));
}

#[tokio::test]
async fn asynchronous_migrations_run_inside_a_transaction_too() {
    let database = TestDatabase::empty();
    let mut conn = database.connect().await;
    conn.begin_test_transaction().await.unwrap();
    assert_eq!(migrate::run_async(&mut conn).await.unwrap(), names());
    drop(conn);
    assert!(!is_installed(&database));
}

#[tokio::test]
async fn a_role_that_may_not_create_a_schema_is_told_so_and_keeps_its_connection() {
    let database = TestDatabase::empty();
    let role = format!("{}_guest", database.name());
    database.sql(&format!("CREATE ROLE {role} LOGIN"));
    let denied = format!("permission denied for database {}", database.name());
    let mut conn = PgConnection::establish(&database.url_as(&role)).unwrap();
    for _ in 0..2 {
        assert_eq!(migrate::run(&mut conn).unwrap_err().to_string(), denied);
    }
    let mut conn = AsyncPgConnection::establish(&database.url_as(&role)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(migrate::run_async(&mut conn).await.unwrap_err().to_string(), denied);
    }
}

/// An application's migrations.
fn host_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let migration = directory.path().join("2026-01-01-101010_create_orders");
    fs::create_dir(&migration).unwrap();
    fs::write(migration.join("up.sql"), "CREATE TABLE orders (id bigint)").unwrap();
    fs::write(migration.join("down.sql"), "DROP TABLE orders").unwrap();
    directory
}

#[test]
fn copied_migrations_run_revert_and_redo_in_the_hosts_directory() {
    let directory = host_directory();
    let written = migrate::copy(directory.path()).unwrap();
    let expected: Vec<_> = names().iter().map(|name| directory.path().join(name)).collect();
    assert_eq!(written, expected);
    assert!(migrate::copy(directory.path()).unwrap().is_empty(), "written twice");

    let database = TestDatabase::empty();
    let mut conn = database.sync();
    let source = FileBasedMigrations::from_path(directory.path()).unwrap();
    let ran = conn.run_pending_migrations(source.clone()).unwrap().len();
    assert_eq!(ran, MIGRATIONS.len() + 1);
    assert!(migrate::run(&mut conn).unwrap().is_empty(), "the library's runner sees them");
    let before = catalog(&database);

    conn.revert_last_migration(source.clone()).unwrap();
    assert_eq!(migrate::run(&mut conn).unwrap(), names()[MIGRATIONS.len() - 1..]);
    migrate::revert(&mut conn).unwrap();
    conn.run_pending_migrations(source.clone()).unwrap();
    assert_eq!(catalog(&database), before);

    conn.revert_all_migrations(source.clone()).unwrap();
    assert!(!is_installed(&database));
    conn.run_pending_migrations(source).unwrap();
    assert_eq!(catalog(&database), before);
}

#[test]
fn a_host_that_does_not_copy_them_never_meets_them_in_its_own_versions() {
    let directory = host_directory();
    let source = FileBasedMigrations::from_path(directory.path()).unwrap();

    let database = TestDatabase::empty();
    let mut conn = database.sync();
    conn.run_pending_migrations(source.clone()).unwrap();
    migrate::run(&mut conn).unwrap();
    conn.revert_all_migrations(source).unwrap();
    assert!(is_installed(&database));
    assert!(migrate::run(&mut conn).unwrap().is_empty());
}

#[test]
fn every_migration_on_disk_is_known_and_records_itself() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
    let on_disk: BTreeSet<String> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(on_disk, names().into_iter().map(str::to_owned).collect());
    assert!(MIGRATIONS.is_sorted_by(|a, b| a.version < b.version));

    let source = FileBasedMigrations::from_path(&directory).unwrap();
    let mut diesels: Vec<Box<dyn Migration<Pg>>> = source.migrations().unwrap();
    diesels.sort_by_key(|migration| migration.name().to_string());
    for (migration, diesels) in MIGRATIONS.iter().zip(diesels) {
        let version = migration.version;
        assert_eq!(diesels.name().to_string(), migration.name);
        assert_eq!(diesels.name().version().to_string(), version);
        let (_, short) = migration.name.split_once('_').unwrap();
        let recorded = format!("VALUES ('{version}', '{short}')");
        assert!(migration.up.contains(&recorded), "{short}: no {recorded}");
        let deleted = format!("DELETE FROM outbox.migrations WHERE version = '{version}'");
        let first = version == MIGRATIONS[0].version;
        assert_eq!(migration.down.contains(&deleted), !first, "{short}: {deleted}");
        assert_eq!(migration.down.contains("DROP SCHEMA outbox"), first);
        assert!(!version.ends_with("000000"), "{short}: a host could choose this time by hand");
    }
}
