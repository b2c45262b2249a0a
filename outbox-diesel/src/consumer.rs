//! Consumer: reads Redis Streams as a member of a consumer group.
//!
//! For entries as this crate's Redis publisher writes them, and anybody's that have the fields
//! `event_id`, `aggregate_type`, `aggregate_id`, `event_type` and `payload`.
//!
//! ```
//! use diesel_async::AsyncPgConnection;
//! use diesel_async::pooled_connection::bb8::Pool;
//! use outbox_diesel::consumer::{Consumer, ConsumerHandle, Delivery, HandlerError};
//! use outbox_diesel::inbox::Inbox;
//!
//! #[derive(serde::Deserialize)]
//! struct OrderCreated {
//!     cents: i64,
//! }
//!
//! fn start(
//!     client: redis::Client,
//!     pool: Pool<AsyncPgConnection>,
//! ) -> Result<ConsumerHandle, HandlerError> {
//!     let inbox = Inbox::new("billing")?;
//!     let consumer = Consumer::builder(client, "billing", "billing-1").streams(["order"]).on(
//!         "order.created",
//!         async move |order: OrderCreated, delivery: Delivery| {
//!             let mut conn = pool.get().await?;
//!             // Handled once, whatever comes twice: then the entry is acknowledged.
//!             inbox
//!                 .once_async(&mut *conn, delivery.event_id(), async |conn| {
//!                     bill(conn, order.cents).await
//!                 })
//!                 .await?;
//!             Ok::<_, HandlerError>(())
//!         },
//!     );
//!     Ok(consumer.spawn()?)
//! }
//! # async fn bill(_: &mut AsyncPgConnection, _: i64) -> diesel::QueryResult<()> { Ok(()) }
//! ```
//!
//! # What it guarantees
//! * **At least once**, and once with an [`Inbox`](crate::inbox::Inbox): an entry is acknowledged
//!   after its handler returned `Ok`, so after its transaction has committed. What a consumer had
//!   in hand when it died is taken over by another one after [`claim_after`](Consumer::claim_after),
//!   or by itself at once when it starts again under the same name.
//! * **In order per aggregate** (by aggregate type and id, in the order of the stream), up to
//!   [`concurrency`](Consumer::concurrency) aggregates side by side. A failing event is tried again
//!   while only its own aggregate waits. This holds **within one consumer**: Redis deals a stream's
//!   entries out to all consumers of a group, so two that read one stream can handle two events of
//!   an aggregate at the same time, and one that takes over an older entry may come after the other
//!   has handled a newer one. Where order matters, read each stream with one consumer at a time:
//!   spread a topic with `StreamNaming::PerShard` and give each consumer streams of its own, or let
//!   them agree by [`exclusive`](Consumer::exclusive) leases.
//! * **A poisonous event blocks nothing for ever.** After
//!   [`max_deliveries`](Consumer::max_deliveries) tries it is moved, with its fields and the error,
//!   to the stream `<stream>:dead`, and the next event of its aggregate goes on. Tries are counted
//!   in Redis: a handler that ends the process is found out too.
//! * **Nothing is lost in silence.** The group begins at the stream's first entry and is created
//!   again if it is gone. What is no event or has no handler is a dead letter unless you say
//!   otherwise. Only entries that were trimmed before they were read are never seen.
//! * Logs hold ids and types, and errors as your handlers display them; never payloads.
//!
//! Needs Redis 6.2 or Valkey 7.2, one node or one primary. Its user needs `XGROUP`, `XREADGROUP`,
//! `XACK`, `XAUTOCLAIM`, `XCLAIM`, `XPENDING`, `EVALSHA`, `EVAL` and `XADD` on the streams and
//! their `:dead` streams.

mod options;
mod entry;
mod delivery;
mod route;
mod lanes;
mod attempt;
mod group;
mod settle;
mod worker;
mod custody;
mod lease;
mod receive;
mod handle;

use std::fmt;
use std::sync::Arc;

use redis::Client;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub use self::delivery::{Delivery, InvalidPayload, Malformed};
pub use self::entry::EntryId;
use self::group::Group;
pub use self::handle::ConsumerHandle;
use self::options::Settings;
pub use self::options::{InvalidConsumerOptions, Start};
pub use self::receive::MalformedEntry;
use self::receive::Report;
use self::route::Routes;
pub use self::route::{HandlerError, Reject, Unhandled};
use self::worker::Worker;

