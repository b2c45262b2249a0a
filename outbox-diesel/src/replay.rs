//! Replay: sends delivered events once more to one subscription, beside its stream. The shard's
//! owner does it, under its epoch, so that nobody races it. Nothing is parked: a replayed event
//! waits for nobody, and nobody for it.

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{Array, BigInt, Bool, Integer, Nullable, SmallInt, Text, Uuid as SqlUuid};
use uuid::Uuid;

use crate::lease::Identity;
use crate::message::{Chunk, Fields, Message};
use crate::read::{EventColumns, Limits};
use crate::session::{Mode, Session, SessionError};
use crate::statement::{RawJson, statement};

/// The header that marks a replayed event; its value is the replay's id.
pub const REPLAY_HEADER: &str = "outbox-replay";

/// Why an event was left out of a replay.
pub(crate) const FORGOTTEN: &str = "its id is no UUIDv7 and it is older than 14 days: inboxes may have forgotten it, and would have it handled once more";

/// How far one read looks ahead, so that its work is bounded however few events are asked for.
const WINDOW: i64 = 100_000;

/// A replay that is under way.
#[derive(Debug, Clone, Queryable)]
pub(crate) struct Replay {
    pub(crate) id: Uuid,
    pub(crate) generation: i64,
    pub(crate) to_seq: i64,
    pub(crate) per_second: i32,
    /// The shards asked for that are furthest behind, and where they are.
    pub(crate) shards: Vec<i16>,
    pub(crate) seq: i64,
    /// Up to there events go out one by one: a relay ended there.
    pub(crate) careful_to: i64,
}

impl Replay {
    /// Whether events go out one by one.
    pub(crate) fn is_careful(&self) -> bool {
        self.careful_to > self.seq
    }
}

const UNDER_WAY: &str = "\
SELECT r.id, r.generation, r.to_seq, r.per_second, array_agg(c.shard ORDER BY c.shard), c.seq, max(c.careful_to)
FROM outbox.replays r
JOIN outbox.replay_cursors c ON c.replay = r.id AND c.seq < r.to_seq
WHERE r.subscription = $1 AND r.finished_at IS NULL AND c.shard = ANY ($2::smallint[])
GROUP BY r.id, c.seq ORDER BY c.seq LIMIT 1";

/// What is to be done of the subscription's replay, if there is one, for these shards.
pub(crate) async fn under_way(
    session: &mut Session,
    who: &Identity,
    shards: Vec<i16>,
) -> Result<Option<Replay>, SessionError> {
    type Columns = (SqlUuid, BigInt, BigInt, Integer, Array<SmallInt>, BigInt, BigInt);
    let under_way = statement::<Columns>(UNDER_WAY)
        .bind::<Text, _>(who.subscription.clone())
        .bind::<Array<SmallInt>, _>(shards);
    Ok(session.load(Mode::Read, under_way).await?.into_iter().next())
}

// Delivered: visible at the cursor, or restored with another server's transaction ids. What is
// parked will go out anyway, and what was discarded is not to. Of the topics that it gets now.
// An inbox refuses a UUIDv7 that it has forgotten. Other ids it remembers for 30 days at least; an
// event that is sent within 14 has as long again to arrive.
const READ: &str = "\
WITH replay AS MATERIALIZED (
    SELECT r.*, (SELECT f.topics FROM outbox.topic_filters f WHERE f.subscription = r.subscription
                 ORDER BY f.from_tick DESC LIMIT 1) AS topics
    FROM outbox.replays r WHERE r.id = $1
)
SELECT seq, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at,
       is_forgotten
FROM (
    SELECT f.*, sum(size) OVER (ORDER BY f.seq ROWS UNBOUNDED PRECEDING) - size AS before
    FROM (
        SELECT e.*, octet_length(e.payload::text) + octet_length(e.headers::text) AS size,
               NOT r.forgotten_too AND substr(e.id::text, 15, 1) <> '7'
                   AND e.created_at < clock_timestamp() - interval '14 days' AS is_forgotten
        FROM replay r
        JOIN outbox.cursors c ON c.subscription = r.subscription
        JOIN outbox.ticks k ON k.tick = c.tick
        JOIN outbox.events e ON e.shard = c.shard
        CROSS JOIN outbox.meta m
        WHERE e.seq > $2 AND e.seq <= $3 AND e.shard = ANY ($4::smallint[])
          AND (e.seq <= m.seq_floor OR pg_visible_in_snapshot(e.xid, k.snapshot))
          AND e.created_at >= r.since AND e.created_at < r.until
          AND e.topic = coalesce(r.topic, e.topic) AND e.aggregate_type = coalesce(r.aggregate_type, e.aggregate_type)
          AND e.aggregate_id = coalesce(r.aggregate_id, e.aggregate_id)
          AND e.event_type = coalesce(r.event_type, e.event_type)
          AND coalesce(e.topic = ANY (r.topics), true)
          AND NOT EXISTS (SELECT FROM outbox.parked p WHERE p.subscription = r.subscription AND p.seq = e.seq)
          AND NOT EXISTS (SELECT FROM outbox.discarded d WHERE d.subscription = r.subscription AND d.seq = e.seq)
        ORDER BY e.seq LIMIT $5
    ) f
) g
WHERE before < $6
ORDER BY seq";

