//! Retention: what every subscription has passed, and is old enough, goes. Each function does some
//! of it, in a transaction of its own.

use std::time::Duration;

use diesel::data_types::PgInterval;
use diesel::sql_types::{Integer, Interval, Nullable, Text};

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
    /// Delivered events of the default partition, which is never dropped.
    DefaultPartition,
    /// Delivered events of any partition.
    Events,
}

const DELETE_TICKS: &str = "SELECT outbox.delete_ticks($1)";
const DELETE_DEDUP_KEYS: &str = "SELECT outbox.delete_dedup_keys($1)";
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
        Surplus::DefaultPartition => PURGE_DEFAULT_PARTITION,
        Surplus::Events => PURGE_EVENTS,
    };
    let deleted: Vec<i32> = session
        .load(Mode::Relaxed, statement::<Integer>(text).bind::<Interval, _>(interval(older_than)))
        .await?;
    Ok(deleted.into_iter().sum())
}

/// At most a thousand years: what is older than that is out of a timestamp's range.
fn interval(age: Duration) -> PgInterval {
    const LONGEST: u128 = 1000 * 365 * 24 * 3600 * 1_000_000;
    PgInterval::from_microseconds(i64::try_from(age.as_micros().min(LONGEST)).unwrap_or(i64::MAX))
}
