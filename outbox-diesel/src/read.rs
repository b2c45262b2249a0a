//! Read: a diff, chunk by chunk. The diff from tick `from` to tick `to` is what became visible
//! between them, in `seq` order: first the stragglers (drawn before `from`, in flight then), then
//! the rest.
//!
//! `to` was read and committed before any transaction here begins: a lock on `events` that is
//! already held would keep a partition attached in between from being seen.

use chrono::{DateTime, Utc};
use diesel::deserialize;
use diesel::pg::PgValue;
use diesel::result::Error;
use diesel::row::{Field as _, Row as _};
use diesel::sql_types::{
    Array, BigInt, Json, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use uuid::Uuid;

use crate::message::{Chunk, Fields};
use crate::session::{Mode, Row, Session, SessionError};
use crate::snapshot::Xid;
use crate::snapshot::sql_types::{PgSnapshot, Xid8};
use crate::statement::{Statement, Walk, statement};
use crate::tick::Tick;

/// How far one read looks ahead in `seq`, so that its work is bounded however few of the events
/// are for the shards and topics asked for.
const WINDOW: i64 = 100_000;

/// What became visible between two ticks.
#[derive(Debug, Clone)]
pub(crate) struct Diff {
    pub(crate) from: Tick,
    pub(crate) to: Tick,
    /// Only these topics; None: all.
    pub(crate) topics: Option<Vec<String>>,
    stragglers: Stragglers,
}

/// Transactions in flight at `from`, visible in `to`, that emitted.
#[derive(Debug, Clone)]
struct Stragglers {
    xids: Vec<Xid>,
    /// Their events lie above.
    floor: i64,
}

/// How much one chunk may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) events: u16,
    pub(crate) bytes: u32,
}

/// How far a chunk reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All of the diff up to this `seq` is in this chunk or an earlier one.
    Seq(i64),
    /// To the end of the diff.
    End,
}

// A statement of its own: a bound that the next one computed itself would prune no partition before
// all of them were set up.
const FLOOR: &str = "\
SELECT greatest((SELECT k.seq_before FROM outbox.ticks k WHERE k.xid <= $1 ORDER BY k.xid DESC LIMIT 1),
                (SELECT m.seq_floor FROM outbox.meta m), 0)";

// Found before the chunks are read. Few: in-flight transactions that emitted, each found by one
// probe of (xid, seq), the unlisted ones by a skip scan. The bounds let partitions be pruned. An
// EXISTS instead of the LATERAL became a hash join with all events since the oldest transaction.
const STRAGGLERS: &str = "\
WITH RECURSIVE unlisted AS (
    (SELECT e.xid FROM outbox.events e
     WHERE e.xid >= $1 AND e.xid < $2 AND e.seq > $3 AND e.seq <= $4
     ORDER BY e.xid LIMIT 1)
    UNION ALL
    SELECT (SELECT e.xid FROM outbox.events e
            WHERE e.xid > u.xid AND e.xid < $5 AND e.seq > $6 AND e.seq <= $7
            ORDER BY e.xid LIMIT 1)
    FROM unlisted u WHERE u.xid IS NOT NULL
)
SELECT xid FROM unlisted WHERE xid IS NOT NULL
UNION ALL
SELECT x.xid FROM unnest($8::xid8[]) AS x (xid)
CROSS JOIN LATERAL (SELECT FROM outbox.events e
                    WHERE e.xid = x.xid AND e.seq > $9 AND e.seq <= $10
                    LIMIT 1) e";

