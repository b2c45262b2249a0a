//! ops/roles.sql: each role can do its work, and nothing else.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel::{Connection as _, PgConnection};
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{Emit as _, EmitError, Emitted, Relay, RelayHandle, migrate};
use outbox_tests::{SOON, Scalar as _, TestDatabase, TestEvent, eventually, quick};

use crate::leaves::{emit, go_to, leaves, pass, with_small_leaves};
use crate::log::Log;

const ROLES: &str = include_str!("../../ops/roles.sql");

/// A role that logs in and is a member of one of ours, for as long as the test runs.
struct Member<'a> {
    database: &'a TestDatabase,
    name: String,
}

impl<'a> Member<'a> {
    fn of(role: &str, database: &'a TestDatabase) -> Self {
        database.sql(ROLES);
        let name = format!("{}_{role}", database.name());
        database.sql(&format!(
            "DROP ROLE IF EXISTS {name}; CREATE ROLE {name} LOGIN; GRANT {role} TO {name}"
        ));
        Self { database, name }
    }

    fn connect(&self) -> PgConnection {
        PgConnection::establish(&self.database.url_as(&self.name)).unwrap()
    }

    async fn relay(&self, broker: &RecordingPublisher) -> RelayHandle {
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(
            self.database.url_as(&self.name),
        );
        let pool = bb8::Pool::builder().max_size(1).build(manager).await.unwrap();
        Relay::builder(pool)
            .publisher(broker.clone())
            .options(quick().retention(Duration::ZERO))
            .spawn()
            .unwrap()
    }

    fn assert_refused(&self, statements: &[&str]) {
        for statement in statements {
            let refused = self.connect().batch_execute(statement).expect_err(statement);
            assert!(refused.to_string().contains("permission denied"), "{statement}: {refused}");
        }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        let name = &self.name;
        self.database.sql(&format!("DROP OWNED BY {name}; DROP ROLE {name}"));
    }
}

#[test]
fn the_roles_can_be_made_again_and_again() {
    let database = TestDatabase::new();
    database.sql(ROLES);
    database.sql(ROLES);
}

#[test]
fn an_emitter_emits_one_event_or_many_with_keys_or_without() {
    let database = TestDatabase::new();
    let emitter = Member::of("outbox_emitter", &database);
    let mut conn = emitter.connect();
    let again = conn
        .transaction::<_, EmitError, _>(|conn| {
            conn.emit(&TestEvent::new("a").header("tenant", "acme"))?;
            conn.emit_all(&[TestEvent::new("b"), TestEvent::new("c")])?;
            conn.emit(&TestEvent::new("d").dedup_key("d"))?;
            conn.emit_all(&[
                TestEvent::new("e").dedup_key("e"),
                TestEvent::new("f").dedup_key("f"),
            ])?;
            conn.emit(&TestEvent::new("d").dedup_key("d"))
        })
        .unwrap();
    assert!(matches!(again, Emitted::Duplicate { .. }));
    // In the default partition too.
    go_to(&database, 3_000_000);
    conn.transaction(|conn| conn.emit(&TestEvent::new("g"))).unwrap();
    assert_eq!(database.emitted(), ["a", "b", "c", "d", "e", "f", "g"]);
}

