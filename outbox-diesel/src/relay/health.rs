//! What a relay says of itself.

use std::sync::{Arc, Mutex, PoisonError};

use crate::lease::SelfReport;

/// The state of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// It has not yet looked at the database.
    Starting,
    /// It delivers, or waits for events.
    Running,
    /// The publisher reports that the broker is away: nothing is lost, and it tries again.
    BrokerUnavailable {
        /// What the publisher says.
        reason: String,
    },
    /// The database is away, or is not one that this relay may work on. It tries again.
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
        SelfReport { state, reason: reason.cloned() }
    }
}

/// Shared between the relay and its handles.
#[derive(Debug, Clone)]
pub(super) struct HealthCell(Arc<Mutex<Health>>);

impl HealthCell {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Health::Starting)))
    }

    pub(super) fn get(&self) -> Health {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, health: Health) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }
}
