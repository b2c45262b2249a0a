//! A publisher for tests: a broker in memory that keeps what it got and can be told to misbehave.

mod fence;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use self::fence::{Fences, Known};
use super::{Batch, Contact, OwnedMessage, Publisher, Receipt, Unavailable};

/// A broker in memory, with one destination per topic and the fence of the Redis publisher.
///
/// Clones share the broker; each is a connection of its own, as another relay would have.
///
/// ```
/// use outbox_diesel::publish::RecordingPublisher;
///
/// let broker = RecordingPublisher::default();
/// let for_the_relay = broker.clone();
/// broker.reject(|event| (event.event_type() == "order.created").then(|| "no orders".into()));
/// assert!(broker.delivered().is_empty());
/// # drop(for_the_relay);
/// ```
#[derive(Default)]
pub struct RecordingPublisher {
    broker: Arc<Mutex<Broker>>,
    /// Empty while a call runs: one that is dropped halfway has to make its contacts again.
    contacts: Known,
}

/// An event that the broker took, and under whose stamp.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Recorded {
    /// The event.
    pub message: OwnedMessage,
    /// The source's id.
    pub source: Uuid,
    /// The subscription's name.
    pub subscription: String,
    /// The generation.
    pub generation: i64,
    /// The epoch of the event's shard.
    pub epoch: i64,
}

type Objection = Box<dyn Fn(&OwnedMessage) -> Option<String> + Send>;
type Concern = Box<dyn Fn(&OwnedMessage) -> bool + Send>;

#[derive(Default)]
struct Broker {
    delivered: Vec<Recorded>,
    repeats: usize,
    fences: Fences,
    away: Option<String>,
    hangs: bool,
    delay: Duration,
    answers_to_lose: usize,
    objection: Option<Objection>,
    panic: Option<Concern>,
    hang: Option<Concern>,
}

impl RecordingPublisher {
    /// What the broker has, in the order in which it came.
    #[must_use]
    pub fn delivered(&self) -> Vec<Recorded> {
        self.broker().delivered.clone()
    }

    /// How many events came again and were recognised.
    #[must_use]
    pub fn repeats(&self) -> usize {
        self.broker().repeats
    }

    /// From now on the broker is unavailable, for the reason given.
    pub fn go_away(&self, reason: impl Into<String>) {
        self.broker().away = Some(reason.into());
    }

    /// From now on no call is answered before it is dropped.
    pub fn hang(&self) {
        self.broker().hangs = true;
    }

    /// The broker is there again: ends [`go_away`](Self::go_away) and [`hang`](Self::hang) for
    /// calls to come.
    pub fn come_back(&self) {
        let mut broker = self.broker();
        broker.away = None;
        broker.hangs = false;
    }

    /// How long each batch is on its way before the broker sees it. Default: not at all.
    pub fn delay(&self, delay: Duration) {
        self.broker().delay = delay;
    }

    /// The next batches arrive, but their answers get lost: the relay hears that the broker is
    /// unavailable.
    pub fn lose_answers(&self, batches: usize) {
        self.broker().answers_to_lose = batches;
    }

    /// Which events are rejected, and why. Replaces what was said before.
    pub fn reject(&self, why: impl Fn(&OwnedMessage) -> Option<String> + Send + 'static) {
        self.broker().objection = Some(Box::new(why));
    }

    /// At which events to panic. Replaces what was said before.
    pub fn panic_at(&self, event: impl Fn(&OwnedMessage) -> bool + Send + 'static) {
        self.broker().panic = Some(Box::new(event));
    }

    /// At which events to hang: nothing of their batch arrives. Replaces what was said before.
    pub fn hang_at(&self, event: impl Fn(&OwnedMessage) -> bool + Send + 'static) {
        self.broker().hang = Some(Box::new(event));
    }

