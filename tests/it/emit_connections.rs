//! Every connection and pool guard of diesel and diesel-async emits, and `?` fits every closure.

use std::cell::Cell;

use diesel::Connection as _;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::result::Error;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, deadpool, mobc};
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::{EmitError, MissingAggregateId, OutboxEvent};
use outbox_tests::{TestDatabase, TestEvent};

mod synchronous {
    use diesel::{Connection, PgConnection, pg::Pg};
    use outbox_diesel::{Emit, EmitError};

    use super::TestEvent;

    /// Emits `one`, then `two` and `three` at once.
    pub(super) fn emit<C>(conn: &mut C) -> Result<(), EmitError>
    where
        C: Connection<Backend = Pg> + diesel::connection::LoadConnection,
    {
        conn.transaction(|conn| {
            conn.emit(&TestEvent::new("one"))?;
            conn.emit_all(&["two", "three"].map(TestEvent::new))?;
            Ok(())
        })
    }

    /// As a method of the guard itself.
    pub(super) fn emit_as_method(conn: &mut PgConnection) -> Result<(), EmitError> {
        conn.transaction(|conn| conn.emit(&TestEvent::new("one")).map(|_| ()))
    }
}

mod asynchronous {
    use diesel::pg::Pg;
    use diesel_async::AsyncConnection;
    use outbox_diesel::{AsyncEmit, EmitError};

    use super::TestEvent;

    /// Emits `one`, then `two` and `three` at once.
    pub(super) async fn emit<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> Result<(), EmitError> {
        conn.transaction(async |conn| {
            conn.emit(&TestEvent::new("one")).await?;
            conn.emit_all(&["two", "three"].map(TestEvent::new)).await?;
            Ok(())
        })
        .await
    }
}

const ALL: [&str; 3] = ["one", "two", "three"];

#[test]
fn synchronous_connections_emit() {
    let database = TestDatabase::new();
    synchronous::emit(&mut database.sync()).unwrap();
    assert_eq!(database.emitted(), ALL);
    synchronous::emit_as_method(&mut database.sync()).unwrap();
}

#[test]
fn r2d2_guards_emit() {
    let database = TestDatabase::new();
    let pool = Pool::builder()
        .max_size(1)
        .build(ConnectionManager::<diesel::PgConnection>::new(database.url()))
        .unwrap();
    synchronous::emit(&mut pool.get().unwrap()).unwrap();
    synchronous::emit_as_method(&mut pool.get().unwrap()).unwrap();
    assert_eq!(database.emitted(), ["one", "two", "three", "one"]);
}

#[tokio::test]
async fn asynchronous_connections_emit() {
    let database = TestDatabase::new();
    asynchronous::emit(&mut database.connect().await).await.unwrap();
    assert_eq!(database.emitted(), ALL);
}

#[tokio::test]
async fn bb8_guards_emit() {
    let database = TestDatabase::new();
    let pool = database.pool(1).await;
    asynchronous::emit(&mut pool.get().await.unwrap()).await.unwrap();
    assert_eq!(database.emitted(), ALL);
}

#[tokio::test]
async fn deadpool_guards_emit() {
    let database = TestDatabase::new();
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database.url());
    let pool = deadpool::Pool::builder(manager).max_size(1).build().unwrap();
    asynchronous::emit(&mut pool.get().await.unwrap()).await.unwrap();
    assert_eq!(database.emitted(), ALL);
}

#[tokio::test]
async fn mobc_guards_emit() {
    let database = TestDatabase::new();
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database.url());
    let pool = mobc::Pool::builder().max_open(1).build(manager);
    asynchronous::emit(&mut pool.get().await.unwrap()).await.unwrap();
    assert_eq!(database.emitted(), ALL);
}

