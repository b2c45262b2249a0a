//! Handlers of a consumer without an inbox: they get a [`Delivery`].

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::Consumer;
use super::decode::{self, Decoder};
use super::delivery::Delivery;
use super::route::{Handle, Handler, HandlerError};
use super::transactional::{Pool, Transactional};
use crate::describe::DescribedEvent;
use crate::event::OutboxEvent;
use crate::event_set::{Decode, EventSet};
use crate::inbox::Inbox;
use crate::transaction::Closure;

/// Without an inbox, handlers get events at least once.
///
/// A handler is cloned for each call: what it captures must be `Clone`, as pools are. Of two
/// handlers for one type and version the later one counts.
impl Consumer {
    /// From here on each handler runs in a transaction of this pool, together with the inbox's
    /// record that its event was handled, and a repeat is skipped: an event has the effects that
    /// its handler has in this database exactly once. Its entry is acknowledged after the commit.
    ///
    /// A database that gives no connection is no fault of the event: no try is counted.
    pub fn inbox(self, pool: Pool, inbox: Inbox) -> Consumer<Transactional> {
        let Self { client, group, settings, routes, reports, mode: () } = self;
        let mode = Transactional::new(pool, inbox);
        Consumer { client, group, settings, routes, reports, mode }
    }

    /// Handles the events of a type, in the versions that it can read: its own, and those that it
    /// can `#[outbox(upcast(...))]`. Other versions are [`unknown`](Self::unknown). One whose
    /// payload cannot be read is a dead letter at once.
    ///
    /// ```
    /// # use outbox_diesel::OutboxEvent;
    /// # use outbox_diesel::consumer::Consumer;
    /// # #[derive(serde::Serialize, serde::Deserialize, OutboxEvent)]
    /// # #[outbox(aggregate = "order")]
    /// # struct OrderCreated { #[outbox(aggregate_id)] id: i64 }
    /// # fn with(consumer: Consumer) -> Consumer {
    /// consumer.on::<OrderCreated>(async |event, delivery| {
    ///     println!("order {}, try {}", event.id, delivery.attempt());
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn on<E>(
        mut self,
        handler: impl AsyncFnOnce(E, Delivery) -> Result<(), HandlerError>
        + Handle<E, Delivery, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        E: OutboxEvent + DescribedEvent + DeserializeOwned + Send + 'static,
    {
        let events = decode::readable(E::EVENTS);
        self.routes.add_all(events, &boxed(decode::event::<E>, handler));
        self
    }

    /// Handles all events of a list that [`outbox_events!`](crate::outbox_events) made, as
    /// [`on`](Self::on) those of a type.
    pub fn on_set<S>(
        mut self,
        handler: impl AsyncFnOnce(S, Delivery) -> Result<(), HandlerError>
        + Handle<S, Delivery, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        S: EventSet<Members: Decode<S>> + Send + 'static,
    {
        let events = S::MEMBERS.iter().flat_map(|(_, events)| decode::readable(events)).collect();
        self.routes.add_all(events, &boxed(decode::member::<S>, handler));
        self
    }

    /// Handles events of this type, of any version that has no handler of its own, with their
    /// payload as whatever serde can read: for producers whose types you do not share.
    pub fn on_type<T>(
        mut self,
        event_type: impl Into<String>,
        handler: impl AsyncFnOnce(T, Delivery) -> Result<(), HandlerError>
        + Handle<T, Delivery, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
    {
        self.routes.add(event_type.into(), None, boxed(decode::payload::<T>, handler));
        self
    }

    /// The same for one version alone.
    pub fn on_version<T>(
        mut self,
        event_type: impl Into<String>,
        version: i16,
        handler: impl AsyncFnOnce(T, Delivery) -> Result<(), HandlerError>
        + Handle<T, Delivery, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
    {
        let handler = boxed(decode::payload::<T>, handler);
        self.routes.add(event_type.into(), Some(version), handler);
        self
    }

    /// Handles all events that have no other handler, unparsed.
    pub fn on_any(
        mut self,
        handler: impl AsyncFnOnce(Delivery) -> Result<(), HandlerError>
        + Closure<Delivery, Result<(), HandlerError>, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.routes.otherwise(Arc::new(move |delivery, _| Box::pin((handler.clone())(delivery))));
        self
    }
}

fn boxed<T: Send + 'static>(
    decode: Decoder<T>,
    handler: impl Handle<T, Delivery, Future: Send + 'static> + Clone + Send + Sync + 'static,
) -> Handler {
    Arc::new(move |delivery, _| match decode(&delivery) {
        Ok(event) => Box::pin((handler.clone())(event, delivery)),
        Err(reject) => Box::pin(std::future::ready(Err(reject.into()))),
    })
}
