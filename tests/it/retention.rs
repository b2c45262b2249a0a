//! Retention: a partition goes when all of it was delivered and is old, and not a moment before.

use std::thread;

use diesel::Connection as _;
use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, Scalar as _, TestDatabase, eventually};

use crate::leaves::{emit, homes, insert, leaves, pass, retire, settle, with_small_leaves};

/// A database whose first leaf is full and delivered.
fn with_a_delivered_leaf() -> TestDatabase {
    let database = with_small_leaves(4);
    emit(&database, 12);
    pass(&database);
    database
}

#[test]
fn a_delivered_leaf_is_emptied_and_then_dropped() {
    let database = with_a_delivered_leaf();
    assert_eq!(retire(&database).as_deref(), Some("events_s1"));
    assert_eq!(retire(&database), None, "the second leaf is still being written");
    assert_eq!(homes(&database), ["outbox.events_s11"; 3]);
    let dropped: Option<String> = database.value("outbox.drop_retired_partition()");
    assert_eq!(dropped.as_deref(), Some("events_s1"));
    assert_eq!(leaves(&database), ["events_s11", "events_s21", "events_s31"]);
    assert_eq!(database.value::<Option<String>>("outbox.drop_retired_partition()"), None);
}

#[test]
fn a_leaf_stays_until_it_is_older_than_the_retention() {
    let database = with_a_delivered_leaf();
    let day: Option<String> = database.value("outbox.retire_partition('1 day')");
    assert_eq!(day, None);
    // Time passes: a tick's id tells when it was taken.
    database.sql(
        "UPDATE outbox.ticks SET tick = tick - 86400000000 - 60000000 WHERE tick > 0;
         UPDATE outbox.cursors SET tick = (SELECT max(tick) FROM outbox.ticks)",
    );
    let day: Option<String> = database.value("outbox.retire_partition('1 day')");
    assert_eq!(day.as_deref(), Some("events_s1"));
}

#[test]
fn a_pending_event_holds_its_leaf() {
    let database = with_small_leaves(4);
    emit(&database, 12);
    database.sql("SELECT outbox.take_tick()");
    assert_eq!(retire(&database), None, "nothing was delivered");
    pass(&database);
    database.sql("UPDATE outbox.cursors SET tick = 0 WHERE shard = 7");
    assert_eq!(retire(&database), None, "one shard lags");
    pass(&database);
    assert!(retire(&database).is_some());
}

#[test]
fn one_subscription_that_stands_still_holds_every_leaf_that_it_has_not_passed() {
    let database = with_small_leaves(4);
    database.sql(
        "INSERT INTO outbox.subscriptions (name) SELECT 's' || n FROM generate_series(1, 3) n;
         INSERT INTO outbox.cursors (subscription, shard, tick)
         SELECT 's' || n, shard, 0 FROM generate_series(1, 3) n, generate_series(0, 15) shard",
    );
    emit(&database, 12);
    pass(&database);
    let still: i64 = database.value("SELECT max(tick) FROM outbox.ticks");
    emit(&database, 10);
    pass(&database);
    database.sql(&format!("UPDATE outbox.cursors SET tick = {still} WHERE subscription = 's2'"));
    assert_eq!(retire(&database).as_deref(), Some("events_s1"));
    assert_eq!(retire(&database), None);
    database.sql("DELETE FROM outbox.subscriptions WHERE name = 's2'");
    assert_eq!(retire(&database).as_deref(), Some("events_s11"));
}

