//! Settings of a relay.

mod wake;

use std::collections::BTreeMap;
use std::time::Duration;

pub use self::wake::Wake;

/// A lease that ends later than this was written before the database's clock was set back, whoever
/// holds it and whatever lease it was given.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(300);

/// The longest time between two looks of a relay that sleeps.
const LONGEST_SLEEP: Duration = Duration::from_secs(300);

/// Settings of a relay. Times are checked against each other when the relay starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayOptions {
    pub(crate) lease: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) publish_timeout: Duration,
    pub(crate) database_timeout: Duration,
    pub(crate) batch_events: u16,
    pub(crate) batch_bytes: u32,
    pub(crate) poll_awake: Duration,
    pub(crate) poll_idle: Duration,
    pub(crate) wake: Wake,
    pub(crate) poll_asleep: Duration,
    pub(crate) settle_interval: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) retry: RetryOptions,
    pub(crate) retry_for: BTreeMap<String, RetryOptions>,
    pub(crate) retention: Duration,
    pub(crate) purge_after: Option<Duration>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            heartbeat: Duration::from_secs(3),
            publish_timeout: Duration::from_secs(5),
            database_timeout: Duration::from_secs(5),
            batch_events: 1000,
            batch_bytes: 8 * 1024 * 1024,
            poll_awake: Duration::from_millis(1),
            poll_idle: Duration::from_millis(20),
            wake: Wake::Poll,
            poll_asleep: Duration::from_secs(5),
            settle_interval: Duration::from_millis(100),
            shutdown_timeout: Duration::from_secs(10),
            retry: RetryOptions::default(),
            retry_for: BTreeMap::new(),
            retention: Duration::from_secs(7 * 24 * 3600),
            purge_after: None,
        }
    }
}

impl RelayOptions {
    /// How long a shard stays with a relay that is not heard of. The take-over after a crash takes
    /// that long. At most 5 min. Default: 10 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often the lease is renewed. Default: 3 s.
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// How long one call of the publisher may take before its outcome counts as unknown. A publish
    /// starts only if it must end within the lease. Default: 5 s.
    #[must_use]
    pub fn publish_timeout(mut self, publish_timeout: Duration) -> Self {
        self.publish_timeout = publish_timeout;
        self
    }

    /// How long one statement may take before the connection is given up. Default: 5 s.
    #[must_use]
    pub fn database_timeout(mut self, database_timeout: Duration) -> Self {
        self.database_timeout = database_timeout;
        self
    }

    /// How many events are read and published at once, at most. Default: 1,000.
    #[must_use]
    pub fn batch_events(mut self, batch_events: u16) -> Self {
        self.batch_events = batch_events;
        self
    }

    /// How many bytes of events are read and published at once; one event more may come on top.
    /// The relay's memory is a small multiple of it. Default: 8 MiB.
    #[must_use]
    pub fn batch_bytes(mut self, batch_bytes: u32) -> Self {
        self.batch_bytes = batch_bytes;
        self
    }

    /// The shortest pause between two polls while events come. Default: 1 ms.
    #[must_use]
    pub fn poll_awake(mut self, poll_awake: Duration) -> Self {
        self.poll_awake = poll_awake;
        self
    }

    /// The pause between two polls while nothing happens for this subscription, though others may
    /// get events. Default: 20 ms.
    #[must_use]
    pub fn poll_idle(mut self, poll_idle: Duration) -> Self {
        self.poll_idle = poll_idle;
        self
    }

    /// How the relay learns of new events. Default: [`Wake::Poll`].
    #[must_use]
    pub fn wake(mut self, wake: Wake) -> Self {
        self.wake = wake;
        self
    }

    /// With [`Wake::Listen`]: how often a relay that sleeps looks all the same, tests the connection
    /// that is to wake it, and looks for shards of relays that crashed. At most 5 min. Default: 5 s.
    #[must_use]
    pub fn poll_asleep(mut self, poll_asleep: Duration) -> Self {
        self.poll_asleep = poll_asleep;
        self
    }