    /// A test that panics on purpose poisons the lock; the broker goes on.
    fn broker(&self) -> MutexGuard<'_, Broker> {
        self.broker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as it was told to, and says whether the broker can be reached.
    async fn travel(&self) -> Result<(), Unavailable> {
        let (hangs, delay) = {
            let broker = self.broker();
            (broker.hangs, broker.delay)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        match &self.broker().away {
            Some(reason) => Err(Unavailable(reason.clone())),
            None => Ok(()),
        }
    }
}

/// # Cancel safety
/// Either future can be dropped: the broker has then seen nothing of the batch.
impl Publisher for RecordingPublisher {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        let mut contacts = std::mem::take(&mut self.contacts);
        self.travel().await?;
        let told = self.broker().fences.contact(&mut contacts, batch);
        self.contacts = contacts;
        Ok(told)
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        let contacts = std::mem::take(&mut self.contacts);
        let mut receipt = Receipt::new(batch);
        if let Err(Unavailable(reason)) = self.travel().await {
            receipt.unavailable(reason);
            return receipt;
        }
        if !contacts.cover(batch) {
            receipt.unavailable("a destination of the batch had no first contact yet");
            return receipt;
        }
        if self.broker().hangs_at(batch) {
            std::future::pending::<()>().await;
        }
        let mut broker = self.broker();
        let lost = broker.answers_to_lose > 0;
        broker.receive(batch, &mut receipt);
        if lost {
            broker.answers_to_lose -= 1;
            receipt = Receipt::new(batch);
            receipt.unavailable("the answer was lost");
        }
        drop(broker);
        if receipt.unavailability().is_none() {
            self.contacts = contacts;
        }
        receipt
    }
}

impl Broker {
    fn hangs_at(&self, batch: &Batch<'_>) -> bool {
        let Some(at) = &self.hang else { return false };
        batch.messages().iter().any(|message| at(&OwnedMessage::from(message)))
    }

    /// Takes events in order. A destination stops at its first failure, and so does an aggregate.
    fn receive(&mut self, batch: &Batch<'_>, receipt: &mut Receipt) {
        let messages = batch.messages();
        let mut stopped: Vec<usize> = Vec::new();
        let refused = self.fences.refused(batch);
        for (_, shard) in &refused {
            if !receipt.fenced_shards().contains(shard) {
                receipt.fenced(*shard);
            }
        }
        for (nth, message) in messages.iter().enumerate() {
            let behind = stopped.iter().any(|nth| {
                messages[*nth].topic() == message.topic() || messages[*nth].same_aggregate(message)
            });
            if behind || refused.iter().any(|(topic, _)| topic == message.topic()) {
                stopped.push(nth);
                continue;
            }
            match self.fences.is_repeat(batch.stamp(), message) {
                Ok(false) => {}
                Ok(true) => {
                    self.repeats += 1;
                    receipt.delivered(nth);
                    continue;
                }
                Err(reason) => {
                    receipt.unavailable(reason);
                    return;
                }
            }
            let owned = OwnedMessage::from(message);
            assert!(
                !self.panic.as_ref().is_some_and(|at| at(&owned)),
                "told to panic at {}",
                owned.id()
            );
            if let Some(reason) = self.objection.as_ref().and_then(|why| why(&owned)) {
                receipt.rejected(nth, reason);
                stopped.push(nth);
                continue;
            }
            self.fences.store(batch.stamp(), message);
            self.delivered.push(Recorded {
                message: owned,
                source: batch.stamp().source,
                subscription: batch.stamp().subscription.clone(),
                generation: batch.stamp().generation,
                epoch: batch.stamp().epochs[usize::from(message.shard())],
            });
            receipt.delivered(nth);
        }
    }
}

impl Clone for RecordingPublisher {
    fn clone(&self) -> Self {
        Self { broker: Arc::clone(&self.broker), contacts: Known::default() }
    }
}

impl fmt::Debug for RecordingPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingPublisher")
            .field("delivered", &self.broker().delivered.len())
            .finish_non_exhaustive()
    }
}