/// Prepares the reading of a diff.
pub(crate) async fn open(
    session: &mut Session,
    from: Tick,
    to: Tick,
    topics: Option<Vec<String>>,
) -> Result<Diff, SessionError> {
    let listed: Vec<Xid> =
        from.snapshot.in_progress().iter().copied().filter(|xid| to.snapshot.sees(*xid)).collect();
    // Two thirds of all ticks under load have nothing in flight.
    if listed.is_empty() && from.snapshot.xmax() >= from.xid {
        let stragglers = Stragglers { xids: Vec::new(), floor: from.seq_before };
        return Ok(Diff { from, to, topics, stragglers });
    }
    let floor = statement::<BigInt>(FLOOR).bind::<Xid8, _>(from.snapshot.xmin());
    let floor: Vec<i64> = session.load(Mode::Read, floor).await?;
    let floor = floor.first().copied().unwrap_or(0);
    let mut xids: Vec<Xid> = session
        .load(
            Mode::Read,
            statement::<Xid8>(STRAGGLERS)
                .bind::<Xid8, _>(from.snapshot.xmax())
                .bind::<Xid8, _>(from.xid)
                .bind::<BigInt, _>(floor)
                .bind::<BigInt, _>(from.seq_before)
                .bind::<Xid8, _>(from.xid)
                .bind::<BigInt, _>(floor)
                .bind::<BigInt, _>(from.seq_before)
                .bind::<Array<Xid8>, _>(listed)
                .bind::<BigInt, _>(floor)
                .bind::<BigInt, _>(from.seq_before),
        )
        .await?;
    xids.retain(|xid| to.snapshot.sees(*xid));
    let stragglers = Stragglers { xids, floor };
    Ok(Diff { from, to, topics, stragglers })
}

// `before`: bytes of the events ahead of this one, so that a chunk ends with the event that fills
// it. Compressed payloads are measured unpacked, as they travel.
macro_rules! chunk_of {
    ($events:literal) => {
        concat!(
            "\
SELECT seq, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at, before + size
FROM (
    SELECT c.*, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - size AS before
    FROM (
        SELECT e.seq, e.shard, e.id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.event_version,
               e.dedup_key, e.payload, e.headers, e.created_at,
               pg_column_size(e.headers) + CASE WHEN pg_column_compression(e.payload) IS NULL
                   THEN pg_column_size(e.payload) ELSE octet_length(e.payload::text) END AS size
        FROM ", $events, "
    ) c
) d"
        )
    };
}

type EventColumns = (
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
    BigInt,
);

const REST: &str = concat!(
    chunk_of!(
        "outbox.events e
        WHERE e.seq > $1 AND e.seq <= $2
          AND e.shard = ANY ($3::smallint[])
          AND NOT pg_visible_in_snapshot(e.xid, $4) AND pg_visible_in_snapshot(e.xid, $5)
          AND ($6::text[] IS NULL OR e.topic = ANY ($7::text[]))
        ORDER BY e.seq LIMIT $8"
    ),
    " WHERE before < $9 ORDER BY seq"
);

const LATE: &str = concat!(
    chunk_of!(
        "unnest($1::xid8[]) AS x (xid) CROSS JOIN LATERAL (
            SELECT * FROM outbox.events e
            WHERE e.xid = x.xid AND e.seq > $2 AND e.seq <= $3
              AND e.shard = ANY ($4::smallint[])
              AND ($5::text[] IS NULL OR e.topic = ANY ($6::text[]))
            ORDER BY e.seq LIMIT $7) e
        ORDER BY e.seq LIMIT $8"
    ),
    " WHERE before < $9 ORDER BY seq"
);

/// Reads the events of these shards behind `seq` into the chunk, and says how far it reaches.
pub(crate) async fn read(
    session: &mut Session,
    diff: &Diff,
    shards: &[i16],
    seq: i64,
    limits: Limits,
    chunk: &mut Chunk,
) -> Result<Reach, SessionError> {
    chunk.clear();
    let before = diff.from.seq_before;
    let events = i64::from(limits.events);
    let bytes = i64::from(limits.bytes);
    let late = seq < before && !diff.stragglers.xids.is_empty();
    let (seq, end) = if late {
        (seq.max(diff.stragglers.floor), before)
    } else {
        (seq.max(before), diff.to.seq_after)
    };
    let upto = end.min(seq.saturating_add(WINDOW));
    let mut collect = Collect { tick: diff.to.id, chunk, size: 0 };
    if late {
        let query = statement::<EventColumns>(LATE)
            .bind::<Array<Xid8>, _>(diff.stragglers.xids.clone())
            .bind::<BigInt, _>(seq)
            .bind::<BigInt, _>(upto)
            .bind::<Array<SmallInt>, _>(shards.to_vec())
            .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
            .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
            .bind::<BigInt, _>(events)
            .bind::<BigInt, _>(events)
            .bind::<BigInt, _>(bytes);
        collect.stream(session, query).await?;
    } else if seq < upto {
        let query = statement::<EventColumns>(REST)
            .bind::<BigInt, _>(seq)
            .bind::<BigInt, _>(upto)
            .bind::<Array<SmallInt>, _>(shards.to_vec())
            .bind::<PgSnapshot, _>(diff.from.snapshot.clone())
            .bind::<PgSnapshot, _>(diff.to.snapshot.clone())
            .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
            .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
            .bind::<BigInt, _>(events)
            .bind::<BigInt, _>(bytes);
        collect.stream(session, query).await?;
    }
    let full = collect.size >= bytes || chunk.len() >= usize::from(limits.events);
    let last = chunk.messages().last().map(|message| message.seq());
    Ok(match last {
        Some(last) if full => Reach::Seq(last),
        _ if late || upto < end => Reach::Seq(upto),
        _ => Reach::End,
    })
}