    /// How often cursors are written, at most. After a crash, what was published since is read
    /// again; a fencing publisher skips it. Default: 100 ms.
    #[must_use]
    pub fn settle_interval(mut self, settle_interval: Duration) -> Self {
        self.settle_interval = settle_interval;
        self
    }

    /// How long a shutdown may take. What is in flight then is abandoned and its outcome unknown,
    /// as after a crash. Default: 10 s.
    #[must_use]
    pub fn shutdown_timeout(mut self, shutdown_timeout: Duration) -> Self {
        self.shutdown_timeout = shutdown_timeout;
        self
    }

    /// When rejected events are tried again. Default: see [`RetryOptions`].
    #[must_use]
    pub fn retry(mut self, retry: RetryOptions) -> Self {
        self.retry = retry;
        self
    }

    /// The same for events of one type, in place of [`retry`](Self::retry). What is parked already
    /// keeps its place in the order of its aggregate. Default: none.
    ///
    /// ```
    /// use outbox_diesel::{Order, RelayOptions, RetryOptions};
    ///
    /// let options = RelayOptions::default()
    ///     .retry_for("order.viewed", RetryOptions::default().attempts(3).order(Order::Unordered));
    /// # drop(options);
    /// ```
    #[must_use]
    pub fn retry_for(mut self, event_type: impl Into<String>, retry: RetryOptions) -> Self {
        self.retry_for.insert(event_type.into(), retry);
        self
    }

    /// What holds for an event of this type.
    pub(crate) fn retry_of(&self, event_type: &str) -> &RetryOptions {
        self.retry_for.get(event_type).unwrap_or(&self.retry)
    }

    /// How long events are kept at least, for replay and for subscriptions to come; dedup keys are
    /// unique for as long, and records of discarded events and replays stay at least as long. Events go by whole partitions, of about a day each, and only when every
    /// subscription has passed them. Default: 7 days.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Deletes events of this age one by one, once every subscription has passed them: for those
    /// who must not keep data until its partition goes. Their space comes back with it or by
    /// vacuum. Default: off.
    #[must_use]
    pub fn purge_after(mut self, age: Duration) -> Self {
        self.purge_after = Some(age);
        self
    }

    /// Deletes events by whole partitions only. That is the default.
    #[must_use]
    pub fn no_purge(mut self) -> Self {
        self.purge_after = None;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidOptions> {
        let short = Duration::from_millis(1);
        if self.heartbeat < short || self.publish_timeout < short || self.database_timeout < short {
            return Err(InvalidOptions::Zero);
        }
        if self.batch_events == 0 || self.batch_bytes == 0 {
            return Err(InvalidOptions::EmptyBatch);
        }
        if self.retry_for.values().chain([&self.retry]).any(|retry| retry.attempts == 0) {
            return Err(InvalidOptions::NoAttempts);
        }
        if self.poll_asleep < short || self.poll_asleep > LONGEST_SLEEP {
            return Err(InvalidOptions::PollAsleep { poll_asleep: self.poll_asleep });
        }
        if self.lease > LONGEST_LEASE {
            return Err(InvalidOptions::LeaseTooLong { lease: self.lease });
        }
        let timeout = self.publish_timeout.max(self.database_timeout);
        if self.heartbeat.saturating_add(timeout) >= self.lease {
            return Err(InvalidOptions::LeaseTooShort {
                lease: self.lease,
                heartbeat: self.heartbeat,
                timeout,
            });
        }
        Ok(())
    }
}

/// Settings that cannot work together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOptions {
    /// Heartbeat and timeouts must be at least a millisecond.
    #[error("heartbeat, publish timeout and database timeout must be at least 1 ms")]
    Zero,
    /// A batch must hold something.
    #[error("a batch must be allowed at least one event and one byte")]
    EmptyBatch,
    /// At least one attempt.
    #[error("at least one attempt must be allowed; 1 means that a rejected event is dead at once")]
    NoAttempts,
    /// Emits notify for three times as long after a relay died asleep, and at most for 15 min.
    #[error("poll_asleep of {poll_asleep:?} must be at least 1 ms and at most {LONGEST_SLEEP:?}")]
    PollAsleep {
        /// How long the relay would have slept.
        poll_asleep: Duration,
    },
    /// A lease that ends later than any could counts as over, because the clock was set back.
    #[error("the lease of {lease:?} must be at most {LONGEST_LEASE:?}")]
    LeaseTooLong {
        /// The lease.
        lease: Duration,
    },
    /// A publish that starts just before a heartbeat must end before the lease does, or two relays
    /// would publish one shard.
    #[error(
        "the lease of {lease:?} must be longer than the heartbeat of {heartbeat:?} and a timeout of {timeout:?} together"
    )]
    LeaseTooShort {
        /// The lease.
        lease: Duration,
        /// The heartbeat.
        heartbeat: Duration,
        /// The longer one of publish timeout and database timeout.
        timeout: Duration,
    },
}

