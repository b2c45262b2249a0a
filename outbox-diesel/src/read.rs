//! Read: a diff, chunk by chunk. The diff from tick `from` to tick `to` is what became visible
//! between them, in `seq` order: first the stragglers (drawn before `from`, in flight then), then
//! the rest.
//!
//! `to` was read and committed before any transaction here begins: a lock on `events` that is
//! already held would keep a partition attached in between from being seen.

mod collect;

use diesel::sql_types::{Array, BigInt, Nullable, SmallInt, Text};

use self::collect::Collect;
pub(crate) use self::collect::EventColumns;
use crate::message::{Chunk, Message};
use crate::session::{Mode, Session, SessionError};
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

impl Limits {
    /// How large events may be on average, so that as many as are allowed keep to the bytes.
    fn share(self) -> i64 {
        i64::from(self.bytes) / i64::from(self.events.max(1))
    }
}

/// How a read keeps to its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Measure {
    /// By the share of each: it ends before an event that is larger.
    #[default]
    EachEvent,
    /// By their sum, which the server reckons up: that doubles what a read costs it.
    Sum,
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

/// Prepares the reading of a diff. The floor of its earlier tick is looked up unless it is known.
pub(crate) async fn open(
    session: &mut Session,
    from: Tick,
    to: Tick,
    topics: Option<Vec<String>>,
    floor: Option<i64>,
) -> Result<Diff, SessionError> {
    let listed: Vec<Xid> =
        from.snapshot.in_progress().iter().copied().filter(|xid| to.snapshot.sees(*xid)).collect();
    // Two thirds of all ticks under load have nothing in flight.
    if listed.is_empty() && from.snapshot.xmax() >= from.xid {
        let stragglers = Stragglers { xids: Vec::new(), floor: from.seq_before };
        return Ok(Diff { from, to, topics, stragglers });
    }
    let floor = match floor {
        Some(floor) => floor,
        None => find_floor(session, &from).await?,
    };
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

async fn find_floor(session: &mut Session, from: &Tick) -> Result<i64, SessionError> {
    let floor = statement::<BigInt>(FLOOR).bind::<Xid8, _>(from.snapshot.xmin());
    let floor: Vec<i64> = session.load(Mode::Read, floor).await?;
    Ok(floor.first().copied().unwrap_or(0))
}

// How large a value is unpacked, as it travels.
macro_rules! size_of {
    ($value:literal) => {
        concat!(
            "CASE WHEN pg_column_compression(",
            $value,
            ") IS NULL THEN pg_column_size(",
            $value,
            ") ELSE octet_length(",
            $value,
            "::text) END"
        )
    };
}

macro_rules! events_of {
    ($events:expr) => {
        concat!(
            "\
SELECT e.seq, e.shard, e.id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.event_version,
               e.dedup_key, e.payload, e.headers, e.created_at,
               ", size_of!("e.payload"), " + ", size_of!("e.headers"), " AS size
        FROM ", $events)
    };
}

// `before`: bytes of the events ahead of this one, so that a chunk ends with the event that fills
// it. The window keeps a copy of every row.
macro_rules! chunk_of {
    ($events:expr) => {
        concat!(
            "\
SELECT seq, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at, before + size
FROM (
    SELECT c.*, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) - size AS before
    FROM (
        ", events_of!($events), "
    ) c
) d WHERE before < $9 ORDER BY seq"
        )
    };
}

macro_rules! rest {
    () => {
        "outbox.events e
        WHERE e.seq > $1 AND e.seq <= $2
          AND e.shard = ANY ($3::smallint[])
          AND NOT pg_visible_in_snapshot(e.xid, $4) AND pg_visible_in_snapshot(e.xid, $5)
          AND ($6::text[] IS NULL OR e.topic = ANY ($7::text[]))
        ORDER BY e.seq LIMIT $8"
    };
}

const REST: &str = chunk_of!(rest!());

// An event beyond its share stays where it is: neither unpacked nor sent.
const REST_BY_EVENT: &str = concat!(
    "WITH c AS (
        ",
    events_of!(rest!()),
    "
)
SELECT seq, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key,
       CASE WHEN size <= $9 THEN payload END, CASE WHEN size <= $10 THEN headers END, created_at,
       size::bigint
FROM c ORDER BY seq"
);

