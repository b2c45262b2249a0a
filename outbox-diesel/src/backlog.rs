//! Backlog: how much lies before the cursors. What a look costs does not grow with the log.

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::dsl::AsExprOf;
use diesel::sql_types::{BigInt, Bool, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid};
use uuid::Uuid;

use crate::statement::{Statement, statement};

/// What is counted, one by one.
pub(crate) const LIMIT: i64 = 10_000;

/// What the statement says of a shard.
#[derive(Debug, Queryable)]
pub(crate) struct Reading {
    pub(crate) subscription: String,
    pub(crate) shard: i16,
    pub(crate) owner: Option<Uuid>,
    pub(crate) leased_until: Option<DateTime<Utc>>,
    pub(crate) epoch: i64,
    pub(crate) updated_at: DateTime<Utc>,
    pub(crate) delivered_to: DateTime<Utc>,
    /// Counted among the events that were looked at.
    pub(crate) pending: i64,
    pub(crate) oldest_at: Option<DateTime<Utc>>,
    /// There are more events than were looked at.
    pub(crate) is_cut: bool,
    /// Over all shards: not more than this are pending.
    pub(crate) distance: i64,
}

// Shards that stand at the same tick share a look at what lies behind it: the 10,000 lowest events
// above its seq_before by the primary key, and its stragglers by their transactions. A long
// transaction elsewhere makes neither larger.
const SHARDS: &str = "\
WITH asked AS MATERIALIZED (
    SELECT $1::text AS subscription
), stand AS MATERIALIZED (
    SELECT k.tick, k.snapshot, k.xid, k.seq_before, k.ticked_at, m.seq_floor,
           greatest((SELECT x.seq_before FROM outbox.ticks x
                     WHERE x.xid <= pg_snapshot_xmin(k.snapshot) ORDER BY x.xid DESC LIMIT 1), m.seq_floor, 0) AS above
    FROM (SELECT DISTINCT c.tick FROM outbox.cursors c CROSS JOIN asked a
          WHERE a.subscription IS NULL OR c.subscription = a.subscription) g
    JOIN outbox.ticks k ON k.tick = g.tick
    CROSS JOIN outbox.meta m
), looked AS MATERIALIZED (
    SELECT s.tick, false AS is_late, e.seq, e.xid, e.shard, e.topic, e.created_at,
           NOT pg_visible_in_snapshot(e.xid, s.snapshot) AS is_new
    FROM stand s CROSS JOIN LATERAL (
        SELECT e.seq, e.xid, e.shard, e.topic, e.created_at FROM outbox.events e
        WHERE e.seq > greatest(s.seq_before, s.seq_floor) ORDER BY e.seq LIMIT 10001) e
    UNION ALL
    SELECT s.tick, true, e.seq, e.xid, e.shard, e.topic, e.created_at, true
    FROM stand s CROSS JOIN LATERAL (
        SELECT l.seq, l.xid, l.shard, l.topic, l.created_at
        FROM pg_snapshot_xip(s.snapshot) x (xid) CROSS JOIN LATERAL (
            SELECT e.seq, e.xid, e.shard, e.topic, e.created_at FROM outbox.events e
            WHERE e.xid = x.xid AND e.seq > s.above AND e.seq <= s.seq_before
            ORDER BY e.xid, e.seq LIMIT 10001) l
        UNION ALL
        (SELECT e.seq, e.xid, e.shard, e.topic, e.created_at FROM outbox.events e
         WHERE e.xid >= pg_snapshot_xmax(s.snapshot) AND e.xid < s.xid AND e.seq > s.above AND e.seq <= s.seq_before
         ORDER BY e.xid, e.seq LIMIT 10001)
        LIMIT 10001) e
), extent AS MATERIALIZED (
    SELECT s.tick, s.ticked_at, coalesce(n.rest > 10000 OR n.late > 10000, false) AS is_cut,
           greatest(coalesce(pg_sequence_last_value('outbox.event_seq'), 0)
                    - CASE WHEN n.late > 10000 THEN s.above ELSE greatest(s.seq_before, s.seq_floor) - coalesce(n.late, 0) END, 0) AS distance
    FROM stand s LEFT JOIN (
        SELECT l.tick, count(*) FILTER (WHERE NOT l.is_late) AS rest, count(*) FILTER (WHERE l.is_late) AS late
        FROM looked l GROUP BY l.tick) n ON n.tick = s.tick
)
SELECT c.subscription, c.shard, CASE WHEN c.leased_until > clock_timestamp() THEN c.owner END,
       CASE WHEN isfinite(c.leased_until) THEN c.leased_until END, c.epoch, c.updated_at,
       coalesce(x.ticked_at, 'epoch'), p.pending, p.oldest_at, coalesce(x.is_cut, true), coalesce(x.distance, 0)
FROM outbox.cursors c
LEFT JOIN extent x ON x.tick = c.tick
LEFT JOIN outbox.ticks n
    ON n.tick = coalesce(c.target, (SELECT min(a.tick) FROM outbox.ticks a WHERE a.tick > c.tick))
CROSS JOIN LATERAL (
    SELECT count(*) AS pending, min(CASE WHEN isfinite(e.created_at) THEN e.created_at END) AS oldest_at
    FROM looked e
    WHERE e.tick = c.tick AND e.shard = c.shard AND e.is_new
      AND NOT coalesce(e.seq <= c.seq AND pg_visible_in_snapshot(e.xid, n.snapshot), false)
      AND NOT EXISTS (SELECT FROM outbox.parked p WHERE p.subscription = c.subscription AND p.seq = e.seq)
      AND coalesce(e.topic = ANY ((
          SELECT f.topics FROM outbox.topic_filters f LEFT JOIN outbox.ticks ft ON ft.tick = f.from_tick
          WHERE f.subscription = c.subscription
            AND (f.from_tick = 0 OR NOT coalesce(pg_visible_in_snapshot(e.xid, ft.snapshot), false))
          ORDER BY f.from_tick DESC LIMIT 1)::text[]), true)
) p
WHERE (SELECT a.subscription IS NULL OR c.subscription = a.subscription FROM asked a)
ORDER BY c.subscription, c.shard";

pub(crate) type Columns = (
    Text,
    SmallInt,
    Nullable<SqlUuid>,
    Nullable<Timestamptz>,
    BigInt,
    Timestamptz,
    Timestamptz,
    BigInt,
    Nullable<Timestamptz>,
    Bool,
    BigInt,
);

/// Asks where the shards of a subscription stand, or those of all.
pub(crate) fn look(
    subscription: Option<&str>,
) -> Statement<Columns, ((), AsExprOf<Option<String>, Nullable<Text>>)> {
    statement::<Columns>(SHARDS).bind::<Nullable<Text>, _>(subscription.map(str::to_owned))
}

/// How many events of these shards are pending; true if they were counted, false if it is at most
/// that many.
pub(crate) fn pending(readings: &[Reading]) -> (u64, bool) {
    let is_counted = !readings.iter().any(|reading| reading.is_cut);
    let events = if is_counted {
        readings.iter().map(|reading| reading.pending).sum()
    } else {
        readings.iter().map(|reading| reading.distance).max().unwrap_or(0)
    };
    (u64::try_from(events).unwrap_or(0), is_counted)
}