#[test]
fn cursors_that_cannot_be_judged_hold_everything() {
    for (doubt, mend) in [
        (
            "DELETE FROM outbox.cursors WHERE shard = 3",
            "INSERT INTO outbox.cursors (subscription, shard, tick) SELECT subscription, 3, tick FROM outbox.cursors WHERE shard = 4",
        ),
        (
            "UPDATE outbox.cursors SET tick = tick + 1 WHERE shard = 3",
            "UPDATE outbox.cursors SET tick = tick - 1 WHERE shard = 3",
        ),
        // Its snapshot comes from another server: the sequence was lifted above all of it.
        ("UPDATE outbox.meta SET seq_floor = 100", "UPDATE outbox.meta SET seq_floor = 0"),
        (
            "ALTER TABLE outbox.subscriptions RENAME TO s; CREATE TABLE outbox.subscriptions (LIKE outbox.s)",
            "DROP TABLE outbox.subscriptions; ALTER TABLE outbox.s RENAME TO subscriptions",
        ),
    ] {
        let database = with_a_delivered_leaf();
        database.sql(doubt);
        assert_eq!(retire(&database), None, "{doubt}");
        database.sql(mend);
        assert!(retire(&database).is_some(), "{mend}");
    }
}

#[test]
fn a_cursor_from_before_a_rebase_holds_everything_however_its_snapshot_reads() {
    let database = with_a_delivered_leaf();
    let foreign: i64 = database.value("SELECT max(tick) FROM outbox.ticks");
    database.sql(&format!(
        "UPDATE outbox.ticks SET snapshot = '999999999999:999999999999:' WHERE tick = {foreign};
         UPDATE outbox.meta SET seq_floor = pg_sequence_last_value('outbox.event_seq') + 1"
    ));
    emit(&database, 1);
    pass(&database);
    database.sql(&format!("UPDATE outbox.cursors SET tick = {foreign} WHERE shard = 3"));
    assert_eq!(retire(&database), None);
    pass(&database);
    assert!(retire(&database).is_some());
}

#[test]
fn a_policy_on_cursors_is_an_error_and_not_an_invisible_cursor() {
    let database = with_a_delivered_leaf();
    let owner = format!("{}_owner", database.name());
    database.sql(&format!(
        "CREATE ROLE {owner};
         GRANT USAGE ON SCHEMA outbox TO {owner};
         GRANT ALL ON ALL TABLES IN SCHEMA outbox TO {owner};
         GRANT ALL ON ALL FUNCTIONS IN SCHEMA outbox TO {owner};
         ALTER FUNCTION outbox.retire_partition(interval) OWNER TO {owner};
         ALTER TABLE outbox.cursors ENABLE ROW LEVEL SECURITY"
    ));
    let refused = database.sync().batch_execute("SELECT outbox.retire_partition('0')").unwrap_err();
    assert!(refused.to_string().contains("row-level security"), "{refused}");
    database.sql(&format!(
        "ALTER FUNCTION outbox.retire_partition(interval) OWNER TO CURRENT_USER;
         DROP OWNED BY {owner}; DROP ROLE {owner}"
    ));
}

#[test]
fn an_older_snapshot_is_refused() {
    let database = with_a_delivered_leaf();
    for function in [
        "retire_partition('0')",
        "purge_events('0')",
        "purge_default_partition('0')",
        "delete_ticks('0')",
    ] {
        let refused = database
            .sync()
            .batch_execute(&format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox.{function}"
            ))
            .unwrap_err();
        assert!(refused.to_string().contains("needs READ COMMITTED"), "{function}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_while_retention_runs_survives_and_is_delivered() {
    let database = with_small_leaves(4);
    emit(&database, 3);
    let mut late = database.sync();
    late.batch_execute(&format!("BEGIN; {}", insert("late"))).unwrap();
    emit(&database, 10);
    // Twice: the second tick's snapshot tells that the first one ended.
    settle(&database);
    settle(&database);
    // All that can be seen of the leaf was delivered, and it is closed.
    assert_eq!(database.value::<i64>("outbox.passed_seq('0')"), 0);
    assert_eq!(retire(&database), None);
    late.batch_execute("COMMIT").unwrap();
    assert_eq!(retire(&database), None, "committed, not yet delivered");

    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    let ids = eventually(SOON, async || {
        let ids: Vec<_> =
            broker.delivered().iter().map(|sent| sent.message.aggregate_id().to_owned()).collect();
        (!ids.is_empty()).then_some(ids)
    })
    .await;
    assert_eq!(ids, ["late"]);
    // Another event, another tick: some other database's transaction may have been open at this one.
    eventually(SOON, async || {
        emit(&database, 1);
        retire(&database)
    })
    .await;
    relay.shutdown().await;
}

/// A prepared transaction that emitted an event; rolled back if nobody commits it.
struct Prepared<'a>(&'a TestDatabase);

