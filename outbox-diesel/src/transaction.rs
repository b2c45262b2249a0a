//! A transaction whose type says so: emit on it cannot be outside of one.

use std::ops::{Deref, DerefMut};

use diesel::connection::LoadConnection;
use diesel::pg::Pg;

use crate::emit::{self, Emitted};
use crate::error::EmitError;
use crate::event::OutboxEvent;

/// A synchronous connection that is in a transaction; made by
/// [`outbox_transaction`](OutboxTransaction::outbox_transaction).
///
/// It is the connection behind a `*`: queries of diesel take `&mut **tx`, functions that take a
/// `&mut PgConnection` take `tx`.
#[derive(Debug)]
pub struct Transaction<'t, C> {
    conn: &'t mut C,
}

impl<C: LoadConnection<Backend = Pg>> Transaction<'_, C> {
    /// Emits one event; see [`Emit::emit`](crate::Emit::emit).
    ///
    /// # Errors
    /// See [`EmitError`]. Unless it is [`EmitError::Database`], the transaction is still usable.
    pub fn emit<E: OutboxEvent + ?Sized>(&mut self, event: &E) -> Result<Emitted, EmitError> {
        emit::one(self.conn, event)
    }

    /// Emits events in slice order, in one statement; see
    /// [`Emit::emit_all`](crate::Emit::emit_all).
    ///
    /// # Errors
    /// As [`emit`](Self::emit). All are checked before any is sent.
    pub fn emit_all<E: OutboxEvent>(&mut self, events: &[E]) -> Result<Vec<Emitted>, EmitError> {
        emit::all(self.conn, events)
    }
}

impl<C> Deref for Transaction<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.conn
    }
}

impl<C> DerefMut for Transaction<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.conn
    }
}

/// Transactions that emit, on synchronous connections.
pub trait OutboxTransaction: LoadConnection<Backend = Pg> {
    /// Runs the closure in a transaction, as diesel's `transaction` does: `Ok` commits, `Err` rolls
    /// back. On a handle or in a transaction, it is a savepoint.
    ///
    /// ```no_run
    /// use diesel::prelude::*;
    /// use outbox_diesel::{EmitError, OutboxEvent, OutboxTransaction as _};
    /// # #[derive(serde::Serialize, OutboxEvent)]
    /// # #[outbox(aggregate = "order")]
    /// # struct OrderPaid { #[outbox(aggregate_id)] id: i64 }
    /// # fn pay<C>(conn: &mut C) -> Result<(), EmitError>
    /// # where C: diesel::connection::LoadConnection<Backend = diesel::pg::Pg> {
    ///
    /// conn.outbox_transaction::<_, EmitError, _>(|tx| {
    ///     diesel::sql_query("UPDATE orders SET paid = true WHERE id = 7").execute(&mut **tx)?;
    ///     tx.emit(&OrderPaid { id: 7 })?;
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the closure returns, or why the transaction could not begin or commit.
    fn outbox_transaction<T, E, F>(&mut self, callback: F) -> Result<T, E>
    where
        F: FnOnce(&mut Transaction<'_, Self>) -> Result<T, E>,
        E: From<diesel::result::Error>,
    {
        self.transaction(|conn| callback(&mut Transaction { conn }))
    }
}

impl<C: LoadConnection<Backend = Pg>> OutboxTransaction for C {}

#[cfg(feature = "async")]
mod asynchronous;

#[cfg(feature = "consumer")]
pub(crate) use self::asynchronous::Closure;
#[cfg(feature = "async")]
pub use self::asynchronous::{AsyncOutboxTransaction, AsyncTransaction};
