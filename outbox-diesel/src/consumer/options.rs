//! Settings of a consumer.

use std::time::Duration;

use super::Consumer;
use super::lease::Leasing;
use super::route::Unhandled;

/// Settings, each with a default.
impl<M> Consumer<M> {
    /// What to do with events that have no handler, of their type or of their version. They are
    /// reported in any case, see [`on_unknown`](Self::on_unknown). Default:
    /// [`Unhandled::DeadLetter`].
    pub fn unknown(mut self, unknown: Unhandled) -> Self {
        self.settings.unknown = unknown;
        self
    }

    /// What to do with entries that are no events. They are logged in any case. Default:
    /// [`Unhandled::DeadLetter`].
    pub fn malformed(mut self, malformed: Unhandled) -> Self {
        self.settings.malformed = malformed;
        self
    }

    /// Where the group begins if it does not exist yet. Default: [`Start::Beginning`].
    pub fn start(mut self, start: Start) -> Self {
        self.settings.start = start;
        self
    }

    /// Reads each stream only while this consumer holds its lease, a key in Redis that is renewed
    /// four times in this time: several consumers may run, and one of them works on a stream, so
    /// that order per aggregate holds across them. When a holder dies, another one takes over after
    /// this time, and begins with everything that is pending, in the stream's order.
    ///
    /// A stream is read by a script that checks the lease, and a handler starts only if its timeout
    /// ends within the lease by this process's clock. A commit that was under way when its handler
    /// ran out of time may still arrive; with an inbox, the successor's handler of the same event
    /// waits for it. All consumers of the group must say so. A Redis that fails over to a replica
    /// may forget a lease: until the old holder hears of it, two may handle events. Streams are
    /// polled every 20 ms instead of waited for. Must be twice the handler timeout. Default: off.
    pub fn exclusive(mut self, lease: Duration) -> Self {
        self.settings.exclusive = Some(lease);
        self
    }

    /// How many handlers run at once, each for another aggregate. Default: 16.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// How many entries are held in memory, waiting or being handled; a few more may come on top.
    /// While this many wait behind failing ones, nothing new is read. Default: 1,000.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.settings.prefetch = prefetch;
        self
    }

    /// How often an event is tried before it is a dead letter, the first time included. Default: 10.
    pub fn max_deliveries(mut self, max_deliveries: u32) -> Self {
        self.settings.max_deliveries = max_deliveries;
        self
    }

    /// The longest pause after the first try; it doubles with each. Pauses are random below it.
    /// Default: 200 ms.
    pub fn retry_base(mut self, retry_base: Duration) -> Self {
        self.settings.retry_base = retry_base;
        self
    }

    /// The longest pause between two tries. Default: 30 s.
    pub fn retry_cap(mut self, retry_cap: Duration) -> Self {
        self.settings.retry_cap = retry_cap;
        self
    }

    /// How long a handler may take before its future is dropped and the event tried again.
    /// Default: 30 s.
    pub fn handler_timeout(mut self, handler_timeout: Duration) -> Self {
        self.settings.handler_timeout = handler_timeout;
        self
    }

    /// After how long a silent consumer's entries are taken over. A live one is heard of three
    /// times as often, however long its entries wait. Must be longer than the handler timeout, and
    /// the same for all consumers of a group. Default: 60 s.
    pub fn claim_after(mut self, claim_after: Duration) -> Self {
        self.settings.claim_after = claim_after;
        self
    }

    /// How long Redis waits for entries before it answers that there are none. A shutdown waits for
    /// that answer. Default: 1 s.
    pub fn block(mut self, block: Duration) -> Self {
        self.settings.block = block;
        self
    }

    /// How long connecting may take. Default: 2 s.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.settings.connect_timeout = connect_timeout;
        self
    }

    /// How long Redis may take to answer, the waiting of [`block`](Self::block) aside. Default: 4 s.
    pub fn response_timeout(mut self, response_timeout: Duration) -> Self {
        self.settings.response_timeout = response_timeout;
        self
    }

    /// How long a shutdown waits for handlers. What is running then is dropped, and delivered
    /// again. Default: 10 s.
    pub fn shutdown_timeout(mut self, shutdown_timeout: Duration) -> Self {
        self.settings.shutdown_timeout = shutdown_timeout;
        self
    }
}

