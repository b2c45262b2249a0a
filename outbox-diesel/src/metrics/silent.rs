//! Without the feature `metrics`: nothing, at no cost.
#![allow(clippy::unused_self, reason = "as the relay's metrics are called")]

#[cfg(feature = "relay")]
use chrono::{DateTime, Utc};

#[cfg(feature = "relay")]
use super::Condition;

#[cfg(feature = "emit")]
pub(crate) fn emitted(_events: usize) {}

#[cfg(feature = "relay")]
#[derive(Debug, Clone)]
pub(crate) struct Meter;

#[cfg(feature = "relay")]
impl Meter {
    pub(crate) fn of(_subscription: &str) -> Self {
        Self
    }

    pub(crate) fn tell(&self, _condition: Condition) {}

    pub(crate) fn forget_looks(&self) {}

    pub(crate) fn leased(&self, _shards: usize) {}

    pub(crate) fn progressed(&self) {}

    pub(crate) fn failed(&self, _event_type: &str) {}

    pub(crate) fn acknowledged(&self, created_at: impl Iterator<Item = DateTime<Utc>>) -> u64 {
        created_at.count() as u64
    }

    pub(crate) fn delivered(&self, _batch: &Batch) {}
}

#[cfg(feature = "relay")]
pub(crate) struct Batch;

#[cfg(feature = "relay")]
impl Batch {
    pub(crate) fn begin() -> Self {
        Self
    }
}