const LATE: &str = chunk_of!(
    "unnest($1::xid8[]) AS x (xid) CROSS JOIN LATERAL (
            SELECT * FROM outbox.events e
            WHERE e.xid = x.xid AND e.seq > $2 AND e.seq <= $3
              AND e.shard = ANY ($4::smallint[])
              AND ($5::text[] IS NULL OR e.topic = ANY ($6::text[]))
            ORDER BY e.seq LIMIT $7) e
        ORDER BY e.seq LIMIT $8"
);

/// The rest behind `seq`, at most so many events. What keeps to the bytes is bound last.
fn rest(
    text: &'static str,
    diff: &Diff,
    shards: &[i16],
    (seq, upto): (i64, i64),
    limits: Limits,
) -> Statement<EventColumns, impl Walk + Send + 'static> {
    statement::<EventColumns>(text)
        .bind::<BigInt, _>(seq)
        .bind::<BigInt, _>(upto)
        .bind::<Array<SmallInt>, _>(shards.to_vec())
        .bind::<PgSnapshot, _>(diff.from.snapshot.clone())
        .bind::<PgSnapshot, _>(diff.to.snapshot.clone())
        .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
        .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
        .bind::<BigInt, _>(i64::from(limits.events))
}

/// Reads the events of these shards behind `seq` into the chunk, and says how far it reaches, and
/// in `measure` how to read what follows.
pub(crate) async fn read(
    session: &mut Session,
    diff: &Diff,
    shards: &[i16],
    seq: i64,
    limits: Limits,
    measure: &mut Measure,
    chunk: &mut Chunk,
) -> Result<Reach, SessionError> {
    chunk.clear();
    let before = diff.from.seq_before;
    let bytes = i64::from(limits.bytes);
    let late = seq < before && !diff.stragglers.xids.is_empty();
    let (seq, end) = if late {
        (seq.max(diff.stragglers.floor), before)
    } else {
        (seq.max(before), diff.to.seq_after)
    };
    let upto = end.min(seq.saturating_add(WINDOW));
    let mut collect = Collect { tick: diff.to.id, chunk, size: 0, is_cut: false };
    if late {
        let query = statement::<EventColumns>(LATE)
            .bind::<Array<Xid8>, _>(diff.stragglers.xids.clone())
            .bind::<BigInt, _>(seq)
            .bind::<BigInt, _>(upto)
            .bind::<Array<SmallInt>, _>(shards.to_vec())
            .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
            .bind::<Nullable<Array<Text>>, _>(diff.topics.clone())
            .bind::<BigInt, _>(i64::from(limits.events))
            .bind::<BigInt, _>(i64::from(limits.events))
            .bind::<BigInt, _>(bytes);
        collect.stream(session, query).await?;
    } else if seq < upto {
        let share = limits.share();
        if *measure == Measure::EachEvent {
            let query = rest(REST_BY_EVENT, diff, shards, (seq, upto), limits);
            let query = query.bind::<BigInt, _>(share).bind::<BigInt, _>(share);
            collect.stream(session, query).await?;
            if collect.is_cut {
                *measure = Measure::Sum;
            }
        }
        if *measure == Measure::Sum && collect.chunk.is_empty() {
            collect.is_cut = false;
            let query = rest(REST, diff, shards, (seq, upto), limits);
            collect.stream(session, query.bind::<BigInt, _>(bytes)).await?;
            let size = |m: Message<'_>| m.payload().len() + m.headers().len();
            let mut sizes = collect.chunk.messages().map(size);
            if sizes.all(|size| i64::try_from(size).is_ok_and(|size| size <= share)) {
                *measure = Measure::EachEvent;
            }
        }
    }
    let full = collect.is_cut || collect.size >= bytes || chunk.len() >= usize::from(limits.events);
    let last = chunk.messages().last().map(|message| message.seq());
    Ok(match last {
        Some(last) if full => Reach::Seq(last),
        _ if late || upto < end => Reach::Seq(upto),
        _ => Reach::End,
    })
}
