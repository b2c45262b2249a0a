//! The CHECK by which a large default partition need not be read under its lock: it comes, it goes,
//! and it never refuses an event.

use diesel::Connection as _;
use diesel::connection::SimpleConnection as _;
use outbox_tests::{Scalar as _, TestDatabase};

use crate::leaves::{emit, go_to, insert, keep_ahead, leaves};

/// A database whose events go into a default partition of 20 MB.
fn with_a_large_default_partition() -> TestDatabase {
    let database = TestDatabase::new();
    go_to(&database, 3_000_000);
    // An autovacuum's lock makes a step fail, and later ones succeed: not what is tested here.
    database.sql(
        "ALTER TABLE outbox.events_default SET (autovacuum_enabled = off);
         INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'order', n, 'order.created', to_json(repeat('x', 1700)) FROM generate_series(1, 11000) n",
    );
    database
}

/// The CHECK: none, or whether it is validated.
fn check(database: &TestDatabase) -> Option<String> {
    database.value(
        "SELECT max(convalidated::text) FROM pg_constraint WHERE conrelid = 'outbox.events_default'::regclass
         AND conname = 'rows_lie_outside_the_next_ranges'",
    )
}

#[test]
fn a_large_default_partition_is_not_read_under_its_lock() {
    let database = with_a_large_default_partition();
    assert_eq!(keep_ahead(&database), (0, None));
    assert_eq!(check(&database).as_deref(), Some("false"));
    emit(&database, 1);
    assert_eq!(keep_ahead(&database), (0, None));
    assert_eq!(check(&database).as_deref(), Some("true"));
    emit(&database, 1);
    let read = database
        .sync()
        .transaction::<_, diesel::result::Error, _>(|conn| {
            conn.batch_execute("SELECT outbox.keep_partitions_ahead()")?;
            i64::of(
                "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'events_default'",
                conn,
            )
        })
        .unwrap();
    assert_eq!(read, 0, "ATTACH believed the CHECK");
    assert_eq!(check(&database), None);
    assert_eq!(leaves(&database).len(), 5);
    assert_eq!(keep_ahead(&database), (0, None));
    emit(&database, 1);
}

#[test]
fn validation_waits_for_no_writer_and_no_writer_for_it() {
    let database = with_a_large_default_partition();
    keep_ahead(&database);
    let mut writer = database.sync();
    writer.batch_execute(&format!("BEGIN; {}", insert("open"))).unwrap();
    let mut relay = database.sync();
    relay.batch_execute("BEGIN; SELECT outbox.keep_partitions_ahead()").unwrap();
    writer
        .batch_execute(&format!("SET lock_timeout = '1ms'; {}; COMMIT", insert("at once")))
        .unwrap();
    relay.batch_execute("COMMIT").unwrap();
    assert_eq!(check(&database).as_deref(), Some("true"));
}

#[test]
fn a_check_whose_attach_fails_goes_in_the_same_round() {
    let database = with_a_large_default_partition();
    keep_ahead(&database);
    keep_ahead(&database);
    // So that the attach fails and nothing holds the lock afterwards.
    database.sql("CREATE TABLE outbox.in_the_way AS SELECT 1");
    let next: i64 = database.value("SELECT excluded_from FROM outbox.upkeep");
    database.sql(&format!("ALTER TABLE outbox.in_the_way RENAME TO events_s{next}"));
    let (made, problem) = keep_ahead(&database);
    assert_eq!((made, check(&database)), (0, None));
    assert!(problem.unwrap().contains(&format!("events_s{next}")));
}

#[test]
fn a_check_that_cannot_be_dropped_at_once_is_dropped_as_soon_as_it_can() {
    let database = with_a_large_default_partition();
    keep_ahead(&database);
    keep_ahead(&database);
    let mut writer = database.sync();
    writer.batch_execute(&format!("BEGIN; {}", insert("open"))).unwrap();
    let (made, problem) = keep_ahead(&database);
    assert_eq!((made, check(&database).as_deref()), (0, Some("true")));
    assert!(problem.unwrap().contains("could not be dropped yet"));
    emit(&database, 1);
    writer.batch_execute("COMMIT").unwrap();
    // Dropped, not attached: whoever was to attach it may be gone.
    assert_eq!(keep_ahead(&database).0, 0);
    assert_eq!(check(&database), None);
}

#[test]
fn a_check_that_a_crashed_relay_left_goes_after_a_minute() {
    let database = with_a_large_default_partition();
    keep_ahead(&database);
    database.sql("UPDATE outbox.upkeep SET excluded_until = clock_timestamp() - interval '1 s'");
    keep_ahead(&database);
    assert_eq!(check(&database), None);
    let (from, until): (Option<String>, Option<String>) = (
        database.value("SELECT excluded_from::text FROM outbox.upkeep"),
        database.value("SELECT excluded_until::text FROM outbox.upkeep"),
    );
    assert_eq!((from, until), (None, None));
}

#[test]
fn a_check_that_the_sequence_comes_near_goes_whatever_its_time_and_however_long_the_lock_takes() {
    let database = with_a_large_default_partition();
    keep_ahead(&database);
    let from: i64 = database.value("SELECT excluded_from FROM outbox.upkeep");
    go_to(&database, from - 1_000_000);
    emit(&database, 1);
    // Longer than a try takes when nothing presses.
    let mut writer = database.sync();
    writer.batch_execute(&format!("BEGIN; {}; SELECT pg_sleep(0)", insert("open"))).unwrap();
    std::thread::scope(|scope| {
        let dropped = scope.spawn(|| keep_ahead(&database));
        let waited = std::time::Instant::now();
        while waited.elapsed() < std::time::Duration::from_millis(600) && !dropped.is_finished() {
            std::thread::yield_now();
        }
        writer.batch_execute("COMMIT").unwrap();
        dropped.join().unwrap();
    });
    assert_eq!(check(&database), None);
    go_to(&database, from);
    emit(&database, 1);
}

#[test]
fn the_check_lies_at_least_five_million_events_and_a_day_of_traffic_ahead() {
    let database = with_a_large_default_partition();
    keep_ahead(&database);
    let distance: i64 = database.value(
        "SELECT excluded_from - pg_sequence_last_value('outbox.event_seq') FROM outbox.upkeep",
    );
    assert!(distance >= 5_000_000, "{distance}");

    let database = with_a_large_default_partition();
    database.sql(
        "INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after, ticked_at)
         SELECT (extract(epoch FROM at) * 1000000)::bigint, 0, pg_current_xact_id(), pg_current_snapshot(), seq, seq, at
         FROM (VALUES (clock_timestamp() - interval '12 hours', 0), (clock_timestamp(), 4000000)) t (at, seq)",
    );
    keep_ahead(&database);
    let distance: i64 = database.value(
        "SELECT excluded_from - pg_sequence_last_value('outbox.event_seq') FROM outbox.upkeep",
    );
    assert!(distance >= 7_900_000, "{distance}");
}

#[test]
fn near_the_sequence_there_is_no_check_however_large_the_default_partition_is() {
    let database = with_a_large_default_partition();
    // The burst is over: the next range was reached, and another one is due close by.
    database.sql("SELECT outbox.create_partition(8000000, 8100000)");
    go_to(&database, 8_000_000);
    assert_eq!(keep_ahead(&database), (1, None));
    assert_eq!(check(&database), None);
}
