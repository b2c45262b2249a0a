//! An event shares the fate of the transaction that emitted it.

use diesel::connection::SimpleConnection as _;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::{Connection as _, PgConnection, QueryResult};
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::{AsyncEmit, Emit, EmitError, MissingAggregateId};
use outbox_tests::{Sent, TestDatabase, TestEvent};

/// What asks the server whether a transaction is open that diesel does not know, and then whether
/// the connection works at all.
const QUESTIONS: [&str; 2] = ["SAVEPOINT outbox_probe; RELEASE SAVEPOINT outbox_probe", "SELECT 1"];

fn with_orders() -> TestDatabase {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE orders (id bigint PRIMARY KEY)");
    database
}

fn insert_order(conn: &mut PgConnection) -> QueryResult<()> {
    conn.batch_execute("INSERT INTO orders VALUES (1)")
}

fn orders(database: &TestDatabase) -> i64 {
    database.value("SELECT count(*) FROM orders")
}

#[test]
fn event_and_business_row_commit_together() {
    let database = with_orders();
    database
        .sync()
        .transaction::<_, EmitError, _>(|conn| {
            insert_order(conn)?;
            conn.emit(&TestEvent::new(1))
        })
        .unwrap();
    assert_eq!((orders(&database), database.emitted()), (1, vec!["1".to_owned()]));
}

#[test]
fn event_and_business_row_roll_back_together() {
    let database = with_orders();
    let refused = database.sync().transaction::<(), Error, _>(|conn| {
        insert_order(conn)?;
        conn.emit(&TestEvent::new(1))?;
        Err(Error::RollbackTransaction)
    });
    assert_eq!(refused, Err(Error::RollbackTransaction));
    assert_eq!((orders(&database), database.emitted()), (0, vec![]));
}

#[test]
fn a_commit_that_fails_takes_the_event_with_it() {
    let database = with_orders();
    database.sql(
        "CREATE TABLE lines (order_id bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED)",
    );
    let mut conn = database.sync();
    let failed = conn.transaction::<_, Error, _>(|conn| {
        conn.batch_execute("INSERT INTO lines VALUES (7)")?;
        Ok(conn.emit(&TestEvent::new(7))?)
    });
    let violated = DatabaseErrorKind::ForeignKeyViolation;
    assert!(matches!(failed, Err(Error::DatabaseError(kind, _)) if kind == violated));
    assert!(database.emitted().is_empty());

    conn.transaction(|conn| conn.emit(&TestEvent::new("next"))).unwrap();
    assert_eq!(database.emitted(), ["next"]);
}

#[test]
fn an_event_of_a_rolled_back_savepoint_is_not_emitted_and_those_around_it_are() {
    let database = TestDatabase::new();
    database
        .sync()
        .transaction::<_, Error, _>(|conn| {
            conn.emit(&TestEvent::new("a"))?;
            let inner = conn.transaction::<(), Error, _>(|conn| {
                conn.emit(&TestEvent::new("b"))?;
                Err(Error::RollbackTransaction)
            });
            assert_eq!(inner, Err(Error::RollbackTransaction));
            conn.emit(&TestEvent::new("c"))?;
            Ok(())
        })
        .unwrap();
    assert_eq!(database.emitted(), ["a", "c"]);
}

#[tokio::test]
async fn savepoints_roll_back_their_events_on_asynchronous_connections_too() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.transaction::<_, Error, _>(async |conn| {
        conn.emit(&TestEvent::new("a")).await?;
        let inner = conn
            .transaction::<(), Error, _>(async |conn| {
                conn.emit(&TestEvent::new("b")).await?;
                Err(Error::RollbackTransaction)
            })
            .await;
        assert_eq!(inner, Err(Error::RollbackTransaction));
        conn.emit(&TestEvent::new("c")).await?;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(database.emitted(), ["a", "c"]);
}

#[test]
fn a_refused_event_leaves_the_transaction_usable() {
    let database = TestDatabase::new();
    database
        .sync()
        .transaction::<_, EmitError, _>(|conn| {
            let refused = conn.emit(&TestEvent::without_aggregate_id());
            let missing = MissingAggregateId { field: "id" };
            assert!(matches!(refused, Err(EmitError::MissingAggregateId(m)) if m == missing));
            let refused = conn.emit_all(&[TestEvent::new("a"), TestEvent::new("")]);
            assert!(matches!(refused, Err(EmitError::InvalidText { .. })));
            conn.emit(&TestEvent::new("b"))
        })
        .unwrap();
    assert_eq!(database.emitted(), ["b"]);
}

#[test]
fn an_aborted_transaction_takes_no_event_and_says_so() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let refused = conn.transaction::<_, EmitError, _>(|conn| {
        conn.batch_execute("SELECT 1 / 0").unwrap_err();
        conn.emit(&TestEvent::new(1))
    });
    let Err(EmitError::Database(Error::DatabaseError(_, cause))) = refused else {
        panic!("{refused:?}");
    };
    assert!(cause.message().contains("current transaction is aborted"), "{}", cause.message());
}

