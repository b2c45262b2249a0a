//! The same on asynchronous connections.

use std::ops::{Deref, DerefMut};

use diesel::pg::Pg;
use diesel_async::AsyncConnection;

use crate::emit::{Emitted, asynchronous};
use crate::error::EmitError;
use crate::event::OutboxEvent;

/// An asynchronous connection that is in a transaction; made by
/// [`outbox_transaction`](AsyncOutboxTransaction::outbox_transaction).
///
/// It is a connection itself: queries take `tx`, and so do functions that take a
/// `&mut AsyncPgConnection`.
#[derive(Debug)]
pub struct AsyncTransaction<'t, C> {
    conn: &'t mut C,
}

impl<C: AsyncConnection<Backend = Pg>> AsyncTransaction<'_, C> {
    /// Emits one event; see [`AsyncEmit::emit`](crate::AsyncEmit::emit).
    ///
    /// # Errors
    /// See [`EmitError`]. Unless it is [`EmitError::Database`], the transaction is still usable.
    ///
    /// # Cancel safety
    /// As [`AsyncEmit`](crate::AsyncEmit).
    pub fn emit<'conn, E: OutboxEvent + ?Sized>(
        &'conn mut self,
        event: &E,
    ) -> impl Future<Output = Result<Emitted, EmitError>> + Send + use<'conn, C, E> {
        asynchronous::one(self.conn, event)
    }

    /// Emits events in slice order, in one statement; see
    /// [`AsyncEmit::emit_all`](crate::AsyncEmit::emit_all).
    ///
    /// # Errors
    /// As [`emit`](Self::emit). All are checked before any is sent.
    ///
    /// # Cancel safety
    /// As [`AsyncEmit`](crate::AsyncEmit).
    pub fn emit_all<'conn, E: OutboxEvent>(
        &'conn mut self,
        events: &[E],
    ) -> impl Future<Output = Result<Vec<Emitted>, EmitError>> + Send + use<'conn, C, E> {
        asynchronous::all(self.conn, events)
    }
}

impl<C> Deref for AsyncTransaction<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.conn
    }
}

impl<C> DerefMut for AsyncTransaction<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.conn
    }
}

// With the feature, every connection may.
#[cfg(not(feature = "connection-emit"))]
impl<C: AsyncConnection<Backend = Pg>> crate::emit::MayEmitAsync for AsyncTransaction<'_, C> {}

/// Transactions that emit, on asynchronous connections.
pub trait AsyncOutboxTransaction: AsyncConnection<Backend = Pg> {
    /// Runs the closure in a transaction, as diesel-async's `transaction` does: `Ok` commits, `Err`
    /// rolls back. On a handle or in a transaction, it is a savepoint.
    ///
    /// ```no_run
    /// use diesel_async::RunQueryDsl as _;
    /// use outbox_diesel::{AsyncOutboxTransaction as _, EmitError, OutboxEvent};
    /// # #[derive(serde::Serialize, OutboxEvent)]
    /// # #[outbox(aggregate = "order")]
    /// # struct OrderPaid { #[outbox(aggregate_id)] id: i64 }
    /// # async fn pay(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), EmitError> {
    ///
    /// conn.outbox_transaction::<_, EmitError, _>(async |tx| {
    ///     diesel::sql_query("UPDATE orders SET paid = true WHERE id = 7").execute(tx).await?;
    ///     tx.emit(&OrderPaid { id: 7 }).await?;
    ///     Ok(())
    /// })
    /// .await
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the closure returns, or why the transaction could not begin or commit.
    ///
    /// # Cancel safety
    /// Not cancel safe, like diesel-async's `transaction`: if the future is dropped, drop the
    /// connection.
    fn outbox_transaction<'a, 'conn, T, E, F>(
        &'conn mut self,
        callback: F,
    ) -> impl Future<Output = Result<T, E>> + Send + 'conn
    where
        for<'r, 't> F: AsyncFnOnce(&'r mut AsyncTransaction<'t, Self>) -> Result<T, E>
            + Closure<&'r mut AsyncTransaction<'t, Self>, Result<T, E>, Future: Send>
            + Send
            + 'a,
        E: From<diesel::result::Error> + Send + 'a,
        T: Send + 'a,
        'a: 'conn,
    {
        self.transaction(async move |conn| callback(&mut AsyncTransaction { conn }).await)
    }
}

impl<C: AsyncConnection<Backend = Pg>> AsyncOutboxTransaction for C {}

/// An asynchronous closure whose future can be named and so be `Send`: `AsyncFnOnce` alone cannot
/// say it yet. diesel-async's own one is not public.
#[doc(hidden)]
pub trait Closure<A, R>:
    AsyncFnOnce(A) -> R + FnOnce(A) -> <Self as Closure<A, R>>::Future
{
    type Future: Future<Output = R>;
}

impl<F, A, Fut, R> Closure<A, R> for F
where
    F: AsyncFnOnce(A) -> R + FnOnce(A) -> Fut,
    Fut: Future<Output = R>,
{
    type Future = Fut;
}
