//! Has delivered events sent once more.

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text, Timestamptz, Uuid as SqlUuid};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use crate::operation::{self, AdminError, begin, end, load, notice};
use crate::statement::statement;

/// Which delivered events a subscription is to get once more, and how fast.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    subscription: String,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    topic: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
    per_second: u16,
    forgotten_too: bool,
}

impl Replay {
    /// All that the log still holds of what this subscription was delivered.
    #[must_use]
    pub fn of(subscription: impl Into<String>) -> Self {
        Self {
            subscription: subscription.into(),
            since: None,
            until: None,
            topic: None,
            aggregate_type: None,
            aggregate_id: None,
            event_type: None,
            per_second: 100,
            forgotten_too: false,
        }
    }

    /// Only events emitted at this time or later. Default: from the first that is kept.
    #[must_use]
    pub fn since(mut self, since: DateTime<Utc>) -> Self {
        self.since = Some(since);
        self
    }

    /// Only events emitted before this time. Default: up to now.
    #[must_use]
    pub fn until(mut self, until: DateTime<Utc>) -> Self {
        self.until = Some(until);
        self
    }

    /// Only those of this topic. Default: of all that the subscription gets.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Only those of aggregates of this type. Default: of all.
    #[must_use]
    pub fn aggregate_type(mut self, aggregate_type: impl Into<String>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self
    }

    /// Only those of aggregates with this id. Default: of all.
    #[must_use]
    pub fn aggregate_id(mut self, aggregate_id: impl Into<String>) -> Self {
        self.aggregate_id = Some(aggregate_id.into());
        self
    }

    /// Only those of this event type. Default: of all.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// How many events a second, over all relays; at least one per relay. Default: 100.
    #[must_use]
    pub fn per_second(mut self, per_second: u16) -> Self {
        self.per_second = per_second.max(1);
        self
    }

    /// Also events that consumers' inboxes may have forgotten, and would have handled once more.
    /// Default: those are refused. They are the ones older than 14 days whose id tells no time (no
    /// UUIDv7, as `INSERT INTO outbox.events` makes them); what an inbox has forgotten of other
    /// events it refuses itself.
    #[must_use]
    pub fn forgotten_too(mut self) -> Self {
        self.forgotten_too = true;
        self
    }
}

// From which seq on: what was emitted at a time or later was drawn after the last tick before it.
const RANGE: &str = "\
WITH leaf AS MATERIALIZED (
    SELECT (regexp_match(pg_get_expr(l.relpartbound, l.oid), 'FROM \\(''(\\d+)''\\)'))[1]::bigint AS from_seq
    FROM pg_inherits i JOIN pg_class l ON l.oid = i.inhrelid
    WHERE i.inhparent = 'outbox.events'::regclass
), first AS MATERIALIZED (
    SELECT e.seq FROM outbox.events e ORDER BY e.seq LIMIT 1
)
SELECT coalesce((SELECT max(l.from_seq) FROM leaf l, first f WHERE l.from_seq <= f.seq),
                (SELECT min(l.from_seq) FROM leaf l), 1),
       coalesce((SELECT t.seq_before + 1 FROM outbox.ticks t WHERE t.ticked_at <= $1 ORDER BY t.tick DESC LIMIT 1), 1),
       least((SELECT t.seq_after FROM outbox.ticks t WHERE t.tick > 0 AND t.ticked_at >= $2 ORDER BY t.tick LIMIT 1),
             pg_sequence_last_value('outbox.event_seq'))";

const RUNNING: &str =
    "SELECT id FROM outbox.replays WHERE subscription = $1 AND finished_at IS NULL";

// The clock is above every generation, and above that of every replay before.
const START: &str = "\
WITH replay AS (
    INSERT INTO outbox.replays (subscription, generation, to_seq, since, until, topic, aggregate_type, aggregate_id, event_type, per_second, forgotten_too)
    SELECT s.name, greatest(s.generation + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint), $1,
           coalesce($2::timestamptz, '-infinity'), coalesce($3::timestamptz, 'infinity'), $4, $5, $6, $7, $8, $9
    FROM outbox.subscriptions s WHERE s.name = $10
    RETURNING id
), cursors AS (
    INSERT INTO outbox.replay_cursors (replay, shard, seq)
    SELECT replay.id, shard, $11 FROM replay, generate_series(0, 15) shard
)
SELECT id FROM replay";

/// Has a subscription's relays send delivered events once more, and returns the replay's id at once.
///
/// Replayed events come beside the stream, in the order of emit among themselves, with the header
/// [`outbox-replay`](crate::replay::REPLAY_HEADER) and the same event ids: consumers that drop
/// repeats by id must let them pass. They block nothing: one that the broker refuses is counted and
/// left. Each goes out once per replay, whatever crashes. What is parked or discarded is left out,
/// and so is what was not delivered yet.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// use outbox_diesel::admin::{self, Replay};
///
/// let lost = Replay::of("search").aggregate_type("order").aggregate_id("o-4711").per_second(10);
/// let id = admin::replay(conn, &lost).await?;
/// println!("{} events were sent", admin::replay_progress(conn, id).await?.sent);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NotKept`](AdminError::NotKept) if the log does not reach back that far (leave
/// [`since`](Replay::since) away for all that is kept), [`ReplayRunning`](AdminError::ReplayRunning)
/// if one is under way, [`NoSubscription`](AdminError::NoSubscription), or what the database says.
pub async fn replay(conn: &mut AsyncPgConnection, replay: &Replay) -> Result<Uuid, AdminError> {
    begin(conn).await?;
    let started = start(conn, replay).await;
    end(conn, started).await
}

