//! Retention: what every subscription has passed, and is old enough, goes. Each function does some
//! of it, in a transaction of its own.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::data_types::PgInterval;
use diesel::sql_types::{Integer, Interval, Nullable, Text, Timestamptz};

use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

const RETIRE: &str = "SELECT outbox.retire_partition($1)";

/// Empties the oldest partition that may go and returns its name.
pub(crate) async fn retire(
    session: &mut Session,
    retention: Duration,
) -> Result<Option<String>, SessionError> {
    let retired: Vec<Option<String>> = session
        .load(
            Mode::Relaxed,
            statement::<Nullable<Text>>(RETIRE).bind::<Interval, _>(interval(retention)),
        )
        .await?;
    Ok(retired.into_iter().flatten().next())
}

// The cursor that lags most, and whether that is all: if it is at the newest tick, then some
// transaction is open that began before the partition was full.
const HELD: &str = "\
SELECT l.leaf, c.subscription, k.ticked_at
FROM outbox.leaves l
CROSS JOIN (SELECT * FROM outbox.cursors ORDER BY tick LIMIT 1) c
JOIN outbox.ticks k ON k.tick = c.tick
WHERE l.to_seq - 1 > outbox.passed_seq('0')
  AND l.to_seq - 1 <= (
      SELECT old.seq_before FROM outbox.ticks old
      WHERE old.tick <= ((extract(epoch FROM clock_timestamp()) - extract(epoch FROM $1::interval)) * 1000000)::bigint
      ORDER BY old.tick DESC LIMIT 1)
ORDER BY l.to_seq LIMIT 1";

/// A partition that is older than the retention and not delivered everywhere.
#[derive(Debug, Queryable)]
pub(crate) struct Held {
    pub(crate) leaf: String,
    /// The subscription that lags most.
    pub(crate) subscription: String,
    /// Where it stands. If that is now, a transaction holds the partition that began before it was
    /// full, and is still open.
    pub(crate) at: DateTime<Utc>,
}

/// Finds the oldest partition that stays longer than the retention.
pub(crate) async fn held(
    session: &mut Session,
    retention: Duration,
) -> Result<Option<Held>, SessionError> {
    let held: Vec<Held> = session
        .load(
            Mode::Read,
            statement::<(Text, Text, Timestamptz)>(HELD).bind::<Interval, _>(interval(retention)),
        )
        .await?;
    Ok(held.into_iter().next())
}

const DROP_RETIRED: &str = "SELECT outbox.drop_retired_partition()";

/// Drops an emptied partition, if nobody uses the log at this very moment, and returns its name.
pub(crate) async fn drop_retired(session: &mut Session) -> Result<Option<String>, SessionError> {
    let dropped: Vec<Option<String>> =
        session.load(Mode::Relaxed, statement::<Nullable<Text>>(DROP_RETIRED)).await?;
    Ok(dropped.into_iter().flatten().next())
}

/// Rows that outlive their use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Surplus {
    /// Ticks below every cursor, but for some that tell the age of events.
    Ticks,
    DedupKeys,
    /// Records of discarded events that have left the log, and of replays.
    Records,
    /// Delivered events of the default partition, which is never dropped.
    DefaultPartition,
    /// Delivered events of any partition.
    Events,
}

const DELETE_TICKS: &str = "SELECT outbox.delete_ticks($1)";
const DELETE_DEDUP_KEYS: &str = "SELECT outbox.delete_dedup_keys($1)";
const DELETE_RECORDS: &str = "SELECT outbox.delete_records($1)";
const PURGE_DEFAULT_PARTITION: &str = "SELECT outbox.purge_default_partition($1)";
const PURGE_EVENTS: &str = "SELECT outbox.purge_events($1)";

/// Deletes some of those that are older and returns their number.
pub(crate) async fn delete(
    session: &mut Session,
    surplus: Surplus,
    older_than: Duration,
) -> Result<i32, SessionError> {
    let text = match surplus {
        Surplus::Ticks => DELETE_TICKS,
        Surplus::DedupKeys => DELETE_DEDUP_KEYS,
        Surplus::Records => DELETE_RECORDS,
        Surplus::DefaultPartition => PURGE_DEFAULT_PARTITION,
        Surplus::Events => PURGE_EVENTS,
    };
    let deleted: Vec<i32> = session
        .load(Mode::Relaxed, statement::<Integer>(text).bind::<Interval, _>(interval(older_than)))
        .await?;
    Ok(deleted.into_iter().sum())
}

/// At most a thousand years: what is older than that is out of a timestamp's range.
pub(crate) fn interval(age: Duration) -> PgInterval {
    const LONGEST: u128 = 1000 * 365 * 24 * 3600 * 1_000_000;
    PgInterval::from_microseconds(i64::try_from(age.as_micros().min(LONGEST)).unwrap_or(i64::MAX))
}