#[derive(Queryable)]
struct EventRow {
    seq: i64,
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
    is_forgotten: bool,
}

/// What a read found, besides the events in the chunk.
pub(crate) struct Window {
    /// Up to this `seq` that is all.
    pub(crate) reach: i64,
    /// Events that are not sent, by `seq` and shard: inboxes may have forgotten them.
    pub(crate) forgotten: Vec<(i64, i16)>,
}

/// Reads the next events into the chunk, marked.
pub(crate) async fn read(
    session: &mut Session,
    replay: &Replay,
    limits: Limits,
    chunk: &mut Chunk,
) -> Result<Window, SessionError> {
    type Columns = EventColumns<Bool>;
    chunk.clear();
    let upto = replay.to_seq.min(replay.seq.saturating_add(WINDOW));
    let read = statement::<Columns>(READ)
        .bind::<SqlUuid, _>(replay.id)
        .bind::<BigInt, _>(replay.seq)
        .bind::<BigInt, _>(upto)
        .bind::<Array<SmallInt>, _>(replay.shards.clone())
        .bind::<BigInt, _>(i64::from(limits.events))
        .bind::<BigInt, _>(i64::from(limits.bytes));
    let rows: Vec<EventRow> = session.load(Mode::Read, read).await?;
    let (mut bytes, mut forgotten) = (0, Vec::new());
    for row in &rows {
        bytes += row.payload.0.len() + row.headers.0.len();
        if row.is_forgotten {
            forgotten.push((row.seq, row.shard));
            continue;
        }
        chunk.push(Fields {
            tick: 0,
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
            headers: &mark(&String::from_utf8_lossy(&row.headers.0), replay.id),
            created_at: row.created_at,
        });
    }
    let is_full = rows.len() >= usize::from(limits.events) || bytes >= limits.bytes as usize;
    let last = rows.last().map(|row| row.seq);
    Ok(Window { reach: last.filter(|_| is_full).unwrap_or(upto), forgotten })
}

/// The headers, an object's JSON text, with the replay's id in front.
fn mark(headers: &str, id: Uuid) -> String {
    let members = headers.trim_start().strip_prefix('{').unwrap_or("}");
    let comma = if members.trim_start().starts_with('}') { "" } else { "," };
    format!("{{\"{REPLAY_HEADER}\":\"{id}\"{comma}{members}")
}

/// What came of a chunk in one shard.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    pub(crate) sent: i64,
    pub(crate) refused: i64,
    pub(crate) error: Option<String>,
}

// Guarded like every write of an owner.
const AHEAD: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    JOIN unnest($1::smallint[], $2::bigint[]) AS o (shard, epoch) ON o.shard = c.shard AND o.epoch = c.epoch
    WHERE c.subscription = $3 AND c.owner = $4
    ORDER BY c.shard FOR UPDATE OF c
)
UPDATE outbox.replay_cursors r SET careful_to = $5
FROM mine WHERE r.replay = $6 AND r.shard = mine.shard AND r.seq = $7";

/// Writes, before events up to there are sent, that it may end this relay. [`settle`] takes it back.
pub(crate) async fn go_ahead(
    session: &mut Session,
    who: &Identity,
    epochs: &[(u8, i64)],
    replay: &Replay,
    reach: i64,
) -> Result<(), SessionError> {
    let (shards, epochs) = columns(epochs);
    let ahead = statement::<()>(AHEAD)
        .bind::<Array<SmallInt>, _>(shards)
        .bind::<Array<BigInt>, _>(epochs)
        .bind::<Text, _>(who.subscription.clone())
        .bind::<SqlUuid, _>(who.relay)
        .bind::<BigInt, _>(reach)
        .bind::<SqlUuid, _>(replay.id)
        .bind::<BigInt, _>(replay.seq);
    session.execute(Mode::Relaxed, ahead).await?;
    Ok(())
}

const ALONE: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    WHERE c.subscription = $1 AND c.owner = $2 AND c.shard = $3 AND c.epoch = $4
    FOR UPDATE
)
UPDATE outbox.replay_cursors r
SET tries = CASE WHEN r.tried IS DISTINCT FROM $5 THEN 1 WHEN r.tried_by = $6 THEN r.tries ELSE r.tries + 1 END,
    tried = $7, tried_by = $8
