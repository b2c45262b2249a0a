//! Moves a subscription back.

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Text, Timestamptz, Uuid as SqlUuid};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection};
use uuid::Uuid;

use super::Start;
use crate::operation::{self, AdminError, begin, end, execute, load, notice};
use crate::statement::statement;

/// Moves a subscription back, so that it delivers again all from there on that it gets, and returns
/// from when on: the time of the last tick at or before the one asked for. Ticks that everyone has
/// passed are thinned out to one in ten minutes.
///
/// What is parked stays parked and goes out once. What was discarded goes out again. Consumers get
/// repeats with the same event ids, in order; to send a few events again beside the stream, replay
/// them instead. Running relays go on from there within a second.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// use outbox_diesel::subscription::{self, Start};
///
/// let midnight = "2026-11-30T00:00:00Z".parse().expect("a time");
/// subscription::rewind(conn, "search", Start::Since(midnight)).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NotKept`](AdminError::NotKept) if the log does not reach back that far (take
/// [`Start::Earliest`] for all that is kept), [`MayBeForgotten`](AdminError::MayBeForgotten) if
/// consumers' inboxes could not tell what comes again from what is new,
/// [`NoSubscription`](AdminError::NoSubscription), or what the database says.
///
/// # Cancel safety
/// Drop the connection if the future was dropped: its transaction may still be open.
pub async fn rewind(
    conn: &mut AsyncPgConnection,
    name: &str,
    to: Start,
) -> Result<DateTime<Utc>, AdminError> {
    begin(conn).await?;
    let rewound = rewind_to(conn, name, to).await;
    end(conn, rewound).await
}

// The owners lose their shards: what they still have on its way is fenced off by the epoch.
const REWIND: &str = "\
WITH moved AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    WHERE c.subscription = $1 AND c.tick >= $2 ORDER BY c.shard FOR UPDATE
), raised AS (
    UPDATE outbox.subscriptions SET generation = generation + 1
    WHERE name = $3 AND EXISTS (SELECT FROM moved)
)
UPDATE outbox.cursors c
SET tick = $4, target = NULL, seq = 0, owner = NULL, leased_until = '-infinity', epoch = c.epoch + 1,
    updated_at = clock_timestamp()
FROM moved WHERE c.subscription = $5 AND c.shard = moved.shard";

// As in a replay. What is older, the index by time finds without a scan of the log.
const FORGOTTEN: &str = "\
SELECT e.id FROM outbox.events e
WHERE e.seq >= $1 AND e.created_at < clock_timestamp() - interval '14 days' AND substr(e.id::text, 15, 1) <> '7'
  AND EXISTS (SELECT FROM outbox.cursors c JOIN outbox.ticks k ON k.tick = c.tick
              WHERE c.subscription = $2 AND c.shard = e.shard AND e.seq <= k.seq_after)
LIMIT 1";

/// Refuses what would come again to inboxes that cannot tell it from what is new.
async fn refuse_forgotten(
    conn: &mut AsyncPgConnection,
    name: &str,
    asked: i64,
) -> Result<(), AdminError> {
    conn.batch_execute("SET LOCAL enable_seqscan = off").await?;
    let forgotten =
        statement::<SqlUuid>(FORGOTTEN).bind::<BigInt, _>(asked).bind::<Text, _>(name.to_owned());
    let forgotten: Vec<Uuid> = load(conn, forgotten).await?;
    forgotten.into_iter().next().map_or(Ok(()), |id| Err(AdminError::MayBeForgotten(id)))
}

async fn rewind_to(
    conn: &mut AsyncPgConnection,
    name: &str,
    to: Start,
) -> Result<DateTime<Utc>, AdminError> {
    // Before the tick lock, which this may take too long for. What is old now was old before.
    let asked = find_moment(conn, to).await?.asked;
    refuse_forgotten(conn, name, asked).await?;
    operation::lock_ticks(conn).await?;
    notice(conn, name).await?;
    let moment = find_moment(conn, to).await?;
    if to != Start::Earliest && moment.asked < moment.kept_from {
        let Moment { kept_from, asked, .. } = moment;
        return Err(AdminError::NotKept { kept_from, asked });
    }
    let rewind = statement::<()>(REWIND)
        .bind::<Text, _>(name.to_owned())
        .bind::<BigInt, _>(moment.tick)
        .bind::<Text, _>(name.to_owned())
        .bind::<BigInt, _>(moment.tick)
        .bind::<Text, _>(name.to_owned());
    execute(conn, rewind).await?;
    Ok(moment.ticked_at)
}

/// A place in the timeline.
#[derive(Debug, Clone, Copy, diesel::Queryable)]
pub(crate) struct Moment {
    pub(crate) tick: i64,
    pub(crate) ticked_at: DateTime<Utc>,
    /// Events behind it lie at or above.
    pub(crate) asked: i64,
    /// The log holds all from there on.
    pub(crate) kept_from: i64,
}

// Kept: from the partition of the first event on; one below that was emptied, or dropped. Events at
// or below the floor of a rebase can't be told apart by time any more.
const MOMENT: &str = "\
WITH leaf AS MATERIALIZED (
    SELECT (regexp_match(pg_get_expr(l.relpartbound, l.oid), 'FROM \\(''(\\d+)''\\)'))[1]::bigint AS from_seq
    FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
    WHERE i.inhparent = 'outbox.events'::regclass
), first AS MATERIALIZED (
    SELECT e.seq FROM outbox.events e ORDER BY e.seq LIMIT 1
)
SELECT t.tick, t.ticked_at, CASE WHEN t.ticked_at > wanted.at AND m.seq_floor > 0 THEN 1 ELSE t.seq_before + 1 END,
       greatest(m.seq_floor + 1,
                coalesce((SELECT max(l.from_seq) FROM leaf l, first f WHERE l.from_seq <= f.seq),
                         (SELECT min(l.from_seq) FROM leaf l), 1))
FROM outbox.ticks t, outbox.meta m, (SELECT $1::text::timestamptz AS at) wanted
WHERE t.tick = 0 OR t.ticked_at <= wanted.at
ORDER BY t.tick DESC LIMIT 1";

/// Where a start is in the timeline. Under the tick lock; "now" is the newest tick.
pub(crate) async fn find_moment(
    conn: &mut AsyncPgConnection,
    start: Start,
) -> Result<Moment, AdminError> {
    let moment =
        statement::<(BigInt, Timestamptz, BigInt, BigInt)>(MOMENT).bind::<Text, _>(start.time());
    Ok(load(conn, moment).await?.into_iter().next().ok_or(diesel::result::Error::NotFound)?)
}
