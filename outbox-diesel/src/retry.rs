//! Retry: tries parked events again, in aggregate order, by the owner of their shard and under its
//! epoch.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{
    Array, BigInt, Bool, Integer, Json, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use uuid::Uuid;

use crate::lease::Identity;
use crate::message::{Chunk, Fields};
use crate::park::{millis, storable};
use crate::read::Limits;
use crate::session::{Mode, Session, SessionError};
use crate::statement::{RawJson, statement};

/// How many aggregates one pass tries.
pub(crate) const HEADS: u16 = 100;

// Only what the cursor has passed: else a crash before the settle would send it again. A place
// within the current diff is told by its seq, since its tick lies above the cursor's. Only within
// that one: a straggler of the next diff may have a lower seq.
// An event is due together with those held behind it.
const DUE: &str = "\
WITH current AS MATERIALIZED (
    SELECT c.shard, c.tick, c.seq,
           coalesce(c.target, (SELECT k.tick FROM outbox.ticks k WHERE k.tick > c.tick ORDER BY k.tick LIMIT 1)) AS diff_tick
    FROM outbox.cursors c
    WHERE c.subscription = $1 AND c.shard = ANY ($2::smallint[])
), due AS MATERIALIZED (
    SELECT p.subscription, p.shard, p.aggregate_type, p.aggregate_id, p.tick, p.seq, p.holds,
           c.tick AS passed_tick, c.diff_tick, c.seq AS passed_seq
    FROM outbox.parked p
    JOIN current c ON c.shard = p.shard
    WHERE p.subscription = $3 AND p.shard = ANY ($4::smallint[]) AND p.next_attempt_at <= clock_timestamp()
      AND (p.tick <= c.tick OR (p.tick = c.diff_tick AND p.seq <= c.seq))
      AND NOT (p.holds AND EXISTS (
          SELECT FROM outbox.parked earlier
          WHERE earlier.subscription = p.subscription AND earlier.shard = p.shard
            AND earlier.aggregate_type = p.aggregate_type AND earlier.aggregate_id = p.aggregate_id
            AND earlier.holds AND (earlier.tick, earlier.seq) < (p.tick, p.seq)))
    ORDER BY p.next_attempt_at LIMIT $5
)
SELECT seq, tick, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key,
       payload, headers, created_at, attempts, error, holds, alone
FROM (
    SELECT f.*, sum(size) OVER (ORDER BY f.tick, f.seq ROWS UNBOUNDED PRECEDING) - size AS before
    FROM (
        SELECT e.*, octet_length(e.payload::text) + octet_length(e.headers::text) AS size
        FROM due d CROSS JOIN LATERAL (
            SELECT * FROM outbox.parked e
            WHERE e.subscription = d.subscription AND e.shard = d.shard
              AND e.aggregate_type = d.aggregate_type AND e.aggregate_id = d.aggregate_id
              AND (e.tick <= d.passed_tick OR (e.tick = d.diff_tick AND e.seq <= d.passed_seq))
              AND NOT e.dead AND (e.seq = d.seq OR (d.holds AND e.holds))
            ORDER BY e.tick, e.seq LIMIT $6) e
        ORDER BY e.tick, e.seq LIMIT $7
    ) f
) g
WHERE before < $8
ORDER BY tick, seq";

#[derive(Queryable)]
struct DueRow {
    seq: i64,
    tick: i64,
    shard: i16,
    id: Uuid,
    topic: String,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    event_version: i16,
    dedup_key: Option<String>,
    payload: RawJson,
    headers: RawJson,
    created_at: DateTime<Utc>,
    attempts: i32,
    error: Option<String>,
    holds: bool,
    alone: bool,
}

/// What is stored of an event beside itself.
#[derive(Debug, Clone)]
pub(crate) struct Due {
    /// Made so far.
    pub(crate) attempts: i32,
    pub(crate) error: Option<String>,
    /// Later events of its aggregate wait for it.
    pub(crate) holds: bool,
    /// It is tried alone, and each attempt is counted first.
    pub(crate) alone: bool,
}

/// Reads what is due into the chunk, and returns what else is known of it, event by event.
pub(crate) async fn due(
    session: &mut Session,
    who: &Identity,
    shards: Vec<i16>,
    limits: Limits,
    chunk: &mut Chunk,
) -> Result<Vec<Due>, SessionError> {
    chunk.clear();
    let events = i64::from(limits.events);
    let rows: Vec<DueRow> = session
        .load(
            Mode::Read,
            statement::<(
                BigInt,
                BigInt,
                SmallInt,
                SqlUuid,
                Text,
                Text,
                Text,
                Text,
                SmallInt,
                Nullable<Text>,
                Json,
                Json,
                Timestamptz,
                Integer,
                Nullable<Text>,
                Bool,
                Bool,
            )>(DUE)
            .bind::<Text, _>(who.subscription.clone())
            .bind::<Array<SmallInt>, _>(shards.clone())
            .bind::<Text, _>(who.subscription.clone())
            .bind::<Array<SmallInt>, _>(shards)
            .bind::<BigInt, _>(i64::from(HEADS))
            .bind::<BigInt, _>(events)
            .bind::<BigInt, _>(events)
            .bind::<BigInt, _>(i64::from(limits.bytes)),
        )
        .await?;
    for row in &rows {
        chunk.push(Fields {
            tick: row.tick,
            seq: row.seq,
            shard: u8::try_from(row.shard).unwrap_or(0),
            id: row.id,
            topic: &row.topic,
            aggregate_type: &row.aggregate_type,
            aggregate_id: &row.aggregate_id,
            event_type: &row.event_type,
            event_version: row.event_version,
            dedup_key: row.dedup_key.as_deref(),
            payload: &String::from_utf8_lossy(&row.payload.0),
            headers: &String::from_utf8_lossy(&row.headers.0),
            created_at: row.created_at,
        });
    }
    let due = rows.into_iter().map(|row| Due {
        attempts: row.attempts,
        error: row.error,
        holds: row.holds,
        alone: row.alone,
    });
    Ok(due.collect())
}

