//! Handlers of a consumer with an inbox: each runs in the transaction that records its event.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::bb8::PooledConnection;
use serde::de::DeserializeOwned;
use tracing::debug;

use super::Consumer;
use super::context::Context;
use super::decode::{self, Decoder};
use super::delivery::Delivery;
use super::route::{Handle, Handler, HandlerError, Unavailable};
use crate::describe::DescribedEvent;
use crate::event::OutboxEvent;
use crate::event_set::{Decode, EventSet};
use crate::inbox::{Handled, Inbox};

/// A bb8 pool of connections, as diesel-async makes it.
pub type Pool = diesel_async::pooled_connection::bb8::Pool<AsyncPgConnection>;

/// A consumer's handlers run in transactions, with an inbox; see [`Consumer::inbox`].
#[derive(Clone)]
pub struct Transactional {
    pool: Pool,
    inbox: Arc<Inbox>,
}

impl Transactional {
    pub(super) fn new(pool: Pool, inbox: Inbox) -> Self {
        Self { pool, inbox: Arc::new(inbox) }
    }
}

impl fmt::Debug for Transactional {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transactional").field("inbox", &self.inbox).finish_non_exhaustive()
    }
}

/// With an inbox, handlers run in a transaction, and see each event once.
///
/// `Ok` commits, then the entry is acknowledged; an error rolls back, and the event is tried again.
/// Do everything in the database on the [`Context`]. A handler is cloned for each call: what it
/// captures must be `Clone`. Of two handlers for one type and version the later one counts.
impl Consumer<Transactional> {
    /// Handles the events of a type, in the versions that it can read: its own, and those that it
    /// can `#[outbox(upcast(...))]`. Other versions are [`unknown`](Self::unknown). One whose
    /// payload cannot be read is a dead letter at once.
    pub fn on<E>(
        mut self,
        handler: impl for<'r, 't> AsyncFnOnce(E, &'r mut Context<'t>) -> Result<(), HandlerError>
        + for<'r, 't> Handle<E, &'r mut Context<'t>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        E: OutboxEvent + DescribedEvent + DeserializeOwned + Send + 'static,
    {
        let events = decode::readable(E::EVENTS);
        let handler = boxed(&self.mode, decode::event::<E>, handler);
        self.routes.add_all(events, &handler);
        self
    }

    /// Handles all events of a list that [`outbox_events!`](crate::outbox_events) made, as
    /// [`on`](Self::on) those of a type.
    pub fn on_set<S>(
        mut self,
        handler: impl for<'r, 't> AsyncFnOnce(S, &'r mut Context<'t>) -> Result<(), HandlerError>
        + for<'r, 't> Handle<S, &'r mut Context<'t>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        S: EventSet<Members: Decode<S>> + Send + 'static,
    {
        let events = S::MEMBERS.iter().flat_map(|(_, events)| decode::readable(events)).collect();
        let handler = boxed(&self.mode, decode::member::<S>, handler);
        self.routes.add_all(events, &handler);
        self
    }

    /// Handles events of this type, of any version that has no handler of its own, with their
    /// payload as whatever serde can read: for producers whose types you do not share.
    pub fn on_type<T>(
        mut self,
        event_type: impl Into<String>,
        handler: impl for<'r, 't> AsyncFnOnce(T, &'r mut Context<'t>) -> Result<(), HandlerError>
        + for<'r, 't> Handle<T, &'r mut Context<'t>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
    {
        let handler = boxed(&self.mode, decode::payload::<T>, handler);
        self.routes.add(event_type.into(), None, handler);
        self
    }

    /// The same for one version alone.
    pub fn on_version<T>(
        mut self,
        event_type: impl Into<String>,
        version: i16,
        handler: impl for<'r, 't> AsyncFnOnce(T, &'r mut Context<'t>) -> Result<(), HandlerError>
        + for<'r, 't> Handle<T, &'r mut Context<'t>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
    {
        let handler = boxed(&self.mode, decode::payload::<T>, handler);
        self.routes.add(event_type.into(), Some(version), handler);
        self
    }

    /// Handles all events that have no other handler, unparsed.
    pub fn on_any(
        mut self,
        handler: impl for<'r, 't> AsyncFnOnce(Delivery, &'r mut Context<'t>) -> Result<(), HandlerError>
        + for<'r, 't> Handle<Delivery, &'r mut Context<'t>, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let decoder: Decoder<Delivery> = |delivery| Ok(delivery.clone());
        let handler = boxed(&self.mode, decoder, handler);
        self.routes.otherwise(handler);
        self
    }
}

fn boxed<T: Send + 'static>(
    mode: &Transactional,
    decode: Decoder<T>,
    handler: impl for<'r, 't> Handle<T, &'r mut Context<'t>, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static,
) -> Handler {
    let mode = mode.clone();
    Arc::new(move |delivery, limit| {
        let (mode, handler) = (mode.clone(), handler.clone());
        Box::pin(async move {
            let event = decode(&delivery)?;
            let mut conn = mode.connection(limit).await?;
            let (id, again) = (delivery.event_id(), delivery.clone());
            let handling = async move |conn: &mut AsyncPgConnection| {
                handler(event, &mut Context::new(conn, delivery)).await
            };
            if mode.inbox.once_async(&mut *conn, id, handling).await? == Handled::Duplicate {
                debug!(event_id = %again.event_id(), event_type = again.event_type(), topic = again.topic(), aggregate_id = again.aggregate_id(), attempt = again.attempt(), trace_id = again.trace_id(), "an event came again and was skipped");
            }
            Ok(())
        })
    })
}

impl Transactional {
    /// Nothing was tried yet: to have no connection is no fault of the event, so it must not look
    /// like a handler that took too long.
    async fn connection(
        &self,
        limit: Duration,
    ) -> Result<PooledConnection<'_, AsyncPgConnection>, Unavailable> {
        match tokio::time::timeout(limit / 2, self.pool.get()).await {
            Ok(Ok(conn)) => Ok(conn),
            Ok(Err(error)) => Err(Unavailable::because(error)),
            Err(_) => Err(Unavailable::because("the pool has given no connection in time")),
        }
    }
}
