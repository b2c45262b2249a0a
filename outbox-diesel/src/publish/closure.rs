//! A publisher from a closure, for brokers that need no more than a call per event.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Batch, Publisher, Receipt};
use crate::message::{Chunk, Fields, Message};

/// Makes a publisher that calls the closure once per event, one after another, in order.
///
/// After [`PublishError::Rejected`] it goes on with the events of other aggregates; after
/// [`PublishError::Unavailable`] it stops. Delivery is at-least-once: consumers drop repeats by
/// [`OwnedMessage::id`].
///
/// ```
/// use outbox_diesel::publish::{OwnedMessage, PublishError, publisher_fn};
///
/// async fn post(body: &str) -> Result<u16, std::io::Error> {
///     # let _ = body;
///     Ok(204)
/// }
///
/// let publisher = publisher_fn(|event: OwnedMessage| async move {
///     match post(event.payload()).await? {
///         200..=299 => Ok(()),
///         400..=499 => Err(PublishError::Rejected(format!("{} was refused", event.id()))),
///         status => Err(PublishError::Unavailable(format!("status {status}"))),
///     }
/// });
/// ```
pub fn publisher_fn<F, Fut>(publish: F) -> PublisherFn<F>
where
    F: FnMut(OwnedMessage) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), PublishError>> + Send,
{
    PublisherFn { publish }
}

/// What [`publisher_fn`] makes.
pub struct PublisherFn<F> {
    publish: F,
}

/// Why a closure could not publish an event.
///
/// Any error turns into [`Unavailable`](Self::Unavailable) with `?`, which is the safer way to be
/// wrong: nothing is given up. (That is why this is no [`std::error::Error`] itself.)
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishError {
    /// The event itself is at fault, for the reason given: it is parked and retried later.
    Rejected(String),
    /// The broker can't be used now, for the reason given: everything waits.
    Unavailable(String),
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(reason) => write!(f, "the event was rejected: {reason}"),
            Self::Unavailable(reason) => write!(f, "the broker is unavailable: {reason}"),
        }
    }
}

impl<E: std::error::Error> From<E> for PublishError {
    /// The reason is the error's text and those of its sources.
    fn from(error: E) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            reason = format!("{reason}: {cause}");
            source = cause.source();
        }
        Self::Unavailable(reason)
    }
}

/// # Cancel safety
/// Dropping the future drops the closure's. Whether that event went out is unknown then.
impl<F, Fut> Publisher for PublisherFn<F>
where
    F: FnMut(OwnedMessage) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), PublishError>> + Send,
{
    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        let mut receipt = Receipt::new(batch);
        let mut failed = HashSet::new();
        for (nth, message) in batch.messages().iter().enumerate() {
            let aggregate = (message.aggregate_type(), message.aggregate_id());
            if failed.contains(&aggregate) {
                continue;
            }
            match (self.publish)(OwnedMessage::from(message)).await {
                Ok(()) => receipt.delivered(nth),
                Err(PublishError::Rejected(reason)) => {
                    receipt.rejected(nth, reason);
                    failed.insert(aggregate);
                }
                Err(PublishError::Unavailable(reason)) => {
                    receipt.unavailable(reason);
                    break;
                }
            }
        }
        receipt
    }
}

impl<F> fmt::Debug for PublisherFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublisherFn").finish_non_exhaustive()
    }
}

/// An event that owns its texts.
pub struct OwnedMessage {
    /// Holds exactly one event: two allocations instead of one per text.
    chunk: Chunk,
}

impl OwnedMessage {
    fn message(&self) -> Message<'_> {
        self.chunk.messages().next().expect("it was made from one message")
    }

    /// The event's id: the consumers' dedup key.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.message().id()
    }

    /// Where to publish.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.message().topic()
    }

    /// The aggregate's type.
    #[must_use]
    pub fn aggregate_type(&self) -> &str {
        self.message().aggregate_type()
    }

    /// The aggregate's id: the partition key for brokers that have one.
    #[must_use]
    pub fn aggregate_id(&self) -> &str {
        self.message().aggregate_id()
    }

    /// What happened.
    #[must_use]
    pub fn event_type(&self) -> &str {
        self.message().event_type()
    }

    /// Version of the payload's shape.
    #[must_use]
    pub fn event_version(&self) -> i16 {
        self.message().event_version()
    }

    /// The producer's dedup key.
    #[must_use]
    pub fn dedup_key(&self) -> Option<&str> {
        self.message().dedup_key()
    }

    /// The payload's JSON text, byte for byte as it was emitted.
    #[must_use]
    pub fn payload(&self) -> &str {
        self.message().payload()
    }

    /// The headers' JSON text, an object of strings.
    #[must_use]
    pub fn headers(&self) -> &str {
        self.message().headers()
    }

    /// When the event was emitted, by the database's clock. Information only.
    #[must_use]
    pub fn created_at(&self) -> DateTime<Utc> {
        self.message().created_at()
    }

    /// The shard of its aggregate, 0 to 15.
    #[must_use]
    pub fn shard(&self) -> u8 {
        self.message().shard()
    }

    /// The tick that made it visible: the first part of its position.
    #[must_use]
    pub fn tick(&self) -> i64 {
        self.message().tick()
    }

    /// Its place within the tick: the second part of its position.
    #[must_use]
    pub fn seq(&self) -> i64 {
        self.message().seq()
    }
}

impl From<&Message<'_>> for OwnedMessage {
    fn from(message: &Message<'_>) -> Self {
        let mut chunk = Chunk::default();
        chunk.push(Fields {
            tick: message.tick(),
            seq: message.seq(),
            shard: message.shard(),
            id: message.id(),
            topic: message.topic(),
            aggregate_type: message.aggregate_type(),
            aggregate_id: message.aggregate_id(),
            event_type: message.event_type(),
            event_version: message.event_version(),
            dedup_key: message.dedup_key(),
            payload: message.payload(),
            headers: message.headers(),
            created_at: message.created_at(),
        });
        Self { chunk }
    }
}

impl Clone for OwnedMessage {
    fn clone(&self) -> Self {
        Self::from(&self.message())
    }
}

impl fmt::Debug for OwnedMessage {
    /// Without payload and headers: they may hold personal data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message().fmt(f)
    }
}