impl<'a> Prepared<'a> {
    fn new(database: &'a TestDatabase) -> Self {
        let (name, emit) = (database.name(), insert("prepared"));
        database.sql(&format!("BEGIN; {emit}; PREPARE TRANSACTION '{name}'"));
        Self(database)
    }

    fn commit(&self) {
        self.0.sql(&format!("COMMIT PREPARED '{}'", self.0.name()));
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // Fails if it was committed. A test that failed must not leave one behind: it would hold
        // back retention in every database of the server.
        let rollback = format!("ROLLBACK PREPARED '{}'", self.0.name());
        self.0.sync().batch_execute(&rollback).ok();
    }
}

#[test]
fn a_prepared_transaction_that_holds_a_seq_holds_its_leaf() {
    let database = with_small_leaves(4);
    emit(&database, 3);
    let prepared = Prepared::new(&database);
    emit(&database, 10);
    // Twice: the second tick's snapshot tells that the first one ended.
    settle(&database);
    settle(&database);
    assert_eq!(retire(&database), None);
    prepared.commit();
    assert_eq!(retire(&database), None);
    assert!(database.emitted().contains(&"prepared".to_owned()));
    pass(&database);
    assert!(retire(&database).is_some());
}

#[test]
fn a_leaf_of_nothing_but_rollbacks_goes_too() {
    let database = with_small_leaves(4);
    database.sql(&format!("BEGIN; {}; ROLLBACK;", insert("phantom")).repeat(12));
    assert_eq!(retire(&database), None, "no tick has closed it");
    pass(&database);
    assert_eq!(retire(&database).as_deref(), Some("events_s1"));
}

/// Runs a function of retention until it waits for the tick lock, does something, and lets it go on.
fn while_it_waits(database: &TestDatabase, function: &str, meanwhile: &str) -> Option<String> {
    // So that this test, and not the clock, says when it goes on.
    database.sql(&format!("ALTER FUNCTION outbox.{function}(interval) SET lock_timeout = '1min'"));
    let mut other = database.sync();
    other.batch_execute("BEGIN; SELECT pg_advisory_xact_lock(outbox.tick_lock_key())").unwrap();
    thread::scope(|scope| {
        let retired = scope.spawn(|| database.value(&format!("outbox.{function}('0')::text")));
        while !database.value::<bool>(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
                            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))",
        ) {
            assert!(!retired.is_finished(), "it did not come to the tick lock");
            thread::yield_now();
        }
        other.batch_execute(&format!("{meanwhile}; COMMIT")).unwrap();
        retired.join().unwrap()
    })
}

#[test]
fn a_subscription_created_after_the_first_look_finds_all_that_was_kept() {
    let database = with_a_delivered_leaf();
    let create = "INSERT INTO outbox.subscriptions (name) VALUES ('new');
        INSERT INTO outbox.cursors (subscription, shard, tick)
        SELECT 'new', shard, 0 FROM generate_series(0, 15) shard";
    assert_eq!(while_it_waits(&database, "retire_partition", create), None);
    assert_eq!(database.emitted().len(), 12);
}

#[test]
fn a_rewind_after_the_first_look_is_seen_too() {
    let database = with_a_delivered_leaf();
    let rewind = "UPDATE outbox.cursors SET tick = 0";
    assert_eq!(while_it_waits(&database, "retire_partition", rewind), None);
    pass(&database);
    assert_eq!(
        while_it_waits(&database, "retire_partition", "SELECT 1").as_deref(),
        Some("events_s1")
    );
}

