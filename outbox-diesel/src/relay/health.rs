//! What a relay says of itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::{Notify, watch};

use crate::lease::SelfReport;
#[cfg(feature = "metrics")]
use crate::metrics::Sample;
use crate::metrics::{Condition, Meter};

/// The state of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It has no shards yet: it has not yet looked at the database, or others still lease them.
    Starting,
    /// It leases shards, and delivers or waits for events. Or it stands by, since there are more
    /// relays than shards.
    Running,
    /// The publisher reports that the broker is away: nothing is lost, and it tries again.
    BrokerUnavailable {
        /// What the publisher says.
        reason: String,
    },
    /// The database is away, or is not one that this relay may work on, or the relay panicked. It
    /// tries again.
    Interrupted {
        /// The error and its causes.
        cause: String,
    },
    /// It gives its shards back.
    Stopping,
    /// It has ended.
    Stopped,
}

impl Health {
    /// As the heartbeat writes it into `outbox.relays`.
    pub(super) fn report(&self) -> SelfReport {
        let (state, reason) = match self {
            Self::Starting => ("starting", None),
            Self::Running => ("running", None),
            Self::BrokerUnavailable { reason } => ("broker_unavailable", Some(reason)),
            Self::Interrupted { cause } => ("interrupted", Some(cause)),
            Self::Stopping | Self::Stopped => ("stopping", None),
        };
        let reason = reason.cloned();
        SelfReport { state, reason, sleepless: None, delivered_per_second: None }
    }

    /// As the metrics tell it.
    fn condition(&self) -> Condition {
        match self {
            Self::Starting => Condition::Starting,
            Self::Running => Condition::Delivering,
            Self::BrokerUnavailable { .. } => Condition::BrokerAway,
            Self::Interrupted { .. } | Self::Stopping | Self::Stopped => Condition::Blind,
        }
    }
}

/// The relay has ended, and is not going to do what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the relay has stopped")]
#[non_exhaustive]
pub struct Stopped;

/// Shared between the relay and its handle.
#[derive(Debug, Clone)]
pub(super) struct HealthCell(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    meter: Meter,
    health: watch::Sender<Health>,
    started: Instant,
    /// Milliseconds from `started`.
    progress: AtomicU64,
    /// How often somebody asked to be told when all is delivered.
    asked: AtomicU64,
    /// Somebody has asked, and a relay that sleeps is to look.
    question: Notify,
    /// Up to which of these questions the answer is yes.
    drained: watch::Sender<u64>,
    /// Events that the broker has acknowledged.
    delivered: AtomicU64,
    /// Why the relay polls although it is to sleep.
    sleepless: Mutex<Option<String>>,
    /// Milliseconds from `started`: what the gauges tell of the database holds until then.
    looks_hold: AtomicU64,
}

impl HealthCell {
    pub(super) fn new(subscription: &str) -> Self {
        Self(Arc::new(Shared {
            meter: Meter::of(subscription),
            health: watch::Sender::new(Health::Starting),
            started: Instant::now(),
            progress: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            question: Notify::new(),
            drained: watch::Sender::new(0),
            delivered: AtomicU64::new(0),
            sleepless: Mutex::default(),
            looks_hold: AtomicU64::new(0),
        }))
    }

    /// What the heartbeat writes into `outbox.relays`.
    pub(super) fn report(&self, delivered_per_second: Option<f64>) -> SelfReport {
        let sleepless = self.0.sleepless.lock().unwrap_or_else(PoisonError::into_inner).clone();
        SelfReport { sleepless, delivered_per_second, ..self.get().report() }
    }

    /// Something keeps the relay from sleeping, or nothing does any more.
    pub(super) fn set_sleepless(&self, why: Option<&str>) {
        let mut sleepless = self.0.sleepless.lock().unwrap_or_else(PoisonError::into_inner);
        *sleepless = why.map(str::to_owned);
    }

    /// The broker has just acknowledged events that were emitted at these times.
    pub(super) fn acknowledged(&self, created_at: impl Iterator<Item = DateTime<Utc>>) {
        let events = self.0.meter.acknowledged(created_at);
        self.0.delivered.fetch_add(events, Ordering::Relaxed);
    }

    /// The relay has looked at the database, and does so again within this time.
    #[cfg(feature = "metrics")]
    pub(super) fn sampled(&self, sample: Sample, again: Duration) {
        let until = self.0.started.elapsed().saturating_add(again).as_millis();
        self.0.looks_hold.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.0.meter.sampled(sample);
    }

    /// A loop that is stuck looks at nothing: the gauges must not go on telling what it saw last.
    pub(super) fn forget_old_looks(&self) {
        let until = self.0.looks_hold.load(Ordering::Relaxed);
        if self.0.started.elapsed().as_millis() > u128::from(until) {
            self.0.meter.forget_looks();
        }
    }

    /// How many events it has acknowledged so far.
    pub(super) fn delivered(&self) -> u64 {
        self.0.delivered.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self) -> Health {
        self.0.health.borrow().clone()
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.0.meter
    }

    pub(super) fn set(&self, health: Health) {
        self.0.meter.tell(health.condition());
        self.0.health.send_replace(health);
    }

    /// The relay delivered something, or found nothing to deliver.
    pub(super) fn progressed(&self) {
        let millis = u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.progress.store(millis, Ordering::Relaxed);
        self.0.meter.progressed();
    }

    pub(super) fn last_progress(&self) -> Instant {
        self.0.started + Duration::from_millis(self.0.progress.load(Ordering::Relaxed))
    }

    /// The questions asked so far: to be read before the look that answers them.
    pub(super) fn asked(&self) -> u64 {
        self.0.asked.load(Ordering::SeqCst)
    }

    /// Waits until somebody asks, or returns at once if somebody has.
    pub(super) async fn question(&self) {
        self.0.question.notified().await;
    }

    /// All is delivered that was committed before these questions.
    pub(super) fn drained(&self, asked: u64) {
        self.0.drained.send_if_modified(|drained| {
            let is_news = asked > *drained;
            *drained = asked.max(*drained);
            is_news
        });
    }

    pub(super) async fn ready(&self) -> Result<(), Stopped> {
        let is_decided = |health: &Health| {
            matches!(health, Health::Running | Health::BrokerUnavailable { .. } | Health::Stopped)
        };
        let mut health = self.0.health.subscribe();
        let health = health.wait_for(is_decided).await.map_err(|_| Stopped)?;
        if *health == Health::Stopped { Err(Stopped) } else { Ok(()) }
    }

    pub(super) async fn all_delivered(&self) -> Result<(), Stopped> {
        let question = self.0.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.question.notify_one();
        let (mut drained, mut health) = (self.0.drained.subscribe(), self.0.health.subscribe());
        tokio::select! {
            biased;
            done = drained.wait_for(|drained| *drained >= question) => {
                done.map(drop).map_err(|_| Stopped)
            }
            _ = health.wait_for(|health| *health == Health::Stopped) => Err(Stopped),
        }
    }
}

/// Says that the relay has ended, however it did.
pub(super) struct Ending(pub(super) HealthCell);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.set(Health::Stopped);
    }
}