#[test]
fn an_aborted_transaction_begun_by_sql_says_so_too() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    conn.batch_execute("BEGIN").unwrap();
    conn.batch_execute("SELECT 1 / 0").unwrap_err();
    let refused = conn.emit(&TestEvent::new(1));
    assert!(matches!(refused, Err(EmitError::Database(_))), "{refused:?}");
}

#[test]
fn outside_of_a_transaction_nothing_is_sent_but_the_question_whether_there_is_one() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let sent = Sent::default();
    conn.set_instrumentation(sent.clone());
    let refused = conn.emit(&TestEvent::new(1));
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
    let refused = conn.emit_all(&[TestEvent::new(1)]);
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
    assert_eq!(sent.take(), [QUESTIONS, QUESTIONS].concat());
    assert!(database.emitted().is_empty());
}

#[tokio::test]
async fn outside_of_a_transaction_asynchronous_connections_send_nothing_else_either() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    let sent = Sent::default();
    conn.set_instrumentation(sent.clone());
    let refused = conn.emit(&TestEvent::new(1)).await;
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
    let refused = conn.emit_all(&[TestEvent::new(1)]).await;
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
    assert_eq!(sent.take(), [QUESTIONS, QUESTIONS].concat());
    assert!(database.emitted().is_empty());
}

#[test]
fn inside_a_transaction_an_emit_is_one_statement() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let sent = Sent::default();
    conn.transaction::<_, EmitError, _>(|conn| {
        conn.set_instrumentation(sent.clone());
        conn.emit(&TestEvent::new(1))?;
        conn.emit(&TestEvent::new(2).dedup_key("k"))?;
        conn.emit_all(&[TestEvent::new(3), TestEvent::new(4)])
    })
    .unwrap();
    let sent = sent.take();
    assert_eq!(sent.iter().filter(|text| text.contains("INTO outbox.events")).count(), 3);
    assert_eq!(sent.last().map(String::as_str), Some("COMMIT"));
    assert_eq!(sent.len(), 4, "{sent:#?}");
}

#[test]
fn a_transaction_begun_by_sql_counts() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    conn.batch_execute("BEGIN").unwrap();
    conn.emit(&TestEvent::new("a")).unwrap();
    conn.batch_execute("ROLLBACK; BEGIN").unwrap();
    conn.emit_all(&[TestEvent::new("b")]).unwrap();
    conn.batch_execute("COMMIT").unwrap();
    assert_eq!(database.emitted(), ["b"]);
}

#[tokio::test]
async fn a_transaction_begun_by_sql_counts_on_asynchronous_connections_too() {
    use diesel_async::SimpleAsyncConnection as _;

    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.batch_execute("BEGIN").await.unwrap();
    conn.emit(&TestEvent::new("a")).await.unwrap();
    conn.batch_execute("ROLLBACK; BEGIN").await.unwrap();
    conn.emit_all(&[TestEvent::new("b")]).await.unwrap();
    conn.batch_execute("COMMIT").await.unwrap();
    assert_eq!(database.emitted(), ["b"]);
}

#[test]
fn a_second_connection_is_not_in_the_transaction_of_the_first() {
    let database = with_orders();
    let mut other = database.sync();
    let refused = database.sync().transaction::<(), EmitError, _>(|conn| {
        insert_order(conn)?;
        other.emit(&TestEvent::new(1))?;
        Ok(())
    });
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
    assert_eq!((orders(&database), database.emitted()), (0, vec![]));
}

#[tokio::test]
async fn a_second_pooled_connection_is_not_in_the_transaction_of_the_first() {
    let database = TestDatabase::new();
    let pool = database.pool(2).await;
    let mut conn = pool.get().await.unwrap();
    let refused = conn
        .transaction::<(), EmitError, _>(async |_| {
            let mut other = pool.get().await.expect("the pool has two connections");
            other.emit(&TestEvent::new(1)).await?;
            Ok(())
        })
        .await;
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
    assert!(database.emitted().is_empty());
}

#[test]
fn a_lost_connection_is_not_mistaken_for_a_missing_transaction() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    terminate_all(&database);
    let failed = conn.emit(&TestEvent::new(1));
    assert!(matches!(failed, Err(EmitError::Database(_))), "{failed:?}");
}

#[tokio::test]
async fn a_lost_asynchronous_connection_is_not_mistaken_for_a_missing_transaction() {
    let database = TestDatabase::new();
    let mut conn: AsyncPgConnection = database.connect().await;
    terminate_all(&database);
    let failed = conn.emit(&TestEvent::new(1)).await;
    assert!(matches!(failed, Err(EmitError::Database(_))), "{failed:?}");
}

fn terminate_all(database: &TestDatabase) {
    TestDatabase::empty().sql(&format!(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{}'",
        database.name()
    ));
}