async fn start(conn: &mut AsyncPgConnection, replay: &Replay) -> Result<Uuid, AdminError> {
    // Its row lock also keeps another operator from starting one.
    notice(conn, &replay.subscription).await?;
    let running = statement::<SqlUuid>(RUNNING).bind::<Text, _>(replay.subscription.clone());
    let running: Vec<Uuid> = load(conn, running).await?;
    if let Some(id) = running.into_iter().next() {
        return Err(AdminError::ReplayRunning(id));
    }
    operation::lock_ticks(conn).await?;
    let range = statement::<(BigInt, BigInt, Nullable<BigInt>)>(RANGE)
        .bind::<Nullable<Timestamptz>, _>(replay.since)
        .bind::<Nullable<Timestamptz>, _>(replay.until);
    let range: Vec<(i64, i64, Option<i64>)> = load(conn, range).await?;
    let (kept_from, asked, to_seq) =
        range.into_iter().next().ok_or(diesel::result::Error::NotFound)?;
    if replay.since.is_some() && asked < kept_from {
        return Err(AdminError::NotKept { kept_from, asked });
    }
    let start = statement::<SqlUuid>(START)
        .bind::<BigInt, _>(to_seq.unwrap_or(0))
        .bind::<Nullable<Timestamptz>, _>(replay.since)
        .bind::<Nullable<Timestamptz>, _>(replay.until)
        .bind::<Nullable<Text>, _>(replay.topic.clone())
        .bind::<Nullable<Text>, _>(replay.aggregate_type.clone())
        .bind::<Nullable<Text>, _>(replay.aggregate_id.clone())
        .bind::<Nullable<Text>, _>(replay.event_type.clone())
        .bind::<Integer, _>(i32::from(replay.per_second))
        .bind::<Bool, _>(replay.forgotten_too)
        .bind::<Text, _>(replay.subscription.clone())
        .bind::<BigInt, _>(asked.max(kept_from) - 1);
    let started: Vec<Uuid> = load(conn, start).await?;
    Ok(started.into_iter().next().ok_or(diesel::result::Error::NotFound)?)
}

/// How far a replay is.
#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
#[non_exhaustive]
pub struct Progress {
    /// The subscription.
    pub subscription: String,
    /// Events sent.
    pub sent: i64,
    /// Events that the broker refused, or at which three relays in a row ended, or that
    /// [inboxes may have forgotten](Replay::forgotten_too).
    pub refused: i64,
    /// Why one of them was refused.
    pub error: Option<String>,
    /// How much of the log is still to be looked through, in `seq`, at most.
    pub left: i64,
    /// When it ended. None: it is under way, or no relay is running.
    pub finished_at: Option<DateTime<Utc>>,
    /// It ended because an operator cancelled it.
    pub cancelled: bool,
}

const PROGRESS: &str = "\
SELECT r.subscription, sum(c.sent)::bigint, sum(c.refused)::bigint, max(c.error),
       greatest(max(r.to_seq) - min(c.seq), 0), r.finished_at, r.cancelled
FROM outbox.replays r JOIN outbox.replay_cursors c ON c.replay = r.id
WHERE r.id = $1 GROUP BY r.id";

/// How far a replay is.
///
/// # Errors
/// [`NoReplay`](AdminError::NoReplay), or what the database says.
pub async fn replay_progress(
    conn: &mut AsyncPgConnection,
    id: Uuid,
) -> Result<Progress, AdminError> {
    type Columns = (Text, BigInt, BigInt, Nullable<Text>, BigInt, Nullable<Timestamptz>, Bool);
    let progress = statement::<Columns>(PROGRESS).bind::<SqlUuid, _>(id);
    load(conn, progress).await?.into_iter().next().ok_or(AdminError::NoReplay(id))
}

const CANCEL: &str = "\
WITH cancelled AS (
    UPDATE outbox.replays SET finished_at = clock_timestamp(), cancelled = true
    WHERE id = $1 AND finished_at IS NULL RETURNING subscription
)
INSERT INTO outbox.revisions (subscription) SELECT subscription FROM cancelled
ON CONFLICT (subscription) DO UPDATE SET revision = revisions.revision + 1";

/// Ends a replay, and returns how far it came; events that are on their way still arrive. One that
/// has ended is left as it is.
///
/// # Errors
/// [`NoReplay`](AdminError::NoReplay), or what the database says.
pub async fn cancel_replay(conn: &mut AsyncPgConnection, id: Uuid) -> Result<Progress, AdminError> {
    begin(conn).await?;
    let cancel = statement::<()>(CANCEL).bind::<SqlUuid, _>(id);
    let cancelled = operation::execute(conn, cancel).await.map_err(AdminError::from);
    end(conn, cancelled).await?;
    replay_progress(conn, id).await
}
