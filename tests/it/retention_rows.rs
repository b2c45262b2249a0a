//! Retention of single rows: dedup keys, ticks, the default partition, and events that the law does
//! not let stay until their partition goes.

use std::thread;
use std::time::Duration;

use diesel::Connection as _;
use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{Emit as _, EmitError, Emitted};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually, insert, quick};

use crate::leaves::{emit, go_to, pass, settle, with_small_leaves};

fn count(database: &TestDatabase, table: &str) -> i64 {
    database.value(&format!("SELECT count(*) FROM outbox.{table}"))
}

fn call(database: &TestDatabase, function: &str) -> i64 {
    database.value(&format!("SELECT outbox.{function}::bigint"))
}

#[test]
fn a_dedup_key_is_taken_for_as_long_as_the_retention() {
    let database = TestDatabase::new();
    let emit = |key: &str| {
        database
            .sync()
            .transaction::<_, EmitError, _>(|conn| conn.emit(&TestEvent::new("a").dedup_key(key)))
    };
    emit("old").unwrap();
    database.sql("UPDATE outbox.dedup_keys SET created_at = created_at - interval '8 days'");
    emit("young").unwrap();
    assert_eq!(call(&database, "delete_dedup_keys('7 days')"), 1);
    assert!(matches!(emit("young").unwrap(), Emitted::Duplicate { .. }));
    assert!(matches!(emit("old").unwrap(), Emitted::New { .. }));
}

#[test]
fn dedup_keys_go_in_small_batches() {
    let database = TestDatabase::new();
    database.sql(
        "INSERT INTO outbox.dedup_keys (dedup_key, event_id, created_at)
         SELECT n, gen_random_uuid(), clock_timestamp() - interval '8 days' FROM generate_series(1, 4500) n",
    );
    let deleted = [0; 4].map(|_| call(&database, "delete_dedup_keys('7 days')"));
    assert_eq!(deleted, [2000, 2000, 500, 0]);
}

#[test]
fn delivered_events_of_the_default_partition_go_in_small_batches() {
    let database = TestDatabase::new();
    go_to(&database, 3_000_000);
    database.sql(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'order', n, 'order.created', '{}' FROM generate_series(1, 2500) n",
    );
    assert_eq!(call(&database, "purge_default_partition('0')"), 0, "not delivered");
    pass(&database);
    emit(&database, 1);
    assert_eq!(call(&database, "purge_default_partition('1 day')"), 0, "not old");
    let deleted = [0; 3].map(|_| call(&database, "purge_default_partition('0')"));
    assert_eq!(deleted, [2000, 500, 0]);
    assert_eq!(database.emitted().len(), 1, "what was emitted since stays");
}

#[test]
fn a_purge_deletes_what_is_old_and_delivered_and_nothing_else() {
    let database = with_small_leaves(4);
    emit(&database, 12);
    database.sql("SELECT outbox.take_tick()");
    assert_eq!(call(&database, "purge_events('0')"), 0, "not delivered");
    pass(&database);
    emit(&database, 3);
    assert_eq!(call(&database, "purge_events('1 day')"), 0, "not old");
    assert_eq!(call(&database, "purge_events('0')"), 12);
    assert_eq!(call(&database, "purge_events('0')"), 0);
    assert_eq!(database.emitted(), ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_purges_only_if_it_is_told_to() {
    let database = TestDatabase::new();
    emit(&database, 5);
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), quick().retention(Duration::ZERO)).await;
    eventually(SOON, async || (broker.delivered().len() == 5).then_some(())).await;
    relay.shutdown().await;
    assert_eq!(database.emitted().len(), 5);
    pass(&database);
    let relay = database.relay_with(broker.clone(), quick().purge_after(Duration::ZERO)).await;
    eventually(SOON, async || database.emitted().is_empty().then_some(())).await;
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 5);
}

/// Ticks of the past: one a minute for this many days, all with the snapshot of now.
fn with_a_past(days: i64) -> TestDatabase {
    let database = TestDatabase::new();
    emit(&database, 1);
    database.sql(&format!(
        "INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after, ticked_at)
         SELECT (extract(epoch FROM at) * 1000000)::bigint, 0, '5', '5:5:', 1, 1, at
         FROM generate_series(clock_timestamp() - interval '{days} days', clock_timestamp() - interval '1 min', interval '1 min') at"
    ));
    settle(&database);
    database
}

fn delete_all_ticks(database: &TestDatabase, retention: &str) {
    while call(database, &format!("delete_ticks('{retention}')")) > 0 {}
}