/// A consumer, not yet running.
#[must_use = "a consumer does nothing until it is spawned or run"]
pub struct Consumer {
    client: Client,
    group: Group,
    settings: Settings,
    routes: Routes,
    report: Option<Report>,
}

impl Consumer {
    /// Starts building a consumer of this group. The name must be no other live consumer's, and
    /// is best the same after a restart (a pod's or host's name): then it goes on at once with what
    /// it had in hand.
    pub fn builder(client: Client, group: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            client,
            group: Group { name: group.into(), consumer: name.into() },
            settings: Settings::default(),
            routes: Routes::default(),
            report: None,
        }
    }

    /// Which streams to read, by their whole names.
    pub fn streams<S: Into<String>>(mut self, streams: impl IntoIterator<Item = S>) -> Self {
        self.settings.streams = streams.into_iter().map(Into::into).collect();
        self
    }

    /// Handles events of a type, of any version that has no handler of its own, with their payload
    /// parsed. One that cannot be parsed is a dead letter at once.
    ///
    /// The closure is cloned for each call: what it captures must be `Clone`, as pools are.
    pub fn on<T, F, Fut, R, E>(mut self, event_type: impl Into<String>, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: FnOnce(T, Delivery) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        self.routes.add(event_type.into(), None, route::typed(handler));
        self
    }

    /// Handles events of a type and version; see [`on`](Self::on).
    pub fn on_version<T, F, Fut, R, E>(
        mut self,
        event_type: impl Into<String>,
        version: i16,
        handler: F,
    ) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: FnOnce(T, Delivery) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        self.routes.add(event_type.into(), Some(version), route::typed(handler));
        self
    }

    /// Handles all events that have no other handler, unparsed.
    pub fn on_any<F, Fut, R, E>(mut self, handler: F) -> Self
    where
        F: FnOnce(Delivery) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        E: Into<HandlerError>,
    {
        self.routes.otherwise(route::raw(handler));
        self
    }

    /// Is told of each entry that is no event.
    pub fn on_malformed(
        mut self,
        report: impl Fn(&MalformedEntry) + Send + Sync + 'static,
    ) -> Self {
        self.report = Some(Arc::new(report));
        self
    }

    /// Runs the consumer as a task of the current tokio runtime.
    ///
    /// # Errors
    /// Settings that cannot work together. A Redis that is away is no error: the consumer tries
    /// again.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(self) -> Result<ConsumerHandle, InvalidConsumerOptions> {
        let worker = self.worker()?;
        let cancelled = CancellationToken::new();
        let token = cancelled.clone();
        let task = tokio::spawn(async move { worker.run(&token).await });
        Ok(ConsumerHandle::new(cancelled, task))
    }

    /// Runs the consumer until the token is cancelled, and then until running handlers are done,
    /// at most for the shutdown timeout (twice, if Redis hangs).
    ///
    /// # Errors
    /// Settings that cannot work together, or what the consumer was told to stop for.
    ///
    /// # Cancel safety
    /// A dropped future is like a crashed consumer: its handlers are dropped too, and what it had
    /// in hand is delivered again.
    pub async fn run(self, cancelled: CancellationToken) -> Result<(), ConsumerError> {
        self.worker()?.run(&cancelled).await
    }

    fn worker(self) -> Result<Worker, InvalidConsumerOptions> {
        self.settings.check(&self.group.name, &self.group.consumer)?;
        let mut worker = Worker::new(self.client, self.group, self.settings, self.routes);
        worker.receiver.report = self.report;
        Ok(worker)
    }
}

impl fmt::Debug for Consumer {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("server", &self.client.get_connection_info().addr().to_string())
            .field("group", &self.group)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Why a consumer ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// Settings that cannot work together. Change them.
    #[error(transparent)]
    Invalid(#[from] InvalidConsumerOptions),
    /// An event has no handler, and [`Consumer::unknown`] says to stop. It is still pending.
    #[error(
        "entry {entry} of stream {stream} has no handler: {event_type}, version {event_version}"
    )]
    UnknownEvent {
        /// Where it was read.
        stream: Arc<str>,
        /// Its place in the stream.
        entry: EntryId,
        /// Its type.
        event_type: String,
        /// Its version.
        event_version: i16,
    },
    /// An entry is no event, and [`Consumer::malformed`] says to stop. It is still pending.
    #[error("{0}")]
    Malformed(MalformedEntry),
}
