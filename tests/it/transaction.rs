//! `outbox_transaction`: a transaction whose handle emits.

use diesel::PgConnection;
use diesel::connection::SimpleConnection as _;
use diesel::result::Error;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection as _};
use outbox_diesel::{AsyncOutboxTransaction, EmitError, Emitted, OutboxTransaction};
use outbox_tests::{TestDatabase, TestEvent};

fn with_orders() -> TestDatabase {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE orders (id bigint PRIMARY KEY)");
    database
}

fn orders(database: &TestDatabase) -> i64 {
    database.value("SELECT count(*) FROM orders")
}

/// What an application has: it knows nothing of handles.
fn insert_order(conn: &mut PgConnection, id: i64) -> Result<(), Error> {
    conn.batch_execute(&format!("INSERT INTO orders VALUES ({id})"))
}

async fn insert_order_async(conn: &mut AsyncPgConnection, id: i64) -> Result<(), Error> {
    conn.batch_execute(&format!("INSERT INTO orders VALUES ({id})")).await
}

#[test]
fn the_handle_is_the_connection_and_emits() {
    let database = with_orders();
    let emitted = database
        .sync()
        .outbox_transaction::<_, EmitError, _>(|tx| {
            insert_order(tx, 1)?;
            let order = diesel::sql_query("INSERT INTO orders VALUES (2)");
            diesel::RunQueryDsl::execute(order, &mut **tx)?;
            tx.emit(&TestEvent::new(1))?;
            tx.emit_all(&[TestEvent::new(2), TestEvent::new(3)])
        })
        .unwrap();
    assert!(matches!(emitted[..], [Emitted::New(_), Emitted::New(_)]));
    assert_eq!((orders(&database), database.emitted().len()), (2, 3));
}

#[test]
fn an_error_rolls_the_event_back() {
    let database = with_orders();
    let refused = database.sync().outbox_transaction::<(), Error, _>(|tx| {
        insert_order(tx, 1)?;
        tx.emit(&TestEvent::new(1))?;
        Err(Error::RollbackTransaction)
    });
    assert_eq!(refused, Err(Error::RollbackTransaction));
    assert_eq!((orders(&database), database.emitted().len()), (0, 0));
}

#[test]
fn nested_use_is_a_savepoint() {
    let database = TestDatabase::new();
    database
        .sync()
        .outbox_transaction::<_, EmitError, _>(|tx| {
            tx.emit(&TestEvent::new("before"))?;
            let rolled_back = tx.outbox_transaction::<(), EmitError, _>(|tx| {
                tx.emit(&TestEvent::new("inside"))?;
                Err(Error::RollbackTransaction.into())
            });
            assert!(rolled_back.is_err());
            tx.outbox_transaction::<_, EmitError, _>(|tx| tx.emit(&TestEvent::new("kept")))?;
            tx.emit(&TestEvent::new("after"))
        })
        .unwrap();
    assert_eq!(database.emitted(), ["before", "kept", "after"]);
}

#[tokio::test]
async fn an_asynchronous_handle_is_the_connection_and_emits() {
    let database = with_orders();
    let mut conn = database.connect().await;
    conn.outbox_transaction::<_, EmitError, _>(async |tx| {
        insert_order_async(tx, 1).await?;
        let order = diesel::sql_query("INSERT INTO orders VALUES (2)");
        diesel_async::RunQueryDsl::execute(order, tx).await?;
        tx.emit(&TestEvent::new(1)).await?;
        tx.emit_all(&[TestEvent::new(2)]).await
    })
    .await
    .unwrap();
    assert_eq!((orders(&database), database.emitted().len()), (2, 2));
}

#[tokio::test]
async fn an_asynchronous_error_rolls_the_event_back() {
    let database = with_orders();
    let mut conn = database.connect().await;
    let refused = conn
        .outbox_transaction::<(), Error, _>(async |tx| {
            insert_order_async(tx, 1).await?;
            tx.emit(&TestEvent::new(1)).await?;
            Err(Error::RollbackTransaction)
        })
        .await;
    assert_eq!(refused, Err(Error::RollbackTransaction));
    assert_eq!((orders(&database), database.emitted().len()), (0, 0));
}

#[tokio::test]
async fn asynchronous_nested_use_is_a_savepoint() {
    let database = with_orders();
    let mut conn = database.connect().await;
    conn.outbox_transaction::<_, EmitError, _>(async |tx| {
        tx.emit(&TestEvent::new("before")).await?;
        let rolled_back = tx
            .outbox_transaction::<(), EmitError, _>(async |tx| {
                tx.emit(&TestEvent::new("inside")).await?;
                Err(Error::RollbackTransaction.into())
            })
            .await;
        assert!(rolled_back.is_err());
        tx.outbox_transaction::<_, EmitError, _>(async |tx| {
            insert_order_async(tx, 1).await?;
            tx.emit(&TestEvent::new("kept")).await
        })
        .await?;
        tx.emit(&TestEvent::new("after")).await
    })
    .await
    .unwrap();
    assert_eq!(database.emitted(), ["before", "kept", "after"]);
}

/// The closure borrows, the connection is a pool's guard, and the whole is one task that is `Send`.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_a_pool_can_be_spawned() {
    async fn place(
        pool: &bb8::Pool<
            diesel_async::pooled_connection::AsyncDieselConnectionManager<AsyncPgConnection>,
        >,
        id: &str,
    ) -> Result<Emitted, EmitError> {
        let mut conn = pool.get().await.expect("the pool gives a connection");
        let event = TestEvent::new(id);
        let number: i64 = id.parse().expect("a number");
        conn.outbox_transaction(async |tx| {
            insert_order_async(tx, number).await?;
            tx.emit(&event).await
        })
        .await
    }

    let database = with_orders();
    let pool = database.pool(2).await;
    tokio::spawn(async move { place(&pool, &String::from("7")).await }).await.unwrap().unwrap();
    assert_eq!((orders(&database), database.emitted()), (1, vec!["7".to_owned()]));
}

/// Functions that ask for no more than a connection that may emit take a handle.
#[tokio::test]
async fn a_handle_goes_where_an_emitting_connection_is_asked_for() {
    async fn pay(conn: &mut impl outbox_diesel::AsyncEmit) -> Result<Emitted, EmitError> {
        conn.emit(&TestEvent::new(1)).await
    }
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.outbox_transaction(async |tx| pay(tx).await).await.unwrap();
    assert_eq!(database.emitted(), ["1"]);
}