fn ticks_older_than(database: &TestDatabase, age: &str) -> i64 {
    count(
        database,
        &format!(
            "ticks WHERE tick > 0 AND tick < (extract(epoch FROM clock_timestamp() - interval '{age}') * 1000000)::bigint"
        ),
    )
}

#[test]
fn one_tick_in_ten_minutes_is_kept_for_the_retention() {
    let database = with_a_past(12);
    delete_all_ticks(&database, "10 days");
    let kept = ticks_older_than(&database, "10 min");
    // Eleven days of six an hour.
    assert!((1580..=1590).contains(&kept), "{kept}");
    assert!(ticks_older_than(&database, "10 days") > 0, "or nothing would ever be old enough");
    assert_eq!(ticks_older_than(&database, "11 days 1 min"), 0);
    assert_eq!(count(&database, "ticks WHERE tick = 0"), 1);
}

#[test]
fn the_newest_tick_beyond_the_retention_is_kept_however_old_it_is() {
    let database = TestDatabase::new();
    emit(&database, 1);
    let month =
        "1 + (extract(epoch FROM clock_timestamp() - interval '30 days') * 1000000)::bigint";
    database.sql(&format!(
        "INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after)
         VALUES ({month} - 1000, 0, '5', '5:5:', 1, 1), ({month}, 0, '5', '5:5:', 2, 2)"
    ));
    settle(&database);
    delete_all_ticks(&database, "7 days");
    assert_eq!(ticks_older_than(&database, "7 days"), 1);
    assert_eq!(database.value::<i64>("outbox.passed_seq('7 days')"), 2);
}

#[test]
fn a_cursor_set_to_an_old_tick_while_the_deletion_waits_keeps_its_ticks() {
    let database = with_a_past(1);
    database.sql("ALTER FUNCTION outbox.delete_ticks(interval) SET lock_timeout = '1min'");
    let before = count(&database, "ticks");
    let mut other = database.sync();
    other.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(outbox.tick_lock_key())").unwrap();
    thread::scope(|scope| {
        let deleted = scope.spawn(|| call(&database, "delete_ticks('7 days')"));
        let waits =
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))";
        while !database.value::<bool>(waits) {
            assert!(!deleted.is_finished(), "it did not come to the tick lock");
        }
        other.batch_execute("UPDATE outbox.cursors SET tick = 0 WHERE shard = 3; COMMIT").unwrap();
        assert_eq!(deleted.join().unwrap(), 0);
    });
    assert_eq!(count(&database, "ticks"), before);
}

#[test]
fn no_tick_above_a_cursor_is_deleted() {
    let database = with_a_past(1);
    let middle: i64 = database
        .value("SELECT tick FROM outbox.ticks WHERE tick > 0 ORDER BY tick OFFSET 100 LIMIT 1");
    database.sql(&format!("UPDATE outbox.cursors SET tick = {middle} WHERE shard = 3"));
    let above = format!("ticks WHERE tick >= {middle}");
    let before = count(&database, &above);
    delete_all_ticks(&database, "7 days");
    assert_eq!(count(&database, &above), before);
}

#[test]
fn records_of_discarded_events_stay_as_long_as_the_event_and_the_retention() {
    let database = TestDatabase::new();
    database.sql(&[insert("kept"), insert("gone"), insert("recent")].join(";"));
    database.sql(
        "INSERT INTO outbox.discarded (subscription, shard, tick, seq, id, topic, aggregate_type, aggregate_id,
             event_type, event_version, payload, headers, created_at, attempts, parked_at, reason, discarded_at)
         SELECT 'default', shard, 1, seq, id, topic, aggregate_type, aggregate_id, event_type, event_version,
             payload, headers, created_at, 1, now(), 'useless',
             now() - CASE aggregate_id WHEN 'recent' THEN interval '6 days' ELSE interval '8 days' END
         FROM outbox.events;
         DELETE FROM outbox.events WHERE aggregate_id <> 'kept';
         INSERT INTO outbox.replays (subscription, generation, to_seq, since, until, per_second, finished_at)
         VALUES ('default', 2, 1, '-infinity', 'infinity', 1, now() - interval '8 days'),
                ('default', 3, 1, '-infinity', 'infinity', 1, now() - interval '6 days'),
                ('default', 4, 1, '-infinity', 'infinity', 1, NULL)",
    );
    assert_eq!(call(&database, "delete_records('7 days')"), 2);
    assert_eq!(call(&database, "delete_records('7 days')"), 0);
    let left: String =
        database.value("SELECT string_agg(aggregate_id, ' ' ORDER BY seq) FROM outbox.discarded");
    assert_eq!(left, "kept recent");
    assert_eq!(count(&database, "replays"), 2);
}
