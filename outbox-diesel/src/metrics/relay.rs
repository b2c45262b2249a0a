//! What a relay counts and measures.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::{Condition, describe};

/// How many event types have a series of their own in this process.
const TYPES: usize = 100;

static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A relay's metrics.
#[derive(Clone)]
pub(crate) struct Meter {
    subscription: String,
    published: Counter,
    batch: Histogram,
    latency: Histogram,
    up: Gauge,
    progress: Gauge,
    shards: Gauge,
    available: Gauge,
    looks: Looks,
    /// Microseconds by which the database's clock is ahead of ours.
    clock_ahead: Arc<AtomicI64>,
}

/// What only a look at the database tells.
#[derive(Clone)]
struct Looks {
    pending: Gauge,
    oldest_pending: Gauge,
    parked: Gauge,
    dead: Gauge,
    default_rows: Gauge,
    ahead: Gauge,
    overdue: Gauge,
    oldest_transaction: Gauge,
    oldest_snapshot: Gauge,
    notifications: Gauge,
}

/// What a look at the database told; `NaN`: it could not be told.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    pub(crate) pending: f64,
    pub(crate) oldest_pending: f64,
    pub(crate) parked: f64,
    pub(crate) dead: f64,
    pub(crate) default_rows: f64,
    pub(crate) ahead: f64,
    pub(crate) overdue: f64,
    pub(crate) oldest_transaction: f64,
    pub(crate) oldest_snapshot: f64,
    pub(crate) notifications: f64,
}

impl Sample {
    pub(crate) const UNKNOWN: Self = Self {
        pending: f64::NAN,
        oldest_pending: f64::NAN,
        parked: f64::NAN,
        dead: f64::NAN,
        default_rows: f64::NAN,
        ahead: f64::NAN,
        overdue: f64::NAN,
        oldest_transaction: f64::NAN,
        oldest_snapshot: f64::NAN,
        notifications: f64::NAN,
    };
}

impl Meter {
    pub(crate) fn of(subscription: &str) -> Self {
        describe();
        let labels = || [("subscription", subscription.to_owned())];
        let meter = Self {
            subscription: subscription.to_owned(),
            published: counter!("outbox_events_published_total", &labels()),
            batch: histogram!("outbox_batch_duration_seconds", &labels()),
            latency: histogram!("outbox_publish_latency_seconds", &labels()),
            up: gauge!("outbox_relay_up", &labels()),
            progress: gauge!("outbox_relay_last_progress_timestamp_seconds", &labels()),
            shards: gauge!("outbox_shards_leased", &labels()),
            available: gauge!("outbox_publisher_available", &labels()),
            looks: Looks {
                pending: gauge!("outbox_events_pending", &labels()),
                oldest_pending: gauge!("outbox_oldest_pending_seconds", &labels()),
                parked: gauge!("outbox_parked", &labels()),
                dead: gauge!("outbox_dead_letters", &labels()),
                default_rows: gauge!("outbox_default_partition_rows", &labels()),
                ahead: gauge!("outbox_partitions_ahead", &labels()),
                overdue: gauge!("outbox_overdue_partitions", &labels()),
                oldest_transaction: gauge!("outbox_oldest_open_transaction_seconds", &labels()),
                oldest_snapshot: gauge!("outbox_oldest_snapshot_transactions", &labels()),
                notifications: gauge!("outbox_notification_queue_usage", &labels()),
            },
            clock_ahead: Arc::default(),
        };
        // A rate over a counter that appears with its first event misses that event.
        meter.published.increment(0);
        counter!("outbox_emits_total").increment(0);
        counter!("outbox_events_failed_total", "subscription" => subscription.to_owned(), "event_type" => "other")
            .increment(0);
        meter.sampled(Sample::UNKNOWN);
        meter.tell(Condition::Starting);
        meter
    }

    /// Sets what follows from how the relay is; of what it cannot know nothing is kept.
    pub(crate) fn tell(&self, condition: Condition) {
        let is_up = condition != Condition::Blind;
        self.up.set(f64::from(u8::from(is_up)));
        self.available.set(match condition {
            Condition::Delivering => 1.0,
            Condition::BrokerAway => 0.0,
            Condition::Starting | Condition::Blind => f64::NAN,
        });
        if !is_up {
            self.leased(0);
            self.forget_looks();
        }
    }

    /// Of the database nothing is known any more.
    pub(crate) fn forget_looks(&self) {
        self.sampled(Sample::UNKNOWN);
    }

    pub(crate) fn leased(&self, shards: usize) {
        self.shards.set(u32::try_from(shards).map_or(f64::NAN, f64::from));
    }

    pub(crate) fn progressed(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.progress.set(now.as_secs_f64());
    }

    pub(crate) fn sampled(&self, sample: Sample) {
        let looks = &self.looks;
        looks.pending.set(sample.pending);
        looks.oldest_pending.set(sample.oldest_pending);
        looks.parked.set(sample.parked);
        looks.dead.set(sample.dead);
        looks.default_rows.set(sample.default_rows);
        looks.ahead.set(sample.ahead);
        looks.overdue.set(sample.overdue);
        looks.oldest_transaction.set(sample.oldest_transaction);
        looks.oldest_snapshot.set(sample.oldest_snapshot);
        looks.notifications.set(sample.notifications);
    }

    /// The database's clock, just now.
    pub(crate) fn clock(&self, database: DateTime<Utc>) {
        let ahead = (database - Utc::now()).num_microseconds().unwrap_or(0);
        self.clock_ahead.store(ahead, Ordering::Relaxed);
    }

    /// A try of an event failed.
    pub(crate) fn failed(&self, event_type: &str) {
        let event_type = if is_known(event_type) { event_type } else { "other" };
        counter!(
            "outbox_events_failed_total",
            "subscription" => self.subscription.clone(), "event_type" => event_type.to_owned()
        )
        .increment(1);
    }

    /// The broker has just acknowledged events that were emitted at these times. Returns how many.
    pub(crate) fn acknowledged(&self, created_at: impl Iterator<Item = DateTime<Utc>>) -> u64 {
        let now = Utc::now().timestamp_micros() + self.clock_ahead.load(Ordering::Relaxed);
        let mut events = 0;
        for created_at in created_at {
            let waited = now.saturating_sub(created_at.timestamp_micros()).max(0);
            #[allow(
                clippy::cast_precision_loss,
                reason = "of centuries a float has the microseconds"
            )]
            self.latency.record(waited as f64 / 1e6);
            events += 1;
        }
        self.published.increment(events);
        events
    }

    /// A batch was delivered.
    pub(crate) fn delivered(&self, batch: &Batch) {
        self.batch.record(batch.0.elapsed());
    }
}

fn is_known(event_type: &str) -> bool {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.contains(event_type) || (known.len() < TYPES && known.insert(event_type.to_owned()))
}

/// When a batch was begun.
pub(crate) struct Batch(Instant);

impl Batch {
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("subscription", &self.subscription).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{TYPES, is_known};

    #[test]
    fn event_types_beyond_the_cap_have_no_series_of_their_own() {
        let own = (0..10 * TYPES).filter(|n| is_known(&format!("type.{n}"))).count();
        assert_eq!(own, TYPES);
        assert!(is_known("type.0"));
    }
}
