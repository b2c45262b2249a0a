//! Consumer: reads Redis Streams as a member of a consumer group.
//!
//! For entries as this crate's Redis publisher writes them, and anybody's that have the fields
//! `event_id`, `aggregate_type`, `aggregate_id`, `event_type` and `payload`.
//!
//! ```
//! use diesel::ExpressionMethods as _;
//! use diesel_async::RunQueryDsl as _;
//! use outbox_diesel::OutboxEvent;
//! use outbox_diesel::consumer::{Consumer, ConsumerHandle, HandlerError, Pool};
//! use outbox_diesel::inbox::Inbox;
//!
//! diesel::table! { bills (order_id) { order_id -> BigInt, cents -> BigInt } }
//!
//! /// The producer's type, or one of your own with what you need of it.
//! #[derive(serde::Serialize, serde::Deserialize, OutboxEvent)]
//! #[outbox(aggregate = "order")]
//! struct OrderCreated {
//!     #[outbox(aggregate_id)]
//!     id: i64,
//!     cents: i64,
//! }
//!
//! fn start(client: redis::Client, pool: Pool) -> Result<ConsumerHandle, HandlerError> {
//!     let consumer = Consumer::builder(client, "billing", "billing-1")
//!         .streams(["order"])
//!         .inbox(pool, Inbox::new("billing")?)
//!         .on::<OrderCreated>(async |event, ctx| {
//!             // One transaction: this, the record that the event was handled, and what the
//!             // handler emits. Then the entry is acknowledged.
//!             diesel::insert_into(bills::table)
//!                 .values((bills::order_id.eq(event.id), bills::cents.eq(event.cents)))
//!                 .execute(ctx)
//!                 .await?;
//!             Ok(())
//!         });
//!     Ok(consumer.spawn()?)
//! }
//! ```
//!
//! Without [`inbox`](Consumer::inbox), handlers get a [`Delivery`] instead, and events at least once:
//! for effects that are idempotent by themselves, or lie elsewhere than in this database.
//!
//! # What it guarantees
//! * **Once in its effects** with an [`inbox`](Consumer::inbox), at least once without: an entry is
//!   acknowledged after its handler returned `Ok`, so after its transaction has committed. What a consumer had
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
mod decode;
mod register;
mod context;
mod transactional;
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
use tokio_util::sync::CancellationToken;

pub use self::context::Context;
pub use self::delivery::{Delivery, InvalidPayload, Malformed};
pub use self::entry::EntryId;
use self::group::Group;
pub use self::handle::ConsumerHandle;
use self::options::Settings;
pub use self::options::{InvalidConsumerOptions, Start};
use self::receive::Reports;
pub use self::receive::{MalformedEntry, UnknownEvent};
use self::route::Routes;
pub use self::route::{HandlerError, Reject, Unavailable, Unhandled};
pub use self::transactional::{Pool, Transactional};
use self::worker::Worker;

/// A consumer, not yet running. Handlers get a [`Delivery`], or those of a `Consumer<Transactional>`
/// a transaction in a [`Context`]: see [`inbox`](Self::inbox).
#[must_use = "a consumer does nothing until it is spawned or run"]
pub struct Consumer<M = ()> {
    client: Client,
    group: Group,
    settings: Settings,
    routes: Routes,
    reports: Reports,
    mode: M,
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
            reports: Reports::default(),
            mode: (),
        }
    }
}

impl<M> Consumer<M> {
    /// Which streams to read, by their whole names.
    pub fn streams<S: Into<String>>(mut self, streams: impl IntoIterator<Item = S>) -> Self {
        self.settings.streams = streams.into_iter().map(Into::into).collect();
        self
    }

    /// Is told of each entry that is no event.
    pub fn on_malformed(
        mut self,
        report: impl Fn(&MalformedEntry) + Send + Sync + 'static,
    ) -> Self {
        self.reports.malformed = Some(Arc::new(report));
        self
    }

    /// Is told of each event that has no handler, whatever [`unknown`](Self::unknown) says to do with
    /// it: a metric, say. The log has the first of each type.
    pub fn on_unknown(mut self, report: impl Fn(&UnknownEvent) + Send + Sync + 'static) -> Self {
        self.reports.unknown = Some(Arc::new(report));
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
        worker.receiver.reports = self.reports;
        Ok(worker)
    }
}

impl<M> fmt::Debug for Consumer<M> {
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
    #[error("{0}")]
    UnknownEvent(UnknownEvent),
    /// An entry is no event, and [`Consumer::malformed`] says to stop. It is still pending.
    #[error("{0}")]
    Malformed(MalformedEntry),
}
