//! Where each shard stands, and what lies before it.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::super::skip::Events;
use crate::backlog::Reading;

/// Where a shard stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardOverview {
    /// 0 to 15.
    pub shard: i16,
    /// The relay that leases it; None: nobody, or the lease has run out.
    pub owner: Option<Uuid>,
    /// When the lease ends, or ended.
    pub leased_until: Option<DateTime<Utc>>,
    /// Raised at every change of hands.
    pub epoch: i64,
    /// When the cursor was last written.
    pub updated_at: DateTime<Utc>,
    /// All that was committed by then is delivered or parked.
    pub delivered_to: DateTime<Utc>,
    /// Committed events that are not delivered.
    pub pending: Events,
    /// When the oldest of them was emitted.
    pub oldest_pending_at: Option<DateTime<Utc>>,
}

impl From<Reading> for ShardOverview {
    fn from(reading: Reading) -> Self {
        let pending = u64::try_from(reading.pending).unwrap_or(0);
        Self {
            shard: reading.shard,
            owner: reading.owner,
            leased_until: reading.leased_until,
            epoch: reading.epoch,
            updated_at: reading.updated_at,
            delivered_to: reading.delivered_to,
            pending: if reading.is_cut {
                Events::MoreThan(pending)
            } else {
                Events::Exactly(pending)
            },
            oldest_pending_at: reading.oldest_at,
        }
    }
}