FROM mine WHERE r.replay = $9 AND r.shard = mine.shard AND r.seq = $10
RETURNING r.tries";

/// Writes that an event is tried alone, and returns how many relays in a row have begun to; None if
/// the shard is not ours.
pub(crate) async fn try_alone(
    session: &mut Session,
    who: &Identity,
    epoch: i64,
    replay: &Replay,
    message: &Message<'_>,
) -> Result<Option<i16>, SessionError> {
    let alone = statement::<SmallInt>(ALONE)
        .bind::<Text, _>(who.subscription.clone())
        .bind::<SqlUuid, _>(who.relay)
        .bind::<SmallInt, _>(i16::from(message.shard()))
        .bind::<BigInt, _>(epoch)
        .bind::<BigInt, _>(message.seq())
        .bind::<SqlUuid, _>(who.relay)
        .bind::<BigInt, _>(message.seq())
        .bind::<SqlUuid, _>(who.relay)
        .bind::<SqlUuid, _>(replay.id)
        .bind::<BigInt, _>(replay.seq);
    Ok(session.load(Mode::Relaxed, alone).await?.into_iter().next())
}

fn columns(epochs: &[(u8, i64)]) -> (Vec<i16>, Vec<i64>) {
    epochs.iter().map(|(shard, epoch)| (i16::from(*shard), *epoch)).unzip()
}

// Guarded like every write of an owner. Whoever comes to this has not ended.
const SETTLE: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    JOIN unnest($1::smallint[], $2::bigint[]) AS o (shard, epoch) ON o.shard = c.shard AND o.epoch = c.epoch
    WHERE c.subscription = $3 AND c.owner = $4
    ORDER BY c.shard FOR UPDATE OF c
)
UPDATE outbox.replay_cursors r
SET seq = $5, sent = r.sent + o.sent, refused = r.refused + o.refused, error = coalesce(o.error, r.error),
    careful_to = $6, tried = NULL, tries = 0, tried_by = NULL
FROM unnest($7::smallint[], $8::bigint[], $9::bigint[], $10::text[]) AS o (shard, sent, refused, error)
JOIN mine ON mine.shard = o.shard
WHERE r.replay = $11 AND r.shard = o.shard AND r.seq = $12";

// After the settle of the last shard committed, whoever's it was.
const FINISH: &str = "\
UPDATE outbox.replays r SET finished_at = clock_timestamp()
WHERE r.id = $1 AND r.finished_at IS NULL
  AND NOT EXISTS (SELECT FROM outbox.replay_cursors c WHERE c.replay = r.id AND c.seq < r.to_seq)";

/// Writes how far the shards are, and up to where the next events go out one by one; the last one
/// ends the replay.
pub(crate) async fn settle(
    session: &mut Session,
    who: &Identity,
    epochs: &[(u8, i64)],
    replay: &Replay,
    reach: i64,
    outcomes: &[(i16, Outcome)],
    careful_to: i64,
) -> Result<(), SessionError> {
    let column = |value: fn(&Outcome) -> i64| {
        outcomes.iter().map(|(_, outcome)| value(outcome)).collect::<Vec<i64>>()
    };
    let (shards, epochs) = columns(epochs);
    let errors: Vec<_> = outcomes.iter().map(|(_, outcome)| outcome.error.clone()).collect();
    let settle = statement::<()>(SETTLE)
        .bind::<Array<SmallInt>, _>(shards)
        .bind::<Array<BigInt>, _>(epochs)
        .bind::<Text, _>(who.subscription.clone())
        .bind::<SqlUuid, _>(who.relay)
        .bind::<BigInt, _>(reach)
        .bind::<BigInt, _>(careful_to)
        .bind::<Array<SmallInt>, _>(outcomes.iter().map(|(shard, _)| *shard).collect::<Vec<_>>())
        .bind::<Array<BigInt>, _>(column(|outcome| outcome.sent))
        .bind::<Array<BigInt>, _>(column(|outcome| outcome.refused))
        .bind::<Array<Nullable<Text>>, _>(errors)
        .bind::<SqlUuid, _>(replay.id)
        .bind::<BigInt, _>(replay.seq);
    session.execute(Mode::Durable, settle).await?;
    if reach >= replay.to_seq {
        let finish = statement::<()>(FINISH).bind::<SqlUuid, _>(replay.id);
        session.execute(Mode::Durable, finish).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_headers_can_be_marked() {
        let id = Uuid::nil();
        let marked = |headers| mark(headers, id).replace(&id.to_string(), "ID");
        assert_eq!(marked("{}"), r#"{"outbox-replay":"ID"}"#);
        assert_eq!(marked(" { } "), r#"{"outbox-replay":"ID" } "#);
        assert_eq!(marked(r#"{"a":"b"}"#), r#"{"outbox-replay":"ID","a":"b"}"#);
    }
}
