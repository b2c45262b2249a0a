//! What the inbox forgets, and what it makes of that.

use std::time::{Duration, SystemTime};

use diesel::result::Error;
use diesel::{Connection as _, PgConnection, QueryResult};
use diesel_async::SimpleAsyncConnection as _;
use outbox_diesel::inbox::{self, Forgotten, Handled, Inbox, RETENTION};
use outbox_tests::{SOON, TestDatabase, eventually};
use uuid::{NoContext, Timestamp, Uuid};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// An id as made that long ago.
fn id_from(ago: Duration) -> Uuid {
    let then = SystemTime::now() - ago;
    let since = then.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    Uuid::new_v7(Timestamp::from_unix(NoContext, since.as_secs(), since.subsec_nanos()))
}

fn handle(conn: &mut PgConnection, consumer: &str, id: Uuid) -> QueryResult<Handled<()>> {
    Inbox::new(consumer).expect("a good name").once(conn, id, |_| Ok(()))
}

/// As if everything handled so far had been handled that much earlier.
fn age(database: &TestDatabase, by: Duration) {
    let seconds = by.as_secs();
    database.sql(&format!(
        "UPDATE outbox.inbox SET handled_at = handled_at - interval '{seconds} seconds'"
    ));
}

/// The partition of the week that began that long ago or up to a week earlier, with the library's
/// own layout: it makes none for the past.
fn past_week(database: &TestDatabase, ago: Duration) -> String {
    let days = ago.as_secs() / DAY.as_secs();
    let week =
        format!("floor(extract(epoch FROM now() - interval '{days} days') / 604800) * 604800");
    let name: String = database.value(&format!(
        "SELECT 'inbox_w' || to_char(to_timestamp({week}) AT TIME ZONE 'UTC', 'YYYYMMDD')"
    ));
    database.sql(&format!(
        "DO $$ BEGIN EXECUTE format('CREATE TABLE outbox.{name} PARTITION OF outbox.inbox FOR VALUES FROM (%L) TO (%L)',
            outbox.first_id_at(to_timestamp({week})), outbox.first_id_at(to_timestamp({week} + 604800))); END $$"
    ));
    name
}

fn partition_of(database: &TestDatabase, id: Uuid) -> String {
    database.value(&format!(
        "SELECT c.relname::text FROM outbox.inbox i JOIN pg_class c ON c.oid = i.tableoid WHERE event_id = '{id}'"
    ))
}

fn exists(database: &TestDatabase, partition: &str) -> bool {
    database.value(&format!("SELECT to_regclass('outbox.{partition}') IS NOT NULL"))
}

#[test]
fn ids_of_every_kind_are_unique_whichever_partition_holds_them() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let mut ids = vec![Uuid::nil(), Uuid::max(), Uuid::now_v7(), id_from(400 * DAY)];
    ids.extend((0..20).map(|_| Uuid::new_v4()));
    // The last id of one week and the first of the next.
    let next: Uuid = database.value(
        "SELECT outbox.first_id_at(to_timestamp((floor(extract(epoch FROM now()) / 604800) + 1) * 604800))",
    );
    ids.extend([next, Uuid::from_u128(next.as_u128() - 1)]);
    for id in &ids {
        assert_eq!(handle(&mut conn, "billing", *id), Ok(Handled::First(())), "{id}");
        assert_eq!(handle(&mut conn, "billing", *id), Ok(Handled::Duplicate), "{id}");
    }
    let weekly = |id| partition_of(&database, id).starts_with("inbox_w");
    assert!(weekly(ids[2]) && weekly(next), "this week and the next have partitions");
    assert_ne!(partition_of(&database, next), partition_of(&database, ids[ids.len() - 1]));
    assert_eq!(partition_of(&database, Uuid::max()), "inbox_other");
    assert_eq!(partition_of(&database, ids[3]), "inbox_default");
    // Nor does a week that is attached later make an id new.
    let strays = [id_from(Duration::ZERO), next];
    assert_eq!(handle(&mut conn, "billing", strays[0]), Ok(Handled::First(())));
    let week = partition_of(&database, next);
    database.sql(&format!(
        "CREATE TEMP TABLE kept AS SELECT * FROM outbox.{week};
         DROP TABLE outbox.{week};
         INSERT INTO outbox.inbox SELECT * FROM kept"
    ));
    assert_eq!(partition_of(&database, next), "inbox_default");
    assert_eq!(inbox::keep_partitions_ahead(&mut conn), Ok(1));
    assert_eq!(partition_of(&database, next), week);
    assert_eq!(handle(&mut conn, "billing", next), Ok(Handled::Duplicate));
}

