//! [`MishapPublisher`]: what happens to a relay around a publish.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_diesel::publish::{Batch, Contact, Publisher, Receipt, Unavailable};
use tokio_util::sync::CancellationToken;

/// What happens at a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// The relay dies before the batch goes out.
    CrashBefore,
    /// The relay dies after the batch went out, before anything is settled.
    CrashAfter,
    /// The relay stands still, heartbeat and all, and then goes on as if nothing had happened.
    StallBefore(Duration),
    /// The same, after the batch went out.
    StallAfter(Duration),
    /// The broker is away.
    Away,
    /// The batch arrives and the answer does not.
    LoseAnswer,
    /// No answer ever comes.
    Hang,
}

/// The mishaps to come of one relay.
#[derive(Debug, Clone, Default)]
pub struct Mishaps {
    to_come: Arc<Mutex<VecDeque<Mishap>>>,
    crash: CancellationToken,
}

impl Mishaps {
    /// This happens at a publish to come, after those that were pushed before.
    pub fn push(&self, mishap: Mishap) {
        self.to_come.lock().unwrap_or_else(PoisonError::into_inner).push_back(mishap);
    }

    /// No more mishaps.
    pub fn clear(&self) {
        self.to_come.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn next(&self) -> Option<Mishap> {
        self.to_come.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Cancelled when the relay is to die at once.
    #[must_use]
    pub fn crash(&self) -> &CancellationToken {
        &self.crash
    }
}

/// A publisher to which mishaps happen. A stall blocks the thread: give the relay one of its own.
#[derive(Debug)]
pub struct MishapPublisher<P> {
    publisher: P,
    mishaps: Mishaps,
}

impl<P> MishapPublisher<P> {
    /// The publisher behind, and what will happen.
    pub fn new(publisher: P, mishaps: Mishaps) -> Self {
        Self { publisher, mishaps }
    }

    async fn die(&mut self) -> ! {
        self.mishaps.crash.cancel();
        std::future::pending().await
    }
}

/// # Cancel safety
/// That of the publisher behind.
impl<P: Publisher> Publisher for MishapPublisher<P> {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        self.publisher.contact(batch).await
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        match self.mishaps.next() {
            None => self.publisher.publish(batch).await,
            Some(Mishap::CrashBefore) => self.die().await,
            Some(Mishap::CrashAfter) => {
                self.publisher.publish(batch).await;
                self.die().await
            }
            Some(Mishap::StallBefore(time)) => {
                std::thread::sleep(time);
                self.publisher.publish(batch).await
            }
            Some(Mishap::StallAfter(time)) => {
                let receipt = self.publisher.publish(batch).await;
                std::thread::sleep(time);
                receipt
            }
            Some(Mishap::Away) => {
                let mut receipt = Receipt::new(batch);
                receipt.unavailable("a mishap: away");
                receipt
            }
            Some(Mishap::LoseAnswer) => {
                self.publisher.publish(batch).await;
                let mut receipt = Receipt::new(batch);
                receipt.unavailable("a mishap: the answer was lost");
                receipt
            }
            Some(Mishap::Hang) => std::future::pending().await,
        }
    }
}
