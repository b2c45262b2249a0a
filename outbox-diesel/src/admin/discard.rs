//! Gives parked events up, and keeps a record of it.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{BigInt, Text, Timestamptz, Uuid as SqlUuid};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use super::filter::{Filter, dead_letters_of};
use super::find;
use crate::operation::{AdminError, begin, end, load};
use crate::statement::statement;

/// The record of a discarded event; all of the event is in `outbox.discarded`.
#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
#[non_exhaustive]
pub struct Discarded {
    /// The subscription that does not deliver it.
    pub subscription: String,
    /// The event.
    pub event_id: Uuid,
    /// Why.
    pub reason: String,
    /// The database role of the operator.
    pub discarded_by: String,
    /// When.
    pub discarded_at: DateTime<Utc>,
}

/// How long a discard waits for the cursor to pass the event. A relay settles ten times a second.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);

/// Gives a parked event up, dead or not: this subscription does not deliver it. What waited behind
/// it goes out. The whole event is kept in `outbox.discarded`, with the reason, for as long as the
/// log keeps events.
///
/// Repeating it is harmless: the record of the first time is returned, and its reason stands. An
/// event that a relay is trying at this very moment may have gone out; a dead or held one has not.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection, id: uuid::Uuid) -> Result<(), outbox_diesel::admin::AdminError> {
/// let record =
///     outbox_diesel::admin::discard(conn, "default", id, "customer was deleted, INC-4711").await?;
/// println!("discarded by {} at {}", record.discarded_by, record.discarded_at);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NotPassed`](AdminError::NotPassed) if no relay moves the cursor past it within 5 s,
/// [`NoReason`](AdminError::NoReason), [`NotParked`](AdminError::NotParked) with what became of it,
/// [`NoEvent`](AdminError::NoEvent), [`NoSubscription`](AdminError::NoSubscription), or what the
/// database says.
pub async fn discard(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    event_id: Uuid,
    reason: &str,
) -> Result<Discarded, AdminError> {
    require(reason)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        begin(conn).await?;
        let outcome = discard_one(conn, subscription, event_id, reason).await;
        match end(conn, outcome).await? {
            Outcome::Recorded(record) => return Ok(record),
            Outcome::NotParked => return Err(find::why_not(conn, subscription, event_id).await?),
            Outcome::NotPassed if Instant::now() >= deadline => {
                return Err(AdminError::NotPassed(event_id));
            }
            Outcome::NotPassed => tokio::time::sleep(PAUSE).await,
        }
    }
}

enum Outcome {
    Recorded(Discarded),
    NotPassed,
    NotParked,
}

const IS_PARKED: &str = "SELECT seq FROM outbox.parked WHERE subscription = $1 AND id = $2";

const RECORDS: &str = "\
SELECT subscription, id, reason, discarded_by, discarded_at FROM outbox.discarded
WHERE subscription = $1 AND id = $2";

async fn discard_one(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    event_id: Uuid,
    reason: &str,
) -> Result<Outcome, AdminError> {
    let discard = statement::<RecordColumns>(DISCARD)
        .bind::<Text, _>(subscription.to_owned())
        .bind::<SqlUuid, _>(event_id)
        .bind::<Text, _>(reason.to_owned());
    let records: Vec<Discarded> = load(conn, discard).await?;
    if let Some(record) = records.into_iter().next() {
        return Ok(Outcome::Recorded(record));
    }
    let parked = statement::<BigInt>(IS_PARKED)
        .bind::<Text, _>(subscription.to_owned())
        .bind::<SqlUuid, _>(event_id);
    if !load::<_, _, i64>(conn, parked).await?.is_empty() {
        return Ok(Outcome::NotPassed);
    }
    let record = statement::<RecordColumns>(RECORDS)
        .bind::<Text, _>(subscription.to_owned())
        .bind::<SqlUuid, _>(event_id);
    let records: Vec<Discarded> = load(conn, record).await?;
    Ok(records.into_iter().next().map_or(Outcome::NotParked, Outcome::Recorded))
}

type RecordColumns = (Text, SqlUuid, Text, Text, Timestamptz);

// Only what the cursor in the database has passed: else a crash before the settle would send it. The
// cursors are locked first, as an owner does, and so that they are not moved back meanwhile.
macro_rules! discard_of {
    ($cursors:literal, $which:expr, $reason:literal) => {
        concat!(
            "\
WITH passed AS MATERIALIZED (
    SELECT c.subscription, c.shard, c.tick, c.seq,
           coalesce(c.target, (SELECT k.tick FROM outbox.ticks k WHERE k.tick > c.tick ORDER BY k.tick LIMIT 1)) AS next_tick
    FROM outbox.cursors c ", $cursors, "
    ORDER BY c.subscription, c.shard FOR UPDATE OF c
), chosen AS MATERIALIZED (
    SELECT p.subscription, p.seq FROM outbox.parked p
    JOIN passed c ON c.subscription = p.subscription AND c.shard = p.shard
    WHERE (p.tick <= c.tick OR (p.tick = c.next_tick AND p.seq <= c.seq)) AND ", $which, "
    ORDER BY p.subscription, p.seq LIMIT 1000 FOR UPDATE OF p
), gone AS (
    DELETE FROM outbox.parked p USING chosen
    WHERE p.subscription = chosen.subscription AND p.seq = chosen.seq
    RETURNING p.*
), noticed AS (
    INSERT INTO outbox.revisions (subscription) SELECT DISTINCT g.subscription FROM gone g
    ON CONFLICT (subscription) DO UPDATE SET revision = revisions.revision + 1
)
INSERT INTO outbox.discarded (subscription, shard, tick, seq, id, topic, aggregate_type, aggregate_id, event_type,
    event_version, dedup_key, payload, headers, created_at, attempts, error, parked_at, reason)
SELECT g.subscription, g.shard, g.tick, g.seq, g.id, g.topic, g.aggregate_type, g.aggregate_id, g.event_type,
    g.event_version, g.dedup_key, g.payload, g.headers, g.created_at, g.attempts, g.error, g.parked_at, ", $reason, "
FROM gone g
ON CONFLICT (subscription, seq) DO UPDATE
SET reason = excluded.reason, discarded_by = excluded.discarded_by, discarded_at = excluded.discarded_at
RETURNING subscription, id, reason, discarded_by, discarded_at"
        )
    };
}

const DISCARD: &str = discard_of!("WHERE c.subscription = $1", "p.id = $2", "$3");

const DISCARD_ALL: &str = discard_of!("", dead_letters_of!(), "$9");

/// Discards all dead letters of a filter, as [`discard`] does, and returns how many. Those that no
/// cursor has passed yet are left: they died within the last second, or no relay is running.
///
/// Large numbers are discarded 1,000 at a time: if it is interrupted, repeat it.
///
/// # Errors
/// [`NoReason`](AdminError::NoReason), or what the database says.
pub async fn discard_all(
    conn: &mut AsyncPgConnection,
    filter: &Filter,
    reason: &str,
) -> Result<u64, AdminError> {
    require(reason)?;
    let mut all = 0;
    loop {
        begin(conn).await?;
        let discard =
            filter.bind(statement::<RecordColumns>(DISCARD_ALL)).bind::<Text, _>(reason.to_owned());
        let records = load::<_, _, Discarded>(conn, discard).await.map_err(AdminError::from);
        match end(conn, records).await?.len() {
            0 => return Ok(all),
            some => all += some as u64,
        }
    }
}

fn require(reason: &str) -> Result<(), AdminError> {
    if reason.trim().is_empty() { Err(AdminError::NoReason) } else { Ok(()) }
}
