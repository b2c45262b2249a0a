//! What an emit costs the server: one prepared statement per shape, one leaf, few rights.

use diesel::connection::SimpleConnection as _;
use diesel::{Connection as _, PgConnection, RunQueryDsl as _};
use diesel_async::AsyncConnection as _;
use outbox_diesel::{AsyncEmit, Emit, EmitError};
use outbox_tests::{Scalar, TestDatabase, TestEvent};

fn slice(length: i32) -> Vec<TestEvent> {
    (0..length).map(TestEvent::new).collect()
}

fn keyed_slice(prefix: &str, length: i32) -> Vec<TestEvent> {
    (0..length).map(|n| TestEvent::new(n).dedup_key(format!("{prefix}{n}"))).collect()
}

/// One for each of: one event, with a dedup key, a slice, a slice with dedup keys.
const SHAPES: i64 = 4;
const PREPARED: &str = "SELECT count(*) FROM pg_prepared_statements
    WHERE statement LIKE '%INTO outbox.events%' AND statement NOT LIKE '%pg_prepared_statements%'";

#[test]
fn each_shape_is_prepared_once_per_connection() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    for round in ["a", "b", "c"] {
        conn.transaction::<_, EmitError, _>(|conn| {
            conn.emit(&TestEvent::new(round))?;
            conn.emit(&TestEvent::new(1).header("n", "v").topic("another"))?;
            conn.emit(&TestEvent::new(1).dedup_key(round))?;
            for length in [1, 2, 50] {
                conn.emit_all(&slice(length))?;
                conn.emit_all(&keyed_slice(&format!("{round}-{length}-"), length))?;
            }
            Ok(())
        })
        .unwrap();
    }
    assert_eq!(i64::of(PREPARED, &mut conn).unwrap(), SHAPES);
}

#[tokio::test]
async fn each_shape_is_prepared_once_per_asynchronous_connection() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    for round in ["a", "b", "c"] {
        conn.transaction::<_, EmitError, _>(async |conn| {
            conn.emit(&TestEvent::new(round)).await?;
            conn.emit(&TestEvent::new(1).header("n", "v").topic("another")).await?;
            conn.emit(&TestEvent::new(1).dedup_key(round)).await?;
            for length in [1, 2, 50] {
                conn.emit_all(&slice(length)).await?;
                conn.emit_all(&keyed_slice(&format!("{round}-{length}-"), length)).await?;
            }
            Ok(())
        })
        .await
        .unwrap();
    }
    let prepared: i64 = diesel_async::RunQueryDsl::get_result(
        diesel::select(diesel::dsl::sql::<diesel::sql_types::BigInt>(&format!("({PREPARED})"))),
        &mut conn,
    )
    .await
    .unwrap();
    assert_eq!(prepared, SHAPES);
}

#[test]
fn an_emit_locks_the_log_and_one_leaf_however_many_there_are() {
    let database = TestDatabase::new();
    database.sql(
        "SELECT outbox.create_partition(n * 1000000::bigint, (n + 1) * 1000000::bigint)
         FROM generate_series(3, 59) n",
    );
    database
        .sync()
        .transaction::<_, EmitError, _>(|conn| {
            conn.emit(&TestEvent::new(1))?;
            conn.emit_all(&slice(2))?;
            assert_eq!(locked_tables(conn), ["outbox.events", "outbox.events_s1"]);
            Ok(())
        })
        .unwrap();
}

fn locked_tables(conn: &mut PgConnection) -> Vec<String> {
    let query = "SELECT ARRAY(
        SELECT c.oid::regclass::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
        WHERE l.pid = pg_backend_pid() AND c.relkind IN ('r', 'p')
            AND c.relnamespace = 'outbox'::regnamespace
        ORDER BY 1)";
    Scalar::of(query, conn).unwrap()
}

#[test]
fn an_event_without_a_partition_lands_in_the_default_one() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let leaf = "SELECT tableoid::regclass::text FROM outbox.events ORDER BY seq DESC LIMIT 1";
    conn.transaction(|conn| conn.emit(&TestEvent::new(1))).unwrap();
    assert_eq!(database.value::<String>(leaf), "outbox.events_s1");
    // Maintenance stood still until the sequence had left the last partition behind.
    database.sql("SELECT setval('outbox.event_seq', 2999999)");
    conn.transaction(|conn| conn.emit(&TestEvent::new(2))).unwrap();
    conn.transaction(|conn| conn.emit_all(&[TestEvent::new(3)])).unwrap();
    assert_eq!(database.value::<String>(leaf), "outbox.events_default");
    assert_eq!(database.emitted(), ["1", "2", "3"]);
}

#[test]
fn a_plain_insert_is_a_valid_emit() {
    let database = TestDatabase::new();
    database.sql(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', 'order', 'a', 'order.created', '{}'),
                ('order', 'order', 'b', 'order.created', '{}')",
    );
    database.sync().transaction(|conn| conn.emit(&TestEvent::new("c"))).unwrap();
    assert_eq!(database.emitted(), ["a", "b", "c"]);
    // What the relay needs, whoever inserted.
    let complete = "SELECT count(*) FROM outbox.events
        WHERE seq > 1 AND xid < pg_current_xact_id() AND shard BETWEEN 0 AND 15
            AND event_version = 1 AND headers::text = '{}' AND created_at <= clock_timestamp()";
    assert_eq!(database.value::<i64>(complete), 3);
    assert_eq!(database.value::<i64>("SELECT count(DISTINCT id) FROM outbox.events"), 3);
}

#[test]
fn the_transaction_id_is_assigned_before_the_sequence_value_is_drawn() {
    // A sequence value drawn first could lie below the seq_before of a tick that does not know the
    // transaction: the event would be in no diff.
    let database = TestDatabase::new();
    let default: String = database.value(
        "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef d
         JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
         WHERE d.adrelid = 'outbox.events'::regclass AND a.attname = 'seq'",
    );
    let (xid, seq) = (default.find("pg_current_xact_id"), default.find("nextval"));
    assert!(xid.unwrap() < seq.unwrap(), "{default}");
}

#[test]
fn a_role_that_may_only_insert_emits() {
    let database = TestDatabase::new();
    let role = format!("{}_producer", database.name());
    database.sql(&format!(
        "CREATE ROLE {role} LOGIN;
         GRANT USAGE ON SCHEMA outbox TO {role};
         GRANT USAGE ON SEQUENCE outbox.event_seq TO {role};
         GRANT INSERT ON outbox.events TO {role};
         GRANT SELECT, INSERT ON outbox.dedup_keys TO {role}",
    ));
    let mut conn = PgConnection::establish(&database.url_as(&role)).unwrap();
    conn.transaction::<_, EmitError, _>(|conn| {
        conn.emit(&TestEvent::new("a"))?;
        conn.emit(&TestEvent::new("b").dedup_key("b"))?;
        conn.emit(&TestEvent::new("b").dedup_key("b"))?;
        conn.emit_all(&keyed_slice("c", 2))
    })
    .unwrap();
    assert!(conn.batch_execute("SELECT FROM outbox.events").is_err());
    assert!(diesel::sql_query("DELETE FROM outbox.dedup_keys").execute(&mut conn).is_err());
    assert_eq!(database.emitted(), ["a", "b", "0", "1"]);
}