/// When a rejected event is tried again: after a random time up to `base`, up to twice that after
/// the second attempt, and so on up to `cap` (exponential backoff with full jitter). And what its
/// aggregate does meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryOptions {
    pub(crate) base: Duration,
    pub(crate) cap: Duration,
    pub(crate) attempts: u16,
    pub(crate) order: Order,
}

/// What later events of an aggregate do while an earlier one is not delivered. It is decided event
/// by event when one is parked, and stored with it: relays with other settings abide by it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// They wait, behind a dead one until an operator retries or discards it.
    #[default]
    Hold,
    /// They wait until it is dead, and then pass it.
    Skip,
    /// Events of this type wait for none, and none waits for them.
    Unordered,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(2),
            cap: Duration::from_secs(300),
            attempts: 10,
            order: Order::Hold,
        }
    }
}

impl RetryOptions {
    /// The longest pause after the first attempt. Default: 2 s.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// The longest pause at all. Default: 5 min.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// How often an event is tried before it is dead, the first time included. Default: 10.
    #[must_use]
    pub fn attempts(mut self, attempts: u16) -> Self {
        self.attempts = attempts;
        self
    }

    /// What later events of the aggregate do meanwhile. Default: [`Order::Hold`].
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The longest pause after this many attempts; the actual one is random below it.
    pub(crate) fn longest_pause(&self, attempts: u16) -> Duration {
        let doublings = u32::from(attempts.saturating_sub(1)).min(31);
        self.base.saturating_mul(1 << doublings).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_never_overflow() {
        let retry = RetryOptions::default();
        let pauses = [1, 2, 3, 8, 9, 10, u16::MAX].map(|n| retry.longest_pause(n).as_secs());
        assert_eq!(pauses, [2, 4, 8, 256, 300, 300, 300]);
        let endless = RetryOptions::default().base(Duration::MAX).cap(Duration::MAX);
        assert_eq!(endless.longest_pause(u16::MAX), Duration::MAX);
    }

    #[test]
    fn an_event_type_may_have_its_own_retries_and_none_may_have_no_attempt() {
        let own = RetryOptions::default().attempts(1).order(Order::Unordered);
        let options = RelayOptions::default().retry_for("order.viewed", own.clone());
        assert_eq!(options.retry_of("order.viewed"), &own);
        assert_eq!(options.retry_of("order.paid"), &RetryOptions::default());
        let none = options.retry_for("order.paid", RetryOptions::default().attempts(0));
        assert_eq!(none.check(), Err(InvalidOptions::NoAttempts));
    }

    #[test]
    fn a_lease_that_a_publish_can_outlive_is_refused() {
        let options = RelayOptions::default().publish_timeout(Duration::from_secs(7));
        let text = options.check().expect_err("7 s + 3 s reach 10 s").to_string();
        assert!(text.contains("10s") && text.contains("3s") && text.contains("7s"), "{text}");
        assert_eq!(RelayOptions::default().check(), Ok(()));
        let options = RelayOptions::default().heartbeat(Duration::MAX);
        assert!(matches!(options.check(), Err(InvalidOptions::LeaseTooShort { .. })));
        let text = RelayOptions::default().lease(Duration::from_secs(301)).check();
        assert!(text.expect_err("too long").to_string().contains("301s"));
        let text = RelayOptions::default().poll_asleep(Duration::from_secs(302)).check();
        assert!(text.expect_err("too long").to_string().contains("302s"));
    }
}