/// What is written of an event that stays parked.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) seq: i64,
    /// The attempts that were read: with others it was changed meanwhile, and is left alone.
    pub(crate) seen: i32,
    pub(crate) attempts: i32,
    /// None: it is dead.
    pub(crate) pause: Option<Duration>,
    pub(crate) error: Option<String>,
    pub(crate) holds: bool,
    pub(crate) alone: bool,
}

// Guarded like every write of an owner. An operator who asked for another retry meanwhile reset the
// attempts: that one is still to be made.
const SETTLE: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    JOIN unnest($1::smallint[], $2::bigint[]) AS o (shard, epoch) ON o.shard = c.shard AND o.epoch = c.epoch
    WHERE c.subscription = $3 AND c.owner = $4
    ORDER BY c.shard FOR UPDATE OF c
), gone AS (
    DELETE FROM outbox.parked p USING mine
    WHERE p.subscription = $5 AND p.seq = ANY ($6::bigint[]) AND p.shard = mine.shard
), failed AS (
    UPDATE outbox.parked p
    SET attempts = f.attempts, next_attempt_at = clock_timestamp() + f.pause * interval '1 ms', error = f.error,
        dead = f.pause IS NULL, holds = f.holds, alone = f.alone, updated_at = clock_timestamp()
    FROM unnest($7::bigint[], $8::integer[], $9::integer[], $10::bigint[], $11::text[], $12::boolean[], $13::boolean[])
        AS f (seq, seen, attempts, pause, error, holds, alone), mine
    WHERE p.subscription = $14 AND p.seq = f.seq AND p.shard = mine.shard AND p.attempts = f.seen
    RETURNING p.seq
)
SELECT shard, (SELECT count(*) FROM failed) FROM mine";

/// What a settle came to.
#[derive(Debug)]
pub(crate) struct Settled {
    /// The shards that are still ours.
    pub(crate) shards: Vec<i16>,
    /// How many of the failures were written.
    pub(crate) failures: i64,
}

/// Forgets what was delivered, and writes what failed.
pub(crate) async fn settle(
    session: &mut Session,
    who: &Identity,
    epochs: &[(u8, i64)],
    delivered: Vec<i64>,
    failures: Vec<Failure>,
) -> Result<Settled, SessionError> {
    let shards = epochs.iter().map(|(shard, _)| i16::from(*shard)).collect::<Vec<_>>();
    let epochs = epochs.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>();
    let pauses = failures.iter().map(|f| f.pause.map(millis)).collect::<Vec<_>>();
    let settle = statement::<(SmallInt, BigInt)>(SETTLE)
        .bind::<Array<SmallInt>, _>(shards)
        .bind::<Array<BigInt>, _>(epochs)
        .bind::<Text, _>(who.subscription.clone())
        .bind::<SqlUuid, _>(who.relay)
        .bind::<Text, _>(who.subscription.clone())
        .bind::<Array<BigInt>, _>(delivered)
        .bind::<Array<BigInt>, _>(failures.iter().map(|f| f.seq).collect::<Vec<_>>())
        .bind::<Array<Integer>, _>(failures.iter().map(|f| f.seen).collect::<Vec<_>>())
        .bind::<Array<Integer>, _>(failures.iter().map(|f| f.attempts).collect::<Vec<_>>())
        .bind::<Array<Nullable<BigInt>>, _>(pauses)
        .bind::<Array<Nullable<Text>>, _>(
            failures.iter().map(|f| f.error.as_deref().map(storable)).collect::<Vec<_>>(),
        )
        .bind::<Array<Bool>, _>(failures.iter().map(|f| f.holds).collect::<Vec<_>>())
        .bind::<Array<Bool>, _>(failures.iter().map(|f| f.alone).collect::<Vec<_>>())
        .bind::<Text, _>(who.subscription.clone());
    let rows: Vec<(i16, i64)> = session.load(Mode::Durable, settle).await?;
    Ok(Settled {
        failures: rows.first().map_or(0, |(_, failures)| *failures),
        shards: rows.into_iter().map(|(shard, _)| shard).collect(),
    })
}

// The lowest of an aggregate is due, whoever removed the one before it. Index-only but for the
// rows it changes: `parked` holds failures, not traffic.
const PROMOTE: &str = "\
UPDATE outbox.parked p SET next_attempt_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE p.subscription = $1 AND p.shard = ANY ($2::smallint[])
  AND p.next_attempt_at IS NULL AND NOT p.dead
  AND NOT EXISTS (
      SELECT FROM outbox.parked earlier
      WHERE earlier.subscription = p.subscription AND earlier.shard = p.shard
        AND earlier.aggregate_type = p.aggregate_type AND earlier.aggregate_id = p.aggregate_id
        AND earlier.holds AND (earlier.tick, earlier.seq) < (p.tick, p.seq))";

/// Makes held events due that wait behind nothing any more.
pub(crate) async fn promote(
    session: &mut Session,
    who: &Identity,
    shards: Vec<i16>,
) -> Result<usize, SessionError> {
    session
        .execute(
            Mode::Durable,
            statement::<()>(PROMOTE)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<Array<SmallInt>, _>(shards),
        )
        .await
}