#[tokio::test]
async fn partitions_reach_four_weeks_ahead_and_are_made_once() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    assert_eq!(inbox::keep_partitions_ahead_async(&mut conn).await, Ok(0));
    let weeks: i64 = database.value(
        "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE inhparent = 'outbox.inbox'::regclass AND relname LIKE 'inbox\\_w%'",
    );
    assert_eq!(weeks, 5);
    assert_eq!(inbox::forgotten_before_async(&mut conn).await, Ok(None));
    assert_eq!(inbox::drop_partitions_async(&mut conn, RETENTION).await, Ok(0));
}

#[test]
fn a_week_goes_when_all_of_it_was_handled_long_enough_ago_and_not_before() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let week = past_week(&database, 40 * DAY);
    let ids = [id_from(40 * DAY), id_from(40 * DAY)];
    assert_eq!(handle(&mut conn, "billing", ids[0]), Ok(Handled::First(())));
    age(&database, 35 * DAY);
    // An old event that came late: it is its handling that counts.
    assert_eq!(handle(&mut conn, "billing", ids[1]), Ok(Handled::First(())));
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(0));
    assert_eq!(handle(&mut conn, "billing", ids[0]), Ok(Handled::Duplicate));

    age(&database, 35 * DAY);
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(2));
    assert!(!exists(&database, &week), "nobody was in its way");
    let remembered = inbox::forgotten_before(&mut conn).expect("asks").expect("forgot something");
    let age = chrono_age(remembered);
    assert!((30 * DAY..31 * DAY).contains(&age), "{age:?}");
}

fn chrono_age(moment: impl Into<SystemTime>) -> Duration {
    SystemTime::now().duration_since(moment.into()).expect("in the past")
}

#[test]
fn what_may_have_been_forgotten_is_refused_and_not_handled_again() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    past_week(&database, 40 * DAY);
    let (dropped, strayed) = (id_from(40 * DAY), id_from(80 * DAY));
    for id in [dropped, strayed] {
        assert_eq!(handle(&mut conn, "billing", id), Ok(Handled::First(())));
    }
    age(&database, 35 * DAY);
    let kept = id_from(29 * DAY);
    assert_eq!(handle(&mut conn, "billing", kept), Ok(Handled::First(())));
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(2));

    for id in [dropped, strayed, id_from(50 * DAY)] {
        let refused = handle(&mut conn, "billing", id).expect_err("too old to know");
        assert_eq!(Forgotten::in_error(&refused), Some(Forgotten { event_id: id }));
        // And not recorded either.
        let refused = handle(&mut conn, "billing", id).expect_err("too old to know");
        assert_eq!(Forgotten::in_error(&refused), Some(Forgotten { event_id: id }));
    }
    // What is remembered is not forgotten, what is new is not old, and others have forgotten nothing.
    assert_eq!(handle(&mut conn, "billing", kept), Ok(Handled::Duplicate));
    assert_eq!(handle(&mut conn, "billing", id_from(28 * DAY)), Ok(Handled::First(())));
    assert_eq!(handle(&mut conn, "billing", Uuid::now_v7()), Ok(Handled::First(())));
    assert_eq!(handle(&mut conn, "mail", dropped), Ok(Handled::First(())));
}

#[test]
fn ids_that_tell_no_time_are_kept_for_the_retention_and_then_deleted() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let old: Vec<_> = (0..200).map(|_| Uuid::new_v4()).collect();
    // One in the range of time-ordered ids to come.
    let low = Uuid::parse_str("02000000-0000-4000-8000-000000000000").expect("an id");
    // And one that tells a time ahead of the clock: it may come again until then.
    let ahead = Uuid::parse_str("02000000-0000-7000-8000-000000000000").expect("an id");
    for id in old.iter().chain([&low, &ahead]) {
        assert_eq!(handle(&mut conn, "billing", *id), Ok(Handled::First(())));
    }
    assert_eq!(partition_of(&database, low), "inbox_default");
    age(&database, 35 * DAY);
    let young = Uuid::new_v4();
    assert_eq!(handle(&mut conn, "billing", young), Ok(Handled::First(())));
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(201));
    assert_eq!(handle(&mut conn, "billing", ahead), Ok(Handled::Duplicate));
    assert_eq!(handle(&mut conn, "billing", young), Ok(Handled::Duplicate));
    assert_eq!(handle(&mut conn, "billing", low), Ok(Handled::First(())));
}

#[test]
fn a_short_retention_keeps_what_could_not_be_refused_when_it_is_replayed() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let other = Uuid::new_v4();
    let low = Uuid::parse_str("02000000-0000-4000-8000-000000000000").expect("an id");
    let timed = id_from(3 * DAY);
    for id in [other, low, timed] {
        assert_eq!(handle(&mut conn, "billing", id), Ok(Handled::First(())));
    }
    // Twice as long as an outbox would send the two again.
    age(&database, 29 * DAY);
    inbox::drop_partitions(&mut conn, DAY).expect("retention");
    // An operator replays all three.
    for id in [other, low] {
        assert_eq!(handle(&mut conn, "billing", id), Ok(Handled::Duplicate));
    }
    assert_ne!(handle(&mut conn, "billing", timed), Ok(Handled::First(())));
}