#[test]
fn an_emitter_can_neither_choose_a_seq_nor_touch_what_is_there() {
    let database = TestDatabase::new();
    let emitter = Member::of("outbox_emitter", &database);
    let insert = |column: &str, value: &str| {
        format!(
            "INSERT INTO outbox.events ({column}, topic, aggregate_type, aggregate_id, event_type, payload)
             VALUES ({value}, 'order', 'order', '1', 'order.created', '{{}}')"
        )
    };
    emitter.assert_refused(&[
        &insert("seq", "7"),
        &insert("xid", "'7'"),
        &insert("created_at", "'2000-01-01'"),
        "COPY outbox.events (seq, topic, aggregate_type, aggregate_id, event_type, payload) FROM STDIN",
        "INSERT INTO outbox.events_s1 (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'a', 'a', 'a', '{}')",
        "SELECT FROM outbox.events",
        "UPDATE outbox.events SET topic = 'a'",
        "DELETE FROM outbox.events",
        "TRUNCATE outbox.events",
        "SELECT setval('outbox.event_seq', 1)",
        "UPDATE outbox.dedup_keys SET event_id = gen_random_uuid()",
        "DELETE FROM outbox.dedup_keys",
        "SELECT FROM outbox.cursors",
        "SELECT FROM outbox.parked",
        "INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after) VALUES (1, 1, '3', '3:3:', 0, 0)",
        "SELECT outbox.keep_partitions_ahead()",
        "SELECT outbox.create_partition(1, 2)",
        "SELECT outbox.retire_partition('0')",
        "SELECT outbox.purge_events('0')",
        "SELECT outbox.install_wake()",
        "SELECT outbox.remove_wake()",
        "SELECT outbox.fall_asleep('1 s')",
        "SELECT outbox.wake_up()",
        "SELECT setval('outbox.asleep_until', 1)",
        "CREATE TABLE outbox.mine ()",
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_delivers_retries_and_looks_after_partitions_it_does_not_own() {
    let database = with_small_leaves(2);
    database.sql("INSERT INTO outbox.dedup_keys (dedup_key, event_id, created_at) VALUES ('old', gen_random_uuid(), '2000-01-01')");
    let member = Member::of("outbox_relay", &database);
    emit(&database, 12);
    let broker = RecordingPublisher::default();
    let once = AtomicBool::new(true);
    broker.reject(move |event| {
        let is_first = event.aggregate_id() == "3" && once.swap(false, Ordering::Relaxed);
        is_first.then(|| "not yet".to_owned())
    });
    let relay = member.relay(&broker).await;
    eventually(SOON, async || (broker.delivered().len() == 12).then_some(())).await;
    eventually(SOON, async || (leaves(&database).len() >= 4).then_some(())).await;
    relay.shutdown().await;
    pass(&database);
    // Retention comes first when a relay starts.
    let relay = member.relay(&broker).await;
    let is_gone = "SELECT to_regclass('outbox.events_s1') IS NULL AND NOT EXISTS (SELECT FROM outbox.dedup_keys)";
    eventually(SOON, async || database.value::<bool>(is_gone).then_some(())).await;
    relay.shutdown().await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.parked"), 0);
}

#[test]
fn a_relay_changes_no_event_and_no_table() {
    let database = TestDatabase::new();
    let relay = Member::of("outbox_relay", &database);
    relay.assert_refused(&[
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'a', 'a', 'a', '{}')",
        "UPDATE outbox.events SET topic = 'a'",
        "DELETE FROM outbox.events",
        "TRUNCATE outbox.events",
        "SELECT nextval('outbox.event_seq')",
        "SELECT setval('outbox.event_seq', 1)",
        "DELETE FROM outbox.ticks",
        "UPDATE outbox.ticks SET seq_before = 0",
        "INSERT INTO outbox.cursors (subscription, shard, tick) VALUES ('default', 0, 0)",
        "DELETE FROM outbox.cursors",
        "INSERT INTO outbox.subscriptions (name) VALUES ('a')",
        "UPDATE outbox.subscriptions SET name = 'a'",
        "DELETE FROM outbox.subscriptions",
        "DELETE FROM outbox.topic_filters",
        "UPDATE outbox.meta SET seq_floor = 0",
        "SELECT FROM outbox.dedup_keys",
        "UPDATE outbox.upkeep SET failed = 0",
        "DELETE FROM outbox.retired_partitions",
        "SELECT outbox.create_partition(1, 2)",
        "SELECT outbox.end_exclusion()",
        "SELECT outbox.plan_partitions()",
        "CREATE TABLE outbox.mine ()",
    ]);
    let mut conn = relay.connect();
    let refused = conn.batch_execute("DROP TABLE outbox.events_s1").unwrap_err();
    assert!(refused.to_string().contains("must be owner"), "{refused}");
}

#[test]
fn a_temporary_table_named_like_a_catalog_fools_no_function() {
    let database = with_small_leaves(4);
    emit(&database, 12);
    pass(&database);
    let relay = Member::of("outbox_relay", &database);
    let mut conn = relay.connect();
    conn.batch_execute(
        "CREATE TEMPORARY TABLE pg_constraint AS SELECT 'outbox.events_default'::regclass::oid AS conrelid,
             'rows_lie_outside_the_next_ranges'::name AS conname, true AS convalidated;
         CREATE TEMPORARY TABLE pg_class AS SELECT * FROM pg_catalog.pg_class;
         GRANT ALL ON pg_class, pg_constraint TO PUBLIC",
    )
    .unwrap();
    let call = "SELECT problem IS NULL AND made = 1 FROM outbox.keep_partitions_ahead()";
    assert!(bool::of(call, &mut conn).unwrap());
    let call = "outbox.retire_partition('0') = 'events_s1' AND outbox.drop_retired_partition() = 'events_s1'";
    assert!(bool::of(call, &mut conn).unwrap());
}

#[tokio::test]
async fn a_relay_that_may_execute_no_function_says_so_once_and_delivers_all_the_same() {
    let log = Log::default();
    let _logging = log.keep_warnings();
    let database = with_small_leaves(1);
    let member = Member::of("outbox_relay", &database);
    // By this database's own group, as the one of roles.sql is shared.
    let name = &member.name;
    database.sql(&format!(
        "REVOKE outbox_relay FROM {name};
         GRANT USAGE ON SCHEMA outbox TO {name};
         GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO {name};
         GRANT SELECT ON SEQUENCE outbox.event_seq TO {name};
         GRANT INSERT, UPDATE, DELETE ON outbox.ticks, outbox.cursors, outbox.relays, outbox.parked TO {name}"
    ));
    let broker = RecordingPublisher::default();
    let relay = member.relay(&broker).await;
    emit(&database, 30);
    eventually(SOON, async || (broker.delivered().len() == 30).then_some(())).await;
    assert_eq!(leaves(&database), ["events_s1"], "the rest is in the default partition");
    // A new connection, a new round of upkeep, and no more to say.
    database.sql(&format!(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{name}'"
    ));
    emit(&database, 1);
    eventually(SOON, async || (broker.delivered().len() == 31).then_some(())).await;
    relay.shutdown().await;
    let log = log.text();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("lacks rights")).collect();
    assert_eq!(warnings.len(), 1, "{log}");
    for function in
        ["keep_partitions_ahead()", "retire_partition(interval)", "delete_ticks(interval)"]
    {
        let grant = format!("GRANT EXECUTE ON FUNCTION outbox.{function} TO {name}");
        assert!(warnings[0].contains(&grant), "{grant}: {log}");
    }
    assert!(!log.contains("upkeep failed"), "{log}");
}

#[test]
fn an_operator_sees_everything_settles_failures_and_manages_subscriptions() {
    let database = TestDatabase::new();
    emit(&database, 1);
    let operator = Member::of("outbox_operator", &database);
    operator
        .connect()
        .batch_execute(
            "SELECT FROM outbox.partitions;
             SELECT FROM outbox.event_status;
             SELECT FROM outbox.dead_letters;
             SELECT FROM outbox.dedup_keys;
             UPDATE outbox.parked SET next_attempt_at = clock_timestamp(), dead = false;
             DELETE FROM outbox.parked;
             INSERT INTO outbox.subscriptions (name) VALUES ('new');
             INSERT INTO outbox.topic_filters (subscription, from_tick, topics) VALUES ('new', 0, NULL);
             INSERT INTO outbox.cursors (subscription, shard, tick) VALUES ('new', 0, 0);
             UPDATE outbox.cursors SET tick = 0;
             DELETE FROM outbox.subscriptions WHERE name = 'new'",
        )
        .unwrap();
    operator.connect().batch_execute("SELECT outbox.take_tick()").unwrap();
    operator.assert_refused(&[
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'a', 'a', 'a', '{}')",
        "UPDATE outbox.events SET topic = 'a'",
        "DELETE FROM outbox.events",
        "SELECT setval('outbox.event_seq', 1)",
        "DELETE FROM outbox.ticks",
        "UPDATE outbox.meta SET seq_floor = 0",
        "SELECT outbox.create_partition(1, 2)",
        "CREATE TABLE outbox.mine ()",
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_without_superuser_as_managed_servers_give_it_runs_everything() {
    let database = TestDatabase::empty();
    let owner = format!("{}_owner", database.name());
    database.sql(&format!(
        "DROP ROLE IF EXISTS {owner};
         CREATE ROLE {owner} LOGIN NOSUPERUSER CREATEROLE;
         ALTER DATABASE {} OWNER TO {owner}",
        database.name()
    ));
    let mut conn = PgConnection::establish(&database.url_as(&owner)).unwrap();
    migrate::run(&mut conn).unwrap();
    conn.batch_execute(ROLES).unwrap();
    conn.batch_execute(ROLES).unwrap();
    go_to(&database, 999_999);
    emit(&database, 2);

    let member = Member::of("outbox_relay", &database);
    let broker = RecordingPublisher::default();
    let relay = member.relay(&broker).await;
    eventually(SOON, async || (broker.delivered().len() == 2).then_some(())).await;
    relay.shutdown().await;
    pass(&database);
    go_to(&database, 2_900_000);
    let relay = member.relay(&broker).await;
    let done = "SELECT to_regclass('outbox.events_s1') IS NULL AND max(to_seq) > 3000000 FROM outbox.leaves";
    eventually(SOON, async || database.value::<bool>(done).then_some(())).await;
    relay.shutdown().await;
    drop(member);
    while migrate::revert(&mut conn).unwrap().is_some() {}
    drop(conn);
    database.sql(&format!(
        "ALTER DATABASE {} OWNER TO CURRENT_USER; DROP OWNED BY {owner}; DROP ROLE {owner}",
        database.name()
    ));
}