/// Where a group that does not exist yet begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Start {
    /// At the stream's first entry. The default.
    #[default]
    Beginning,
    /// Behind the stream's last entry: **what was published before is never seen**. Only for the
    /// first time; a group that is lost later is created again at the beginning.
    New,
}

/// Settings of a consumer, as its builder collects them.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) streams: Vec<String>,
    pub(super) start: Start,
    pub(super) exclusive: Option<Duration>,
    pub(super) concurrency: usize,
    pub(super) prefetch: usize,
    pub(super) max_deliveries: u32,
    pub(super) retry_base: Duration,
    pub(super) retry_cap: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) claim_after: Duration,
    pub(super) block: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) response_timeout: Duration,
    pub(super) shutdown_timeout: Duration,
    pub(super) unknown: Unhandled,
    pub(super) malformed: Unhandled,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            streams: Vec::new(),
            start: Start::default(),
            exclusive: None,
            concurrency: 16,
            prefetch: 1000,
            max_deliveries: 10,
            retry_base: Duration::from_millis(200),
            retry_cap: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(30),
            claim_after: Duration::from_secs(60),
            block: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(4),
            shutdown_timeout: Duration::from_secs(10),
            unknown: Unhandled::default(),
            malformed: Unhandled::default(),
        }
    }
}

impl Settings {
    pub(super) fn check(&self, group: &str, consumer: &str) -> Result<(), InvalidConsumerOptions> {
        if self.streams.is_empty() {
            return Err(InvalidConsumerOptions::NoStreams);
        }
        if group.is_empty() || consumer.is_empty() {
            return Err(InvalidConsumerOptions::NoName);
        }
        if self.concurrency == 0 || self.prefetch == 0 || self.max_deliveries == 0 {
            return Err(InvalidConsumerOptions::Zero);
        }
        if self.claim_after <= self.handler_timeout {
            return Err(InvalidConsumerOptions::ClaimTooSoon {
                claim_after: self.claim_after,
                handler_timeout: self.handler_timeout,
            });
        }
        if let Some(lease) = self.exclusive
            && lease < self.handler_timeout * 2
        {
            return Err(InvalidConsumerOptions::LeaseTooShort {
                lease,
                handler_timeout: self.handler_timeout,
            });
        }
        Ok(())
    }

    /// How often entries in hand are kept from being claimed, and those of others looked at.
    pub(super) fn tick(&self) -> Duration {
        let claims = self.claim_after / 3;
        self.exclusive.map_or(claims, |lease| claims.min(Leasing::tick(lease)))
    }
}

/// Settings that cannot work together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumerOptions {
    /// Nothing to read.
    #[error("a consumer needs at least one stream")]
    NoStreams,
    /// Group and consumer must be named.
    #[error("a consumer needs a name and a group")]
    NoName,
    /// Nothing would ever be handled.
    #[error("concurrency, prefetch and max deliveries must be at least 1")]
    Zero,
    /// Another consumer would take over what is still being handled.
    #[error(
        "entries must be claimed later ({claim_after:?}) than a handler may take ({handler_timeout:?})"
    )]
    ClaimTooSoon {
        /// When entries of silent consumers are claimed.
        claim_after: Duration,
        /// How long a handler may take.
        handler_timeout: Duration,
    },
    /// No handler could start so that it ends within the lease.
    #[error(
        "the lease ({lease:?}) must be twice as long as a handler may take ({handler_timeout:?})"
    )]
    LeaseTooShort {
        /// How long a stream is leased.
        lease: Duration,
        /// How long a handler may take.
        handler_timeout: Duration,
    },
}
