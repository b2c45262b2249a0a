//! Without the feature `metrics`: nothing, at no cost.

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

    pub(crate) fn leased(&self, _shards: usize) {}

    pub(crate) fn progressed(&self) {}

    pub(crate) fn failed(&self, _event_type: &str) {}

    pub(crate) fn acknowledged(&self, _created_at: impl Iterator<Item = DateTime<Utc>>) {}

    pub(crate) fn batch(&self) -> Nothing {
        Nothing
    }

    pub(crate) fn delivered(&self, _batch: &Nothing) {}
}

#[cfg(feature = "relay")]
pub(crate) struct Nothing;