#[test]
fn asynchronous_connections_in_a_synchronous_wrapper_emit() {
    use diesel_async::async_connection_wrapper::AsyncConnectionWrapper;

    let database = TestDatabase::new();
    let mut conn = <AsyncConnectionWrapper<AsyncPgConnection> as diesel::Connection>::establish(
        &database.url(),
    )
    .unwrap();
    synchronous::emit(&mut conn).unwrap();
    assert_eq!(database.emitted(), ALL);
}

/// An event that is not `Sync`.
struct Counted(Cell<u32>);

impl OutboxEvent for Counted {
    fn aggregate_type(&self) -> &'static str {
        "order"
    }
    fn aggregate_id(&self) -> Result<std::borrow::Cow<'_, str>, MissingAggregateId> {
        Ok(self.0.get().to_string().into())
    }
    fn event_type(&self) -> &'static str {
        "order.counted"
    }
    fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(json, &self.0.get())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_future_of_an_emit_is_send_even_if_the_event_is_not_sync() {
    use outbox_diesel::AsyncEmit as _;

    let database = TestDatabase::new();
    let pool = database.pool(1).await;
    tokio::spawn(async move {
        let mut conn = pool.get().await.expect("the pool has a connection");
        conn.transaction::<_, EmitError, _>(async |conn| {
            conn.emit(&Counted(Cell::new(1))).await?;
            conn.emit_all(&[Counted(Cell::new(2)), Counted(Cell::new(3))]).await?;
            let (plain, with_header) = (TestEvent::new(4), TestEvent::new(5).with_header("n", "v"));
            conn.emit_all(&[&plain as &(dyn OutboxEvent + Sync), &with_header]).await
        })
        .await
    })
    .await
    .unwrap()
    .unwrap();
    assert_eq!(database.emitted(), ["1", "2", "3", "4", "5"]);
}

/// An application's error, as many write it.
#[derive(Debug, thiserror::Error)]
enum OrderError {
    #[error("the database failed")]
    Database(#[from] Error),
    #[error("the event was not emitted")]
    Emit(#[from] EmitError),
}

#[test]
fn the_question_mark_fits_closures_that_return_diesels_error_anyhows_or_an_own_one() {
    use outbox_diesel::Emit as _;

    let refused = TestEvent::without_aggregate_id();
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let diesels = conn.transaction::<_, Error, _>(|conn| Ok(conn.emit(&refused)?)).unwrap_err();
    let Error::SerializationError(cause) = diesels else { panic!("{diesels:?}") };
    assert!(matches!(cause.downcast_ref(), Some(EmitError::MissingAggregateId(_))));

    let anyhows =
        conn.transaction::<_, anyhow::Error, _>(|conn| Ok(conn.emit(&refused)?)).unwrap_err();
    assert!(matches!(anyhows.downcast_ref(), Some(EmitError::MissingAggregateId(_))));

    let own = conn.transaction::<_, OrderError, _>(|conn| Ok(conn.emit(&refused)?)).unwrap_err();
    assert!(matches!(own, OrderError::Emit(EmitError::MissingAggregateId(_))));
    let own = conn.transaction::<(), OrderError, _>(|_| Err(Error::NotFound)?).unwrap_err();
    assert!(matches!(own, OrderError::Database(Error::NotFound)));
}

#[tokio::test]
async fn the_question_mark_fits_asynchronous_closures_too() {
    use outbox_diesel::AsyncEmit as _;

    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.transaction::<_, Error, _>(async |conn| Ok(conn.emit(&TestEvent::new(1)).await?))
        .await
        .unwrap();
    conn.transaction::<_, anyhow::Error, _>(async |conn| Ok(conn.emit(&TestEvent::new(2)).await?))
        .await
        .unwrap();
    conn.transaction::<_, OrderError, _>(async |conn| Ok(conn.emit(&TestEvent::new(3)).await?))
        .await
        .unwrap();
    let autocommit: Error = conn.emit(&TestEvent::new(4)).await.unwrap_err().into();
    assert!(matches!(autocommit, Error::NotInTransaction));
    assert_eq!(database.emitted(), ["1", "2", "3"]);
}
