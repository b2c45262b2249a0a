//! Publish: hands a [`Batch`] to a broker. [`Publisher`] is the one trait to implement for a new
//! broker.

mod closure;
#[cfg(feature = "testing")]
mod recording;
#[cfg(feature = "redis")]
pub mod redis;

use std::future::Future;

use uuid::Uuid;

pub use self::closure::{OwnedMessage, PublishError, PublisherFn, publisher_fn};
#[cfg(feature = "testing")]
pub use self::recording::{Recorded, RecordingPublisher};

use crate::message::{Message, SHARDS};

/// Sends events to a broker.
///
/// # Contract
/// * Events of one aggregate go out in batch order. After one of them is rejected, or its outcome
///   is not known, no later event of that aggregate may go out: it stays
///   [`Unattempted`](Verdict::Unattempted).
/// * [`Rejected`](Verdict::Rejected) means that the event itself is at fault and trying again at
///   once is useless. It costs an attempt. A broker that is away, full, loading or read-only
///   rejects nothing: answer [`Receipt::unavailable`], which costs nobody anything.
/// * A broker that can remember an epoch and a position per shard and destination makes delivery
///   exactly-once: see [`contact`](Self::contact). Without it delivery is at-least-once.
///
/// # Cancel safety
/// The relay drops the future of either method when the publish timeout runs out and treats the
/// outcome as unknown. The next call must then start from a clean connection or a clean state.
pub trait Publisher: Send + 'static {
    /// First contact with each destination of the batch under each shard's epoch.
    ///
    /// The relay calls this before every publish. A publisher without fencing keeps the default.
    /// A fencing one asks, for each pair of destination and shard that it has not yet asked under
    /// this epoch and generation, the broker to store the epoch (which shuts out calls of earlier
    /// owners that are still on their way) and to tell what it has stored. Nothing of the batch
    /// goes out before the relay has looked at the answer.
    fn contact(
        &mut self,
        batch: &Batch<'_>,
    ) -> impl Future<Output = Result<Vec<Contact>, Unavailable>> + Send {
        let _ = batch;
        async { Ok(Vec::new()) }
    }

    /// Publishes the batch in order and says what became of each event.
    fn publish(&mut self, batch: &Batch<'_>) -> impl Future<Output = Receipt> + Send;
}

/// Who publishes, and how a fencing broker is to recognise a repeat.
#[derive(Debug, Clone)]
pub struct Stamp {
    /// The database's random id: several databases may feed one broker.
    pub source: Uuid,
    /// The subscription's name.
    pub subscription: String,
    /// Raised whenever positions may repeat: the subscription was rewound, the database went back.
    pub generation: i64,
    /// The epoch of each shard.
    pub epochs: [i64; SHARDS],
    /// What tells a repeat.
    pub repeat: Repeat,
}

/// How a repeat of an event is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// By position (generation, tick, seq): one at or below the stored one is a repeat. All events
    /// of the batch lie in the same tick.
    Position {
        /// The tick's random mark: equal ids with unlike marks are unlike ticks.
        mark: i64,
    },
    /// By event id: a parked event that is tried again, behind the position of its shard.
    EventId,
}

/// Events to publish now, in position order.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    stamp: &'a Stamp,
    messages: &'a [Message<'a>],
}

impl<'a> Batch<'a> {
    /// A batch; public so that publishers can be tested.
    #[must_use]
    pub fn new(stamp: &'a Stamp, messages: &'a [Message<'a>]) -> Self {
        Self { stamp, messages }
    }

    /// Who publishes.
    #[must_use]
    pub fn stamp(&self) -> &'a Stamp {
        self.stamp
    }

    /// The events, in position order.
    #[must_use]
    pub fn messages(&self) -> &'a [Message<'a>] {
        self.messages
    }
}

/// What became of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The broker has it, from this call or an earlier one.
    Delivered,
    /// The broker will not take it, for the reason given.
    Rejected(String),
    /// It was not sent, or nobody knows.
    Unattempted,
}

/// The broker can't be used now, for the reason given. Nobody's fault: the relay backs off, raises
/// the epoch and tries the same positions again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the broker is unavailable: {0}")]
pub struct Unavailable(pub String);

/// A publisher's answer to a batch: one verdict per event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    verdicts: Vec<Verdict>,
    unavailable: Option<Unavailable>,
    fenced: Vec<u8>,
}

impl Receipt {
    /// A receipt on which nothing was attempted yet.
    #[must_use]
    pub fn new(batch: &Batch<'_>) -> Self {
        Self {
            verdicts: vec![Verdict::Unattempted; batch.messages().len()],
            unavailable: None,
            fenced: Vec::new(),
        }
    }

    /// The receipt of a batch that went through.
    #[must_use]
    pub fn all_delivered(batch: &Batch<'_>) -> Self {
        Self {
            verdicts: vec![Verdict::Delivered; batch.messages().len()],
            unavailable: None,
            fenced: Vec::new(),
        }
    }

    /// Event `nth` of the batch was delivered.
    pub fn delivered(&mut self, nth: usize) {
        self.verdicts[nth] = Verdict::Delivered;
    }

    /// Event `nth` of the batch was refused for its own fault.
    pub fn rejected(&mut self, nth: usize, reason: impl Into<String>) {
        self.verdicts[nth] = Verdict::Rejected(reason.into());
    }

    /// What has no verdict could not be sent, or nobody knows whether it was.
    pub fn unavailable(&mut self, reason: impl Into<String>) {
        self.unavailable = Some(Unavailable(reason.into()));
    }

    /// The broker has seen a later epoch of this shard: another relay owns it.
    pub fn fenced(&mut self, shard: u8) {
        self.fenced.push(shard);
    }

    /// One verdict per event, in batch order.
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Why the rest could not be sent.
    #[must_use]
    pub fn unavailability(&self) -> Option<&Unavailable> {
        self.unavailable.as_ref()
    }

    /// Shards that another relay owns.
    #[must_use]
    pub fn fenced_shards(&self) -> &[u8] {
        &self.fenced
    }
}

/// What a fencing broker had stored for one shard at one destination, at first contact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// The destination, for the log.
    pub destination: String,
    /// The shard.
    pub shard: u8,
    /// The stored epoch, before this contact. Above the batch's: nothing was changed.
    pub epoch: i64,
    /// Generation, tick, mark and seq of the last event stored, if there was one.
    pub position: Option<StoredPosition>,
}

/// The last position that a broker has stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredPosition {
    /// The generation.
    pub generation: i64,
    /// The tick.
    pub tick: i64,
    /// The tick's mark.
    pub mark: i64,
    /// The place within the tick.
    pub seq: i64,
}
