//! What a handler works with: its event's transaction.

use std::fmt;
use std::ops::{Deref, DerefMut};

use diesel_async::AsyncPgConnection;

use super::delivery::Delivery;
use crate::emit::{Emitted, asynchronous};
use crate::error::EmitError;
use crate::event::OutboxEvent;

/// The transaction in which an event is handled, and how the event came.
///
/// It is a connection: queries take `ctx`, and so do functions that take a
/// `&mut AsyncPgConnection`. What it emits is the next step of a saga: it commits with the effects
/// and the inbox's record.
pub struct Context<'t> {
    conn: &'t mut AsyncPgConnection,
    delivery: Delivery,
}

impl<'t> Context<'t> {
    pub(super) fn new(conn: &'t mut AsyncPgConnection, delivery: Delivery) -> Self {
        Self { conn, delivery }
    }

    /// The event as it came: ids, headers, which try this is.
    #[must_use]
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Emits one event; see [`AsyncEmit::emit`](crate::AsyncEmit::emit).
    ///
    /// # Errors
    /// See [`EmitError`].
    ///
    /// # Cancel safety
    /// As [`AsyncEmit`](crate::AsyncEmit).
    pub fn emit<'conn, E: OutboxEvent + ?Sized>(
        &'conn mut self,
        event: &E,
    ) -> impl Future<Output = Result<Emitted, EmitError>> + Send + use<'conn, 't, E> {
        asynchronous::one(&mut *self.conn, event)
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
    ) -> impl Future<Output = Result<Vec<Emitted>, EmitError>> + Send + use<'conn, 't, E> {
        asynchronous::all(&mut *self.conn, events)
    }
}

impl Deref for Context<'_> {
    type Target = AsyncPgConnection;

    fn deref(&self) -> &AsyncPgConnection {
        self.conn
    }
}

impl DerefMut for Context<'_> {
    fn deref_mut(&mut self) -> &mut AsyncPgConnection {
        self.conn
    }
}

// With the feature, every connection may.
#[cfg(not(feature = "connection-emit"))]
impl crate::emit::MayEmitAsync for Context<'_> {}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("delivery", &self.delivery).finish_non_exhaustive()
    }
}
