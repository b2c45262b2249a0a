//! [`Transfer`]: money that goes from one account to another.

use outbox_diesel::OutboxEvent;
use serde::{Deserialize, Serialize};

/// An event whose effect must happen once: a balance tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "account", event_type = "money.transferred")]
pub struct Transfer {
    /// Who pays.
    #[outbox(aggregate_id)]
    pub from: i64,
    /// Who gets it.
    pub to: i64,
    /// How much.
    pub cents: i64,
}

impl Transfer {
    /// What becomes of which balance, in the order in which to lock them.
    #[must_use]
    pub fn changes(&self) -> [(i64, i64); 2] {
        let mut changes = [(self.from, -self.cents), (self.to, self.cents)];
        changes.sort_unstable();
        changes
    }
}