struct Collect<'a> {
    tick: i64,
    chunk: &'a mut Chunk,
    size: i64,
}

impl Collect<'_> {
    async fn stream<Binds: Walk + Send + 'static>(
        &mut self,
        session: &mut Session,
        query: Statement<EventColumns, Binds>,
    ) -> Result<(), SessionError> {
        session
            .stream(Mode::Read, query, |row| self.push(&row).map_err(Error::DeserializationError))
            .await
    }
}

impl Collect<'_> {
    /// Copies a row's bytes; nothing is allocated per event.
    fn push(&mut self, row: &Row) -> deserialize::Result<()> {
        let fields: [Option<_>; COLUMNS] = std::array::from_fn(|nth| row.get(nth));
        let mut values = fields.iter().map(|field| field.as_ref().and_then(|field| field.value()));
        let mut next = || values.next().flatten();

        let seq = i64::from_be_bytes(fixed(next())?);
        let shard = u8::try_from(i16::from_be_bytes(fixed(next())?))?;
        let id = Uuid::from_bytes(fixed(next())?);
        let topic = next().ok_or(MISSING)?;
        let aggregate_type = next().ok_or(MISSING)?;
        let aggregate_id = next().ok_or(MISSING)?;
        let event_type = next().ok_or(MISSING)?;
        let event_version = i16::from_be_bytes(fixed(next())?);
        let dedup_key = next();
        let payload = next().ok_or(MISSING)?;
        let headers = next().ok_or(MISSING)?;
        let created_at = i64::from_be_bytes(fixed(next())?);
        self.size = i64::from_be_bytes(fixed(next())?);

        self.chunk.push(Fields {
            tick: self.tick,
            seq,
            shard,
            id,
            topic: str::from_utf8(topic.as_bytes())?,
            aggregate_type: str::from_utf8(aggregate_type.as_bytes())?,
            aggregate_id: str::from_utf8(aggregate_id.as_bytes())?,
            event_type: str::from_utf8(event_type.as_bytes())?,
            event_version,
            dedup_key: match &dedup_key {
                Some(key) => Some(str::from_utf8(key.as_bytes())?),
                None => None,
            },
            payload: str::from_utf8(payload.as_bytes())?,
            headers: str::from_utf8(headers.as_bytes())?,
            created_at: timestamp(created_at),
        });
        Ok(())
    }
}

const COLUMNS: usize = 13;
const MISSING: &str = "a column of outbox.events is missing";

fn fixed<const N: usize>(value: Option<PgValue<'_>>) -> deserialize::Result<[u8; N]> {
    Ok(value.ok_or(MISSING)?.as_bytes().try_into()?)
}

/// PostgreSQL counts microseconds from 2000-01-01. What no calendar has (`infinity` by plain SQL)
/// must not stop the log, so it becomes the first or the last moment that both sides can hold: a
/// parked event's time goes back to PostgreSQL.
fn timestamp(micros: i64) -> DateTime<Utc> {
    const UNIX_2000: i64 = 946_684_800_000_000;
    /// 4713-11-24 BC, PostgreSQL's first day.
    const FIRST: i64 = -211_813_488_000_000_000;
    micros
        .max(FIRST)
        .checked_add(UNIX_2000)
        .and_then(DateTime::from_timestamp_micros)
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}
