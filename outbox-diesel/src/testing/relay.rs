//! A relay that a test runs step by step.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::options::RelayOptions;
use crate::publish::{Batch, Contact, Publisher, Receipt, Unavailable, Verdict};
use crate::relay::Pool;
use crate::relay::drain::Drain;
pub use crate::relay::drain::{CrashPoint, DrainError};

/// A relay for tests: it does nothing until it is told to, delivers everything there is, and never
/// waits for time to pass.
///
/// ```no_run
/// use outbox_diesel::publish::{OwnedMessage, publisher_fn};
/// use outbox_diesel::testing::{CrashPoint, TestRelay};
/// # use outbox_diesel::relay::Pool;
/// # async fn my_handler(_: OwnedMessage) -> std::io::Result<()> { Ok(()) }
/// # async fn place_an_order(_: &Pool) {}
/// # async fn balance(_: &Pool) -> i64 { 0 }
///
/// # async fn test(pool: Pool) -> Result<(), outbox_diesel::testing::DrainError> {
/// // A publisher that remembers nothing: the handler sees every repeat.
/// let publisher = publisher_fn(|event: OwnedMessage| async { Ok(my_handler(event).await?) });
/// let mut relay = TestRelay::new(pool.clone(), publisher);
/// for crash in CrashPoint::ALL {
///     place_an_order(&pool).await;
///     relay.crash_at(crash).await?;
///     relay.deliver_all().await?;
/// }
/// assert_eq!(balance(&pool).await, 3, "the handler is idempotent");
/// # Ok(())
/// # }
/// ```
///
/// Events must be committed, in a database of the test's own: it takes every shard from whoever
/// has it, and counts that one as dead. It works through ticks, cursors, parked events and fences
/// as any relay does, and leaves them as one. Events that are rejected are tried again without a
/// pause, until they are delivered or dead. An operator's replay has a pace and is left to a real
/// relay.
pub struct TestRelay<P> {
    drain: Drain<Counting<P>>,
    delivered: Arc<AtomicU64>,
}

impl<P: Publisher> TestRelay<P> {
    /// A relay of the subscription `default`, with the default options.
    pub fn new(pool: Pool, publisher: P) -> Self {
        Self::with(pool, publisher, "default", RelayOptions::default())
    }

    /// A relay of this subscription with these options: how often to try, how long a publish may
    /// take, how large a batch is. Leases, intervals and pauses do not matter here.
    pub fn with(
        pool: Pool,
        publisher: P,
        subscription: impl Into<String>,
        options: RelayOptions,
    ) -> Self {
        let delivered = Arc::new(AtomicU64::new(0));
        let publisher = Counting { publisher, delivered: Arc::clone(&delivered) };
        Self { drain: Drain::new(pool, options, subscription.into(), publisher), delivered }
    }

    /// Delivers everything that is committed: until nothing is left but dead letters and what waits
    /// behind them. Returns how many events the publisher has delivered, repeats included.
    ///
    /// # Errors
    /// The first time that the database or the broker fails. A next call begins as a new relay.
    ///
    /// # Cancel safety
    /// A dropped future is a relay that died somewhere; a next call begins as a new one.
    pub async fn deliver_all(&mut self) -> Result<u64, DrainError> {
        self.delivered.store(0, Ordering::Relaxed);
        self.drain.run(None).await?;
        Ok(self.delivered.load(Ordering::Relaxed))
    }

    /// Begins to deliver and dies at this point. Returns how many events were published by then.
    ///
    /// # Errors
    /// As [`deliver_all`](Self::deliver_all), and if there was no event to die at.
    ///
    /// # Cancel safety
    /// As [`deliver_all`](Self::deliver_all).
    pub async fn crash_at(&mut self, point: CrashPoint) -> Result<u64, DrainError> {
        self.delivered.store(0, Ordering::Relaxed);
        self.drain.run(Some(point)).await?;
        Ok(self.delivered.load(Ordering::Relaxed))
    }
}

impl<P> fmt::Debug for TestRelay<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestRelay").finish_non_exhaustive()
    }
}

/// Counts what a publisher delivers.
struct Counting<P> {
    publisher: P,
    delivered: Arc<AtomicU64>,
}

impl<P: Publisher> Publisher for Counting<P> {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        self.publisher.contact(batch).await
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        let receipt = self.publisher.publish(batch).await;
        let delivered = receipt.verdicts().iter().filter(|verdict| **verdict == Verdict::Delivered);
        self.delivered.fetch_add(delivered.count() as u64, Ordering::Relaxed);
        receipt
    }
}
