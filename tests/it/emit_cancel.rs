//! A transaction whose future was dropped takes no later event with it.

use std::pin::pin;
use std::task::Poll;

use diesel_async::pooled_connection::{AsyncDieselConnectionManager, deadpool};
use diesel_async::{AsyncConnection, AsyncPgConnection};
use outbox_diesel::{AsyncEmit, EmitError};
use outbox_tests::{TestDatabase, TestEvent};

/// Polls the future at most so many times; `None` if it was dropped then.
async fn cancelled_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

async fn emit(
    conn: &mut impl AsyncConnection<Backend = diesel::pg::Pg>,
    id: String,
) -> Result<(), EmitError> {
    conn.transaction(async |conn| {
        conn.emit(&TestEvent::new(&id).dedup_key(&id)).await?;
        conn.emit_all(&[TestEvent::new(&id)]).await?;
        Ok(())
    })
    .await
}

/// Cancels `emit_from_pool` after 0, 1, 2, … polls until it needs no more, and checks each time
/// that what is emitted next is there.
async fn every_next_emit_is_durable(
    database: &TestDatabase,
    emit_from_pool: impl AsyncFn(String) -> Result<(), EmitError>,
) {
    for polls in 0.. {
        let finished = cancelled_after(polls, emit_from_pool(format!("cancelled {polls}"))).await;
        let next = format!("next {polls}");
        emit_from_pool(next.clone()).await.unwrap();
        let emitted = database.emitted();
        assert_eq!(emitted.iter().filter(|id| **id == next).count(), 2, "after {polls} polls");
        // A cancelled one emitted all or nothing.
        let cancelled = format!("cancelled {polls}");
        let found = emitted.iter().filter(|id| **id == cancelled).count();
        assert!(found == 0 || found == 2, "after {polls} polls: {found}");
        if let Some(result) = finished {
            result.unwrap();
            assert_eq!(found, 2);
            assert!(polls > 3, "too few await points to be true: {polls}");
            return;
        }
    }
}

#[tokio::test]
async fn a_transaction_cancelled_at_any_await_spoils_no_later_emit_of_a_bb8_pool() {
    let database = TestDatabase::new();
    let pool = database.pool(1).await;
    every_next_emit_is_durable(&database, async |id| {
        emit(&mut *pool.get().await.expect("a spoilt connection is replaced"), id).await
    })
    .await;
}

#[tokio::test]
async fn a_transaction_cancelled_at_any_await_spoils_no_later_emit_of_a_deadpool() {
    let database = TestDatabase::new();
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database.url());
    let pool = deadpool::Pool::builder(manager).max_size(1).build().unwrap();
    every_next_emit_is_durable(&database, async |id| {
        emit(&mut *pool.get().await.expect("a spoilt connection is replaced"), id).await
    })
    .await;
}

#[tokio::test]
async fn an_emit_cancelled_at_any_await_leaves_a_transaction_that_can_be_rolled_back() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    for polls in 0.. {
        let event = TestEvent::new(polls).dedup_key("k");
        let rolled_back = conn
            .transaction::<(), diesel::result::Error, _>(async |conn| {
                let finished = cancelled_after(polls, conn.emit(&event)).await.is_some();
                assert!(!finished || polls > 0);
                Err(if finished {
                    diesel::result::Error::NotFound
                } else {
                    diesel::result::Error::RollbackTransaction
                })
            })
            .await;
        assert!(database.emitted().is_empty());
        if rolled_back == Err(diesel::result::Error::NotFound) {
            break;
        }
    }
    emit(&mut conn, "next".to_owned()).await.unwrap();
    assert_eq!(database.emitted(), ["next", "next"]);
}
