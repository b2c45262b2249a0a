//! Upkeep's locks: emits never wait for them, whoever reads the log meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use diesel::PgConnection;
use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, TestDatabase, eventually, quick};

use crate::leaves::{emit, go_to, insert, keep_ahead, pass, retire, with_small_leaves};

/// As `pg_dump` does: every table of the log, for as long as it runs.
fn dump(database: &TestDatabase) -> PgConnection {
    let mut dump = database.sync();
    dump.batch_execute("BEGIN; LOCK TABLE outbox.events IN ACCESS SHARE MODE").unwrap();
    dump
}

/// Emits while `upkeep` runs again and again, and returns the longest time that an emit took. An
/// emit that waits for a lock at all fails.
fn emit_beside(database: &TestDatabase, upkeep: impl Fn() + Sync) -> Duration {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                upkeep();
            }
        });
        let mut conn = database.sync();
        conn.batch_execute("SET lock_timeout = '1ms'").unwrap();
        let started = Instant::now();
        let mut longest = Duration::ZERO;
        let mut failed = None;
        while started.elapsed() < Duration::from_secs(2) && failed.is_none() {
            let emit = Instant::now();
            failed = conn.batch_execute(&insert("beside")).err();
            longest = longest.max(emit.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(failed.is_none(), "{failed:?}");
        longest
    })
}

#[test]
fn emits_do_not_wait_while_partitions_cannot_be_attached_for_a_dump() {
    let database = TestDatabase::new();
    go_to(&database, 2_850_000);
    let mut dump = dump(&database);
    let longest = emit_beside(&database, || {
        let (made, problem) = keep_ahead(&database);
        assert_eq!(made, 0);
        assert!(problem.unwrap().contains("lock timeout"));
    });
    eprintln!("longest emit beside ATTACH: {longest:?}");
    dump.batch_execute("COMMIT").unwrap();
    assert_eq!(keep_ahead(&database), (1, None), "tried again");
}

#[test]
fn emits_do_not_wait_while_a_leaf_cannot_be_emptied_or_dropped_for_a_dump() {
    let database = with_small_leaves(4);
    emit(&database, 30);
    pass(&database);
    retire(&database).unwrap();
    database.sql("SELECT outbox.create_partition(41, 1000000)");
    let mut dump = dump(&database);
    let longest = emit_beside(&database, || {
        let mut conn = database.sync();
        let refused = conn.batch_execute("SELECT outbox.retire_partition('0')").unwrap_err();
        assert!(refused.to_string().contains("lock timeout"), "{refused}");
        let dropped: Option<String> = database.value("outbox.drop_retired_partition()");
        assert_eq!(dropped, None);
    });
    eprintln!("longest emit beside TRUNCATE and DROP: {longest:?}");
    dump.batch_execute("COMMIT").unwrap();
    assert_eq!(retire(&database).as_deref(), Some("events_s11"));
    let dropped: Option<String> = database.value("outbox.drop_retired_partition()");
    assert_eq!(dropped.as_deref(), Some("events_s1"));
}

#[test]
fn ticks_go_on_while_retention_waits_for_a_leaf() {
    let database = with_small_leaves(4);
    emit(&database, 12);
    pass(&database);
    database.sql("ALTER FUNCTION outbox.retire_partition(interval) SET lock_timeout = '1min'");
    let mut dump = dump(&database);
    thread::scope(|scope| {
        let retired = scope.spawn(|| retire(&database));
        let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox.events_s1'::regclass)";
        while !database.value::<bool>(waits) {
            assert!(!retired.is_finished(), "it did not wait for the leaf");
        }
        // NULL: somebody else holds the tick lock.
        let tick: Option<String> = database.value("outbox.take_tick()::text");
        dump.batch_execute("COMMIT").unwrap();
        assert!(retired.join().unwrap().is_some());
        assert!(tick.is_some());
    });
}

#[test]
fn emits_do_not_wait_while_partitions_are_made_emptied_and_dropped() {
    let database = with_small_leaves(40);
    emit(&database, 395);
    pass(&database);
    database.sql("SELECT outbox.create_partition(401, 90000)");
    let mut conn = database.sync();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while retire(&database).is_some() {
                database.sql("SELECT outbox.drop_retired_partition()");
                keep_ahead(&database);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            let emit = Instant::now();
            conn.batch_execute(&insert("beside")).unwrap();
            longest = longest.max(emit.elapsed());
        }
        eprintln!("longest emit beside upkeep that succeeds: {longest:?}");
        // The only lock that an emit meets is a DROP's, which held nothing before.
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    });
}

#[test]
fn an_open_emit_keeps_a_leaf_from_being_dropped_and_nobody_waits() {
    let database = with_small_leaves(4);
    emit(&database, 12);
    pass(&database);
    retire(&database).unwrap();
    let mut open = database.sync();
    open.batch_execute(&format!("BEGIN; {}", insert("open"))).unwrap();
    let longest = emit_beside(&database, || {
        assert_eq!(database.value::<Option<String>>("outbox.drop_retired_partition()"), None);
    });
    eprintln!("longest emit beside DROP: {longest:?}");
    open.batch_execute("COMMIT").unwrap();
    assert!(database.value::<Option<String>>("outbox.drop_retired_partition()").is_some());
}

#[test]
fn an_emit_into_the_default_partition_waits_for_one_try_at_most() {
    let database = TestDatabase::new();
    go_to(&database, 3_000_000);
    let mut reader = database.sync();
    reader.batch_execute("BEGIN; SELECT count(*) FROM outbox.events").unwrap();
    thread::scope(|scope| {
        let attach = scope.spawn(|| keep_ahead(&database));
        let waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'outbox.events_default'::regclass)";
        while !database.value::<bool>(waits) && !attach.is_finished() {
            thread::yield_now();
        }
        let mut conn = database.sync();
        conn.batch_execute(&format!("SET lock_timeout = '1s'; {}", insert("queued"))).unwrap();
        let (made, problem) = attach.join().unwrap();
        assert!(made == 0 && problem.is_some());
    });
    // The next try is half a minute away.
    assert_eq!(database.value::<i64>("SELECT made::bigint FROM outbox.keep_partitions_ahead()"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_goes_on_while_no_partition_can_be_attached() {
    let database = with_small_leaves(2);
    emit(&database, 25);
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || (broker.delivered().len() == 25).then_some(())).await;
    relay.shutdown().await;
    pass(&database);
    database.sql("UPDATE outbox.upkeep SET next_try_at = '-infinity'");

    // The log is overrun, and an open emit holds the default partition.
    database.sql(
        "DO $$ DECLARE leaf text; BEGIN
        FOR leaf IN SELECT l.leaf FROM outbox.leaves l WHERE l.from_seq > 21 LOOP
            EXECUTE format('DROP TABLE outbox.%I', leaf);
        END LOOP; END $$",
    );
    let mut open = database.sync();
    open.batch_execute(&format!("BEGIN; {}", insert("open"))).unwrap();
    let relay = database.relay_with(broker.clone(), quick().retention(Duration::ZERO)).await;
    eventually(SOON, async || {
        (database.value::<i64>("SELECT count(*) FROM outbox.retired_partitions") == 2).then_some(())
    })
    .await;
    assert!(database.value::<bool>("SELECT failed > 0 FROM outbox.upkeep"));
    open.batch_execute("COMMIT").unwrap();
    eventually(SOON, async || (broker.delivered().len() == 26).then_some(())).await;
    relay.shutdown().await;
}
