//! Partitions ahead of the sequence: enough of them, and an event that finds none is kept.

use std::thread;

use diesel::Connection as _;
use diesel::connection::SimpleConnection as _;
use outbox_diesel::Emit as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, Scalar as _, TestDatabase, TestEvent, eventually};

use crate::leaves::{emit, go_to, homes, insert, keep_ahead, leaves};

/// Steps until there are enough partitions.
fn keep_all_ahead(database: &TestDatabase) {
    while keep_ahead(database).0 > 0 {}
}

/// The timeline of a database that emits this many events a day.
fn with_daily_traffic(events: i64) -> TestDatabase {
    let database = TestDatabase::new();
    database.sql(&format!(
        "INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after, ticked_at)
         SELECT (extract(epoch FROM at) * 1000000)::bigint, 0, pg_current_xact_id(), pg_current_snapshot(), seq, seq, at
         FROM (VALUES (clock_timestamp() - interval '23 hours', 0), (clock_timestamp(), {events} * 23 / 24)) t (at, seq)"
    ));
    go_to(&database, events);
    database
}

const WIDEST_AHEAD: &str =
    "SELECT max(to_seq - from_seq) FROM outbox.partitions WHERE state = 'ahead'";
const AHEAD: &str =
    "SELECT max(to_seq) - pg_sequence_last_value('outbox.event_seq') FROM outbox.leaves";

#[test]
fn a_new_outbox_has_enough_partitions() {
    assert_eq!(keep_ahead(&TestDatabase::new()), (0, None));
}

#[test]
fn two_days_of_traffic_are_ahead_in_ranges_of_about_a_day() {
    let database = with_daily_traffic(2_900_000);
    keep_all_ahead(&database);
    let (width, ahead): (i64, i64) = (database.value(WIDEST_AHEAD), database.value(AHEAD));
    assert!((2_800_000..3_000_000).contains(&width), "{width}");
    assert!(ahead >= 2 * width && ahead < 4 * width, "{ahead}");
}

#[test]
fn a_range_holds_at_least_100_thousand_events_and_at_most_20_million() {
    let slow = with_daily_traffic(10);
    go_to(&slow, 2_900_000);
    keep_all_ahead(&slow);
    let narrow: i64 = slow.value("SELECT min(to_seq - from_seq) FROM outbox.leaves");
    assert_eq!(narrow, 100_000);

    let fast = with_daily_traffic(50_000_000);
    keep_all_ahead(&fast);
    assert_eq!(fast.value::<i64>(WIDEST_AHEAD), 20_000_000);
    assert!(fast.value::<i64>(AHEAD) >= 2 * 49_000_000, "two days are more than two ranges");
}

#[test]
fn a_sequence_that_was_set_far_forward_is_no_traffic() {
    let database = TestDatabase::new();
    emit(&database, 1);
    database.sql("SELECT outbox.take_tick()");
    go_to(&database, 5_000_000_000_000_000_000);
    emit(&database, 1);
    database.sql("SELECT outbox.take_tick()");
    keep_all_ahead(&database);
    assert!(leaves(&database).len() < 80, "{}", leaves(&database).len());
}

#[test]
fn relays_that_look_at_once_make_each_partition_once() {
    let database = TestDatabase::new();
    go_to(&database, 2_900_000);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let problem: Option<String> =
                        database.value("SELECT problem FROM outbox.keep_partitions_ahead()");
                    assert_eq!(problem, None);
                }
            });
        }
    });
    keep_all_ahead(&database);
    assert_eq!(leaves(&database)[3..], ["events_s3000000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_in_the_default_partition_are_delivered_stay_there_and_block_no_new_range() {
    let database = TestDatabase::new();
    go_to(&database, 3_000_000);
    emit(&database, 3);
    assert_eq!(homes(&database), ["outbox.events_default"; 3]);
    keep_all_ahead(&database);
    let made = leaves(&database).split_off(3);
    // The last seq drawn is 3,000,002.
    assert_eq!(made, ["events_s8000003", "events_s8100003"], "at least five million above");
    emit(&database, 1);
    go_to(&database, 8_000_003);
    emit(&database, 1);
    let mut expected = vec!["outbox.events_default"; 4];
    expected.push("outbox.events_s8000003");
    assert_eq!(homes(&database), expected);

    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || (broker.delivered().len() == 5).then_some(())).await;
    assert_eq!(homes(&database), expected);
    relay.shutdown().await;
}

#[test]
fn a_row_that_somebody_put_into_the_next_range_does_not_block_the_ranges_behind_it() {
    let database = TestDatabase::new();
    go_to(&database, 2_900_000);
    database.sql(
        "INSERT INTO outbox.events (seq, topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES (3000007, 'order', 'order', 'by hand', 'order.created', '{}')",
    );
    assert_eq!(keep_ahead(&database), (1, None));
    assert_eq!(leaves(&database)[3], "events_s3000008");
}

#[test]
fn an_empty_table_in_the_way_is_replaced_and_one_with_rows_is_named() {
    let database = TestDatabase::new();
    go_to(&database, 2_900_000);
    database.sql("CREATE TABLE outbox.events_s3000000 (seq bigint)");
    assert_eq!(keep_ahead(&database), (1, None));

    let database = TestDatabase::new();
    go_to(&database, 2_900_000);
    database.sql("CREATE TABLE outbox.events_s3000000 AS SELECT 1 AS seq");
    let (made, problem) = keep_ahead(&database);
    assert_eq!(made, 0);
    assert!(problem.unwrap().contains("outbox.events_s3000000"));
    database.sync().transaction(|conn| conn.emit(&TestEvent::new(1))).unwrap();
}

#[test]
fn tries_that_fail_become_rare_and_success_forgets_them() {
    let database = TestDatabase::new();
    go_to(&database, 3_000_000);
    let mut writer = database.sync();
    writer.batch_execute(&format!("BEGIN; {}", insert("open"))).unwrap();
    let pause = "SELECT round(extract(epoch FROM next_try_at - clock_timestamp()))::bigint FROM outbox.upkeep";
    for expected in [30, 60, 120] {
        let (made, problem) = keep_ahead(&database);
        assert_eq!(made, 0);
        assert!(problem.unwrap().contains("lock timeout"));
        let pause: i64 = database.value(pause);
        assert!((expected - 10..=expected).contains(&pause), "{pause}");
        let at_once: i64 =
            database.value("SELECT made::bigint FROM outbox.keep_partitions_ahead()");
        assert_eq!(at_once, 0);
    }
    writer.batch_execute("COMMIT").unwrap();
    assert_eq!(keep_ahead(&database), (1, None));
    assert_eq!(database.value::<i64>("SELECT failed::bigint FROM outbox.upkeep"), 0);
}

#[test]
fn a_call_leaves_no_setting_behind() {
    let database = TestDatabase::new();
    go_to(&database, 2_900_000);
    let mut conn = database.sync();
    conn.batch_execute("SELECT outbox.keep_partitions_ahead(), outbox.retire_partition('0')")
        .unwrap();
    let left = String::of(
        "concat(current_setting('lock_timeout'), ' ', current_setting('search_path'), ' ', current_setting('row_security'))",
        &mut conn,
    );
    assert_eq!(left.unwrap(), "0 \"$user\", public on");
}