#[tokio::test]
async fn retention_waits_for_nobody_and_frees_the_space_while_the_inbox_is_in_use() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let week = past_week(&database, 40 * DAY);
    assert_eq!(handle(&mut conn, "billing", id_from(40 * DAY)), Ok(Handled::First(())));
    age(&database, 35 * DAY);

    let mut open = database.connect().await;
    let insert = format!(
        "BEGIN; INSERT INTO outbox.inbox (consumer, event_id) VALUES ('mail', '{}')",
        Uuid::now_v7()
    );
    open.batch_execute(&insert).await.expect("inserts");
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(1));
    assert!(exists(&database, &week), "it is empty and may stay");
    open.batch_execute("COMMIT").await.expect("commits");
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(0));
    assert!(!exists(&database, &week));
}

async fn somebody_waits_for_a_lock(database: &TestDatabase) {
    let query = "SELECT EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock')";
    eventually(SOON, async || database.value::<bool>(query).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_event_that_is_just_being_handled_is_not_forgotten() {
    let database = TestDatabase::new();
    let week = past_week(&database, 40 * DAY);
    let id = id_from(40 * DAY);
    let mut open = database.connect().await;
    let insert =
        format!("BEGIN; INSERT INTO outbox.inbox (consumer, event_id) VALUES ('billing', '{id}')");
    open.batch_execute(&insert).await.expect("inserts");
    let mut conn = database.sync();
    // With more patience than the function has: the commit below must come within it.
    database.sql("ALTER FUNCTION outbox.drop_inbox_partitions(interval) SET lock_timeout = '20s'");
    let dropping = std::thread::spawn(move || inbox::drop_partitions(&mut conn, RETENTION));
    somebody_waits_for_a_lock(&database).await;
    open.batch_execute("COMMIT").await.expect("commits");
    assert_eq!(dropping.join().expect("no panic"), Ok(0));
    assert!(exists(&database, &week));
    assert_eq!(handle(&mut database.sync(), "billing", id), Ok(Handled::Duplicate));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_event_that_is_just_being_forgotten_is_refused() {
    let database = TestDatabase::new();
    past_week(&database, 40 * DAY);
    let id = id_from(40 * DAY);
    let mut conn = database.sync();
    assert_eq!(handle(&mut conn, "billing", id), Ok(Handled::First(())));
    age(&database, 35 * DAY);
    let mut open = database.connect().await;
    open.batch_execute("BEGIN; SELECT outbox.drop_inbox_partitions('30 days')")
        .await
        .expect("drops");
    let handling = std::thread::spawn(move || handle(&mut conn, "billing", id));
    somebody_waits_for_a_lock(&database).await;
    open.batch_execute("COMMIT").await.expect("commits");
    let refused = handling.join().expect("no panic").expect_err("just forgotten");
    assert_eq!(Forgotten::in_error(&refused), Some(Forgotten { event_id: id }));
}

#[test]
fn retention_of_less_than_a_day_and_under_an_old_snapshot_is_refused() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let refused = inbox::drop_partitions(&mut conn, DAY / 2).expect_err("too short");
    assert!(refused.to_string().contains("at least a day"), "{refused}");
    let refused = conn
        .build_transaction()
        .repeatable_read()
        .run(|conn| inbox::drop_partitions(conn, RETENTION))
        .expect_err("an old snapshot");
    assert!(refused.to_string().contains("READ COMMITTED"), "{refused}");
}

#[test]
fn only_roles_that_were_told_so_may_change_partitions() {
    let database = TestDatabase::new();
    let role = format!("{}_consumer", database.name());
    database.sql(&format!(
        "DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role};
         GRANT SELECT, INSERT ON outbox.inbox, outbox.inbox_forgotten TO {role}"
    ));
    let mut conn = PgConnection::establish(&database.url_as(&role)).expect("connects");
    // Handling needs no more than that.
    assert_eq!(handle(&mut conn, "billing", Uuid::now_v7()), Ok(Handled::First(())));
    assert_eq!(handle(&mut conn, "billing", id_from(3 * DAY)), Ok(Handled::First(())));
    for refused in [
        inbox::keep_partitions_ahead(&mut conn).map(u64::from),
        inbox::drop_partitions(&mut conn, RETENTION),
    ] {
        assert!(matches!(refused, Err(Error::DatabaseError(..))), "{refused:?}");
    }
    database.sql(&format!(
        "GRANT EXECUTE ON FUNCTION outbox.keep_inbox_partitions_ahead(), outbox.drop_inbox_partitions(interval) TO {role}"
    ));
    assert_eq!(inbox::keep_partitions_ahead(&mut conn), Ok(0));
    assert_eq!(inbox::drop_partitions(&mut conn, RETENTION), Ok(0));
    drop(conn);
    database.sql(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}
