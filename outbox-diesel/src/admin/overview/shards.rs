//! Where each shard stands, and what lies before it.

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use super::super::skip::Events;
use crate::operation::{AdminError, load};
use crate::statement::statement;

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

/// What the statement says of a shard.
#[derive(Debug, Queryable)]
pub(super) struct Reading {
    pub(super) subscription: String,
    pub(super) shard: i16,
    pub(super) owner: Option<Uuid>,
    pub(super) leased_until: Option<DateTime<Utc>>,
    pub(super) epoch: i64,
    pub(super) updated_at: DateTime<Utc>,
    pub(super) delivered_to: DateTime<Utc>,
    /// Counted among the events that were looked at.
    pub(super) pending: i64,
    pub(super) oldest_at: Option<DateTime<Utc>>,
    /// There are more events than were looked at.
    pub(super) is_cut: bool,
    /// Over all shards: not more than this are pending.
    pub(super) distance: i64,
}

// Shards that stand at the same tick share a look at what lies behind it: the 10,000 lowest events
// above its seq_before by the primary key, and its stragglers by their transactions. A long
// transaction elsewhere makes neither larger.
const SHARDS: &str = "\
WITH stand AS MATERIALIZED (
    SELECT k.tick, k.snapshot, k.xid, k.seq_before, k.ticked_at, m.seq_floor,
           greatest((SELECT x.seq_before FROM outbox.ticks x
                     WHERE x.xid <= pg_snapshot_xmin(k.snapshot) ORDER BY x.xid DESC LIMIT 1), m.seq_floor, 0) AS above
    FROM (SELECT DISTINCT c.tick FROM outbox.cursors c) g
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
ORDER BY c.subscription, c.shard";

type Columns = (
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

/// Reads where every shard of every subscription stands.
pub(super) async fn readings(conn: &mut AsyncPgConnection) -> Result<Vec<Reading>, AdminError> {
    Ok(load(conn, statement::<Columns>(SHARDS)).await?)
}