#[test]
fn a_rewind_after_the_first_look_is_seen_by_a_purge_too() {
    for function in ["purge_events", "purge_default_partition"] {
        let database = with_small_leaves(1);
        emit(&database, 12);
        pass(&database);
        let rewind = "UPDATE outbox.cursors SET tick = 0";
        assert_eq!(while_it_waits(&database, function, rewind).as_deref(), Some("0"));
        assert_eq!(database.emitted().len(), 12);
    }
}

#[test]
fn retention_looks_at_no_row_and_locks_one_leaf() {
    let database = with_small_leaves(40);
    emit(&database, 12);
    pass(&database);
    let mut conn = database.sync();
    conn.transaction::<_, diesel::result::Error, _>(|conn| {
        assert!(Option::<String>::of("outbox.retire_partition('0')", conn)?.is_some());
        let locked = Vec::<String>::of(
            "ARRAY(SELECT DISTINCT l.relation::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                   WHERE l.pid = pg_backend_pid() AND c.relkind = 'r' AND c.relname LIKE 'events%')",
            conn,
        )?;
        assert_eq!(locked, ["outbox.events_s1"]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn forty_leaves_go_one_after_the_other() {
    let database = with_small_leaves(42);
    emit(&database, 405);
    pass(&database);
    let mut retired = 0;
    while retire(&database).is_some() {
        retired += 1;
    }
    assert_eq!(retired, 40);
    // 405 events from seq 2 on: to 406, and the leaf of 401 to 410 is the current one.
    assert_eq!(database.emitted().len(), 6);
    while database.value::<Option<String>>("outbox.drop_retired_partition()").is_some() {}
    assert_eq!(leaves(&database), ["events_s401", "events_s411"]);
}

#[test]
fn a_retired_leaf_with_rows_again_is_not_dropped() {
    let database = with_a_delivered_leaf();
    retire(&database).unwrap();
    database.sql(
        "INSERT INTO outbox.events (seq, topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES (5, 'order', 'order', 'restored by hand', 'order.created', '{}')",
    );
    let refused =
        database.sync().batch_execute("SELECT outbox.drop_retired_partition()").unwrap_err();
    assert!(refused.to_string().contains("has rows again"), "{refused}");
    assert_eq!(leaves(&database).len(), 4);
}

#[test]
fn a_leaf_that_was_detached_by_hand_is_nobodys_business_any_more() {
    let database = with_a_delivered_leaf();
    retire(&database).unwrap();
    database.sql("ALTER TABLE outbox.events DETACH PARTITION outbox.events_s1");
    assert_eq!(database.value::<Option<String>>("outbox.drop_retired_partition()"), None);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.retired_partitions"), 0);
    assert!(database.value::<bool>("SELECT to_regclass('outbox.events_s1') IS NOT NULL"));
}

#[test]
fn operators_see_in_which_state_each_partition_is() {
    let database = with_small_leaves(4);
    emit(&database, 12);
    let states =
        "ARRAY(SELECT coalesce(from_seq::text, '-') || ' ' || state FROM outbox.partitions)";
    let seen = |database: &TestDatabase| database.value::<Vec<String>>(states);
    assert_eq!(seen(&database), ["1 current", "11 current", "21 ahead", "31 ahead", "- default"]);
    pass(&database);
    assert_eq!(seen(&database), ["1 delivered", "11 current", "21 ahead", "31 ahead", "- default"]);
    retire(&database).unwrap();
    assert_eq!(seen(&database), ["1 retired", "11 current", "21 ahead", "31 ahead", "- default"]);
    assert!(database.value::<bool>("SELECT bool_and(bytes > 0) FROM outbox.partitions"));
}
