//! Tick: saves a snapshot, so that what became visible between two of them is the same for
//! everyone who reads it.

use diesel::Queryable;
use diesel::sql_types::{Array, BigInt, Bool, Nullable};

use crate::session::{DURABLE, Mode, Session, SessionError};
use crate::snapshot::sql_types::{PgSnapshot, Xid8};
use crate::snapshot::{Snapshot, Xid};
use crate::statement::statement;

/// A saved snapshot; the columns of `outbox.ticks`.
#[derive(Debug, Clone, Queryable)]
pub(crate) struct Tick {
    pub(crate) id: i64,
    pub(crate) mark: i64,
    pub(crate) xid: Xid,
    pub(crate) snapshot: Snapshot,
    pub(crate) seq_before: i64,
    pub(crate) seq_after: i64,
}

impl Tick {
    /// Whether transactions were in flight that may have emitted below `seq_before`. Those at or
    /// above the snapshot's xmax are in no list.
    pub(crate) fn has_in_flight(&self) -> bool {
        !self.snapshot.in_progress().is_empty() || self.snapshot.xmax() < self.xid
    }
}

type TickColumns = (BigInt, BigInt, Xid8, PgSnapshot, BigInt, BigInt);

type PollColumns = (
    BigInt,
    BigInt,
    Xid8,
    PgSnapshot,
    BigInt,
    BigInt,
    Nullable<Bool>,
    Nullable<BigInt>,
    Nullable<BigInt>,
);

/// How many ticks a poll returns at most.
pub(crate) const AHEAD: usize = 8;

const FIND: &str = "\
SELECT tick, mark, xid, snapshot, seq_before, seq_after FROM outbox.ticks WHERE tick = $1";

// Moved: something was drawn from the sequence since the newest tick began. Compared with seq_before:
// what lies between it and seq_after may have been in flight and is in nobody's list.
const POLL: &str = "\
WITH newest AS MATERIALIZED (
    SELECT * FROM outbox.ticks ORDER BY tick DESC LIMIT 1
)
SELECT a.tick, a.mark, a.xid, a.snapshot, a.seq_before, a.seq_after, NULL::boolean, NULL::bigint, NULL::bigint
FROM (SELECT * FROM outbox.ticks WHERE tick > $1 ORDER BY tick LIMIT 8) a
UNION ALL
SELECT n.tick, n.mark, n.xid, n.snapshot, n.seq_before, n.seq_after,
       coalesce(pg_sequence_last_value('outbox.event_seq') NOT BETWEEN n.seq_after AND n.seq_before, true),
       (SELECT max(f.from_tick) FROM outbox.topic_filters f),
       greatest((SELECT k.seq_before FROM outbox.ticks k WHERE k.xid <= pg_snapshot_xmin(n.snapshot) ORDER BY k.xid DESC LIMIT 1),
                (SELECT m.seq_floor FROM outbox.meta m), 0)
FROM newest n";

// Whether something of what was in flight at the tick has committed. A statement of its own: in the
// poll it made the server open every partition twice, 50 times a second.
const COMMITTED_SINCE: &str = "\
SELECT EXISTS (SELECT FROM unnest($1::xid8[]) AS x (xid)
               CROSS JOIN LATERAL (
                   SELECT FROM outbox.events e
                   WHERE e.xid = x.xid AND e.seq > $2 AND e.seq <= $3 LIMIT 1) e
               WHERE pg_visible_in_snapshot(x.xid, pg_current_snapshot()))
       OR (SELECT true FROM outbox.events e
           WHERE e.xid >= $4 AND e.xid < $5 AND e.seq > $6 AND e.seq <= $7
           ORDER BY e.xid LIMIT 1) IS NOT NULL";

/// What a look at the log tells.
#[derive(Debug)]
pub(crate) struct Poll {
    /// The next ticks above the one asked for, ascending, at most [`AHEAD`].
    pub(crate) ahead: Vec<Tick>,
    /// The newest tick.
    pub(crate) newest: Tick,
    /// Whether events may have become visible since the newest tick.
    pub(crate) waiting: bool,
    /// No event of a transaction that was in flight at the newest tick has this seq or a lower one.
    pub(crate) floor: i64,
    /// From which tick on the newest topic filter of all holds. It committed with that tick.
    pub(crate) newest_filter: i64,
}

/// Looks for ticks above `tick`, and whether another one should be taken.
pub(crate) async fn poll(session: &mut Session, tick: i64) -> Result<Poll, SessionError> {
    type Row = (i64, i64, Xid, Snapshot, i64, i64, Option<bool>, Option<i64>, Option<i64>);
    let rows: Vec<Row> =
        session.load(Mode::Read, statement::<PollColumns>(POLL).bind::<BigInt, _>(tick)).await?;
    let mut ahead = Vec::new();
    let mut newest = None;
    for (id, mark, xid, snapshot, seq_before, seq_after, moved, newest_filter, floor) in rows {
        let tick = Tick { id, mark, xid, snapshot, seq_before, seq_after };
        match moved {
            None => ahead.push(tick),
            Some(moved) => {
                newest = Some((tick, moved, newest_filter.unwrap_or(0), floor.unwrap_or(0)));
            }
        }
    }
    let (newest, moved, newest_filter, floor) = newest.ok_or(diesel::result::Error::NotFound)?;
    let waiting =
        moved || newest.has_in_flight() && committed_since(session, &newest, floor).await?;
    Ok(Poll { ahead, newest, waiting, floor, newest_filter })
}

async fn committed_since(
    session: &mut Session,
    tick: &Tick,
    floor: i64,
) -> Result<bool, SessionError> {
    let Tick { xid, snapshot, seq_before, .. } = tick;
    let asked = statement::<Bool>(COMMITTED_SINCE)
        .bind::<Array<Xid8>, _>(snapshot.in_progress().to_vec())
        .bind::<BigInt, _>(floor)
        .bind::<BigInt, _>(*seq_before)
        .bind::<Xid8, _>(snapshot.xmax())
        .bind::<Xid8, _>(*xid)
        .bind::<BigInt, _>(floor)
        .bind::<BigInt, _>(*seq_before);
    let rows: Vec<bool> = session.load(Mode::Read, asked).await?;
    Ok(rows.first().copied().unwrap_or(true))
}

/// Takes a tick; does nothing if another relay is just taking one.
pub(crate) async fn take(session: &mut Session) -> Result<(), SessionError> {
    // One message. No statement timeout: a commit that was cancelled while it waits for a standby
    // is visible, but not durable.
    let take = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 0; \
         {DURABLE}SELECT outbox.take_tick(); COMMIT"
    );
    session.batch(&take).await
}

/// The tick of this id.
pub(crate) async fn find(session: &mut Session, tick: i64) -> Result<Option<Tick>, SessionError> {
    let ticks =
        session.load(Mode::Read, statement::<TickColumns>(FIND).bind::<BigInt, _>(tick)).await?;
    Ok(ticks.into_iter().next())
}

const LAST_BELOW: &str = "SELECT tick FROM outbox.ticks WHERE tick < $1 ORDER BY tick DESC LIMIT 1";

/// The id of the last tick below this one.
pub(crate) async fn last_below(session: &mut Session, tick: i64) -> Result<i64, SessionError> {
    let ticks: Vec<i64> =
        session.load(Mode::Read, statement::<BigInt>(LAST_BELOW).bind::<BigInt, _>(tick)).await?;
    Ok(ticks.into_iter().next().ok_or(diesel::result::Error::NotFound)?)
}
