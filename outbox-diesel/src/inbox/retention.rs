//! How long the inbox remembers.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::connection::LoadConnection;
use diesel::pg::Pg;
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Double, Integer, Nullable, Timestamptz};

use crate::statement::{Statement, Walk, statement};

/// How long to remember by default: 30 days.
///
/// An event can come again for as long as somebody has a copy of it. The outbox keeps events for 7
/// days and can replay them. What was parked waits for an operator, what is pending in a broker
/// waits for its consumer: weeks of margin cost about 100 bytes per event, and what comes back even
/// later is refused instead of handled twice.
pub const RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const KEEP_AHEAD: &str = "SELECT outbox.keep_inbox_partitions_ahead()";
const DROP: &str = "SELECT outbox.drop_inbox_partitions(make_interval(secs => $1))";
// The time is the first 48 bits of the id, in milliseconds.
const FORGOTTEN_BEFORE: &str = "\
SELECT to_timestamp(('x' || translate(left(max(f.below::text), 13), '-', ''))::bit(48)::bigint / 1000.0)
FROM outbox.inbox_forgotten f";

/// Creates the partitions of this week and the next four, where missing, and returns how many it
/// made. Call it about once a day; ids for which no partition is ready work, but are deleted row by
/// row.
///
/// # Errors
/// What the database says. If the default partition is in use by a transaction for longer than
/// 200 ms: call again later. Needs `EXECUTE` on `outbox.keep_inbox_partitions_ahead()`.
pub fn keep_partitions_ahead<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<u32> {
    let made: i32 = diesel::RunQueryDsl::get_result(statement::<Integer>(KEEP_AHEAD), conn)?;
    Ok(made.unsigned_abs())
}

/// Forgets what was handled longer ago than this, and returns how many records went.
///
/// Never forgets what was handled since, however old the event: a week of ids goes as one, when the
/// last of its events was handled that long ago. Records outside of weekly partitions go 10,000 to
/// 20,000 a call, so call again while any went. Records of ids that tell no time (random ones, as SQL's
/// `INSERT INTO outbox.events` makes them) stay for [`RETENTION`] at least: one that comes again
/// after it was forgotten cannot be told from a new one, which is why an outbox does not replay
/// those that are older than 14 days.
///
/// # Errors
/// What the database says; `older_than` must be at least a day. Not inside a REPEATABLE READ or
/// SERIALIZABLE transaction. Needs `EXECUTE` on `outbox.drop_inbox_partitions(interval)`.
///
/// ```no_run
/// use outbox_diesel::inbox;
/// # fn nightly<C: diesel::connection::LoadConnection<Backend = diesel::pg::Pg>>(
/// #     conn: &mut C,
/// # ) -> diesel::QueryResult<()> {
/// inbox::keep_partitions_ahead(conn)?;
/// while inbox::drop_partitions(conn, inbox::RETENTION)? > 0 {}
/// # Ok(())
/// # }
/// ```
pub fn drop_partitions<C: LoadConnection<Backend = Pg>>(
    conn: &mut C,
    older_than: Duration,
) -> QueryResult<u64> {
    let gone: i64 = diesel::RunQueryDsl::get_result(drop_older(older_than), conn)?;
    Ok(gone.unsigned_abs())
}

/// The time from which on every consumer in this database remembers everything; `None` if nothing
/// was ever forgotten. A replay into consumers of this database can start here without being
/// refused.
///
/// # Errors
/// What the database says.
pub fn forgotten_before<C: LoadConnection<Backend = Pg>>(
    conn: &mut C,
) -> QueryResult<Option<DateTime<Utc>>> {
    diesel::RunQueryDsl::get_result(statement::<Nullable<Timestamptz>>(FORGOTTEN_BEFORE), conn)
}

fn drop_older(older_than: Duration) -> Statement<BigInt, impl Walk + Send> {
    statement::<BigInt>(DROP).bind::<Double, _>(older_than.as_secs_f64())
}

#[cfg(feature = "async")]
mod asynchronous {
    use std::time::Duration;

    use chrono::{DateTime, Utc};
    use diesel::pg::Pg;
    use diesel::result::QueryResult;
    use diesel::sql_types::{Integer, Nullable, Timestamptz};
    use diesel_async::{AsyncConnection, RunQueryDsl};

    use super::{FORGOTTEN_BEFORE, KEEP_AHEAD, drop_older};
    use crate::statement::statement;

    /// As [`keep_partitions_ahead`](super::keep_partitions_ahead).
    ///
    /// # Errors
    /// The same.
    ///
    /// # Cancel safety
    /// One statement: it is done or not done.
    pub async fn keep_partitions_ahead_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> QueryResult<u32> {
        let made: i32 = RunQueryDsl::get_result(statement::<Integer>(KEEP_AHEAD), conn).await?;
        Ok(made.unsigned_abs())
    }

    /// As [`drop_partitions`](super::drop_partitions).
    ///
    /// # Errors
    /// The same.
    ///
    /// # Cancel safety
    /// One statement: it is done or not done.
    pub async fn drop_partitions_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
        older_than: Duration,
    ) -> QueryResult<u64> {
        let gone: i64 = RunQueryDsl::get_result(drop_older(older_than), conn).await?;
        Ok(gone.unsigned_abs())
    }

    /// As [`forgotten_before`](super::forgotten_before).
    ///
    /// # Errors
    /// The same.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn forgotten_before_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> QueryResult<Option<DateTime<Utc>>> {
        let asked = statement::<Nullable<Timestamptz>>(FORGOTTEN_BEFORE);
        RunQueryDsl::get_result(asked, conn).await
    }
}

#[cfg(feature = "async")]
pub use asynchronous::{
    drop_partitions_async, forgotten_before_async, keep_partitions_ahead_async,
};
