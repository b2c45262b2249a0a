//! Makes an outbox at home in another database, after a dump and restore.

use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Nullable, Text};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection as _};
use tracing::warn;

use crate::operation::{self, AdminError, begin, end, execute, load};
use crate::statement::statement;
use crate::subscription::live_relays;

/// What a rebase would do, and why. Look at it, then pass it to [`rebase`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RebasePlan {
    /// The outbox was made in another database: system identifier and database oid differ.
    pub is_foreign: bool,
    /// The sequence lies below events or ticks that exist: it was set back, or not restored.
    pub is_behind: bool,
    /// What each subscription has not delivered, by name.
    pub subscriptions: Vec<Undelivered>,
    identity: Identity,
    anyway: bool,
}

/// What a subscription has not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
#[non_exhaustive]
pub struct Undelivered {
    /// The subscription.
    pub subscription: String,
    /// How many events a rebase parks for it, to be delivered one by one.
    pub events: i64,
    /// How many are parked already.
    pub parked: i64,
}

impl RebasePlan {
    /// Whether relays refuse to work until it is done.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.is_foreign || self.is_behind
    }

    /// Rebase even if nothing seems to be wrong: for servers that do not tell who they are.
    #[must_use]
    pub fn anyway(mut self) -> Self {
        self.anyway = true;
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
struct Identity {
    made_by_system: Option<i64>,
    system: Option<i64>,
    made_in_database: Option<i64>,
    database: Option<i64>,
    is_behind: bool,
}

const IDENTITY: &str = "\
SELECT m.system_identifier, outbox.system_identifier(), m.database_oid, outbox.database_oid(),
       coalesce(pg_sequence_last_value('outbox.event_seq'), 0) < greatest(
           (SELECT e.seq FROM outbox.events e ORDER BY e.seq DESC LIMIT 1),
           (SELECT t.seq_after FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1), m.seq_floor)
FROM outbox.meta m";

// Delivered is what the cursor's tick saw, and of the diff behind it all up to the cursor's seq. But
// xids mean something only for events that were there when the last tick was taken: what was
// emitted after the restore has small xids, which look as if every tick had seen them. Events at or
// below the floor of an earlier rebase were delivered or parked then. A topic filter applies to
// what its tick did not see.
macro_rules! undelivered {
    () => {
        "\
undelivered AS MATERIALIZED (
    SELECT c.subscription, e.seq
    FROM outbox.meta m
    CROSS JOIN (SELECT t.seq_after FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1) last
    CROSS JOIN outbox.cursors c
    LEFT JOIN outbox.ticks k ON k.tick = c.tick
    LEFT JOIN outbox.ticks n
        ON n.tick = coalesce(c.target, (SELECT min(a.tick) FROM outbox.ticks a WHERE a.tick > c.tick))
    JOIN outbox.events e ON e.shard = c.shard AND e.seq > m.seq_floor
    WHERE (e.seq > last.seq_after
           OR NOT (coalesce(pg_visible_in_snapshot(e.xid, k.snapshot), false)
                   OR coalesce(e.seq <= c.seq AND pg_visible_in_snapshot(e.xid, n.snapshot), false)))
      AND NOT EXISTS (SELECT FROM outbox.parked p WHERE p.subscription = c.subscription AND p.seq = e.seq)
      AND coalesce(e.topic = ANY ((
          SELECT f.topics FROM outbox.topic_filters f LEFT JOIN outbox.ticks ft ON ft.tick = f.from_tick
          WHERE f.subscription = c.subscription
            AND (f.from_tick = 0 OR e.seq > last.seq_after
                 OR NOT coalesce(pg_visible_in_snapshot(e.xid, ft.snapshot), false))
          ORDER BY f.from_tick DESC LIMIT 1)::text[]), true)
)"
    };
}

const COUNT: &str = concat!(
    "WITH ",
    undelivered!(),
    "
SELECT s.name, (SELECT count(*) FROM undelivered u WHERE u.subscription = s.name),
       (SELECT count(*) FROM outbox.parked p WHERE p.subscription = s.name)
FROM outbox.subscriptions s ORDER BY s.name"
);

/// Says whether the outbox is at home in this database, and what a rebase would do. Nothing is
/// changed. Reads the whole log.
///
/// # Errors
/// What the database says.
pub async fn plan_rebase(conn: &mut AsyncPgConnection) -> Result<RebasePlan, AdminError> {
    begin(conn).await?;
    let plan = plan(conn).await;
    end(conn, plan).await
}

async fn plan(conn: &mut AsyncPgConnection) -> Result<RebasePlan, AdminError> {
    let identity = identity(conn).await?;
    let subscriptions = load(conn, statement::<(Text, BigInt, BigInt)>(COUNT)).await?;
    let differ = |made: Option<i64>, here| matches!((made, here), (Some(m), Some(h)) if m != h);
    Ok(RebasePlan {
        is_foreign: differ(identity.made_by_system, identity.system)
            || differ(identity.made_in_database, identity.database),
        is_behind: identity.is_behind,
        subscriptions,
        identity,
        anyway: false,
    })
}

async fn identity(conn: &mut AsyncPgConnection) -> Result<Identity, AdminError> {
    type Id = Nullable<BigInt>;
    let identity = load(conn, statement::<(Id, Id, Id, Id, Bool)>(IDENTITY)).await?;
    Ok(identity.into_iter().next().ok_or(diesel::result::Error::NotFound)?)
}

/// Rebases as planned, and returns what was parked per subscription.
///
/// Parks, for each subscription, what it has not delivered; lifts the sequence above all events;
/// takes a tick and has every cursor go on from there; takes on this database's identity. All in
/// one transaction, during which emits wait. Then relays start, and deliver what is parked in the
/// order of emit. Nothing is lost. Delivered twice is only what the other database delivered after
/// the dump was made.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// use outbox_diesel::admin;
///
/// let plan = admin::plan_rebase(conn).await?;
/// if plan.is_needed() {
///     println!("{:?}", plan.subscriptions);
///     admin::rebase(conn, &plan).await?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NothingToRebase`](AdminError::NothingToRebase) unless the plan says
/// [`anyway`](RebasePlan::anyway); then [`RelaysLive`](AdminError::RelaysLive), too (relays refuse
/// to work in a foreign database, so that they need not be stopped there);
/// [`PlanOutdated`](AdminError::PlanOutdated) if the plan was made in another database;
/// [`Busy`](AdminError::Busy) if transactions that have emitted stay open for seconds; or what the
/// database says. Needs a role that owns the tables.
pub async fn rebase(
    conn: &mut AsyncPgConnection,
    plan: &RebasePlan,
) -> Result<Vec<Undelivered>, AdminError> {
    begin(conn).await?;
    let rebased = rebase_in(conn, plan).await;
    let done = end(conn, rebased).await?;
    warn!(subscriptions = ?done, "the outbox was rebased");
    Ok(done)
}

async fn rebase_in(
    conn: &mut AsyncPgConnection,
    agreed: &RebasePlan,
) -> Result<Vec<Undelivered>, AdminError> {
    operation::lock_ticks(conn).await?;
    // Before this transaction has an id: who draws a sequence value later has a later id. SHARE: no
    // event commits between what is parked and the tick.
    conn.batch_execute("SET LOCAL lock_timeout = '2s'; LOCK TABLE outbox.events IN SHARE MODE")
        .await?;
    let current = plan(conn).await?;
    if current.identity.system != agreed.identity.system
        || current.identity.database != agreed.identity.database
    {
        return Err(AdminError::PlanOutdated("it was made in another database"));
    }
    if !current.is_needed() && !agreed.anyway {
        return Err(AdminError::NothingToRebase);
    }
    if !current.is_foreign {
        for Undelivered { subscription, .. } in &current.subscriptions {
            let relays = live_relays(conn, subscription).await?;
            if relays > 0 {
                return Err(AdminError::RelaysLive { subscription: subscription.clone(), relays });
            }
        }
    }
    conn.batch_execute(LIFT).await?;
    let tick: Vec<i64> = load(conn, statement::<BigInt>(TICK)).await?;
    let tick = tick.into_iter().next().ok_or(diesel::result::Error::NotFound)?;
    execute(conn, statement::<()>(PARK).bind::<BigInt, _>(tick)).await?;
    conn.batch_execute(DUE).await?;
    execute(conn, statement::<()>(TAKE).bind::<BigInt, _>(tick)).await?;
    for settle in [MOVE_GENESIS, MOVE_CURSORS, TAKE_POSSESSION, FORGET_RELAYS] {
        conn.batch_execute(settle).await?;
    }
    Ok(current.subscriptions)
}

const LIFT: &str = "\
SELECT setval('outbox.event_seq', greatest(
    coalesce(pg_sequence_last_value('outbox.event_seq'), 1),
    (SELECT e.seq FROM outbox.events e ORDER BY e.seq DESC LIMIT 1),
    (SELECT max(t.seq_after) FROM outbox.ticks t), (SELECT max(p.seq) FROM outbox.parked p),
    (SELECT max(d.seq) FROM outbox.discarded d), (SELECT m.seq_floor FROM outbox.meta m)))";

const TICK: &str = "\
SELECT greatest(max(tick) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint) FROM outbox.ticks";

const PARK: &str = concat!(
    "WITH ",
    undelivered!(),
    "
INSERT INTO outbox.parked (subscription, shard, tick, seq, id, topic, aggregate_type, aggregate_id, event_type,
    event_version, dedup_key, payload, headers, created_at)
SELECT u.subscription, e.shard, $1, e.seq, e.id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type,
    e.event_version, e.dedup_key, e.payload, e.headers,
    CASE WHEN isfinite(e.created_at) THEN e.created_at ELSE 'epoch' END
FROM undelivered u JOIN outbox.events e ON e.seq = u.seq"
);

// The lowest of each aggregate.
const DUE: &str = "\
UPDATE outbox.parked p SET next_attempt_at = clock_timestamp()
WHERE p.next_attempt_at IS NULL AND NOT p.dead
  AND NOT EXISTS (
      SELECT FROM outbox.parked earlier
      WHERE earlier.subscription = p.subscription AND earlier.shard = p.shard
        AND earlier.aggregate_type = p.aggregate_type AND earlier.aggregate_id = p.aggregate_id
        AND (earlier.tick, earlier.seq) < (p.tick, p.seq))";

// The tick is as take_tick takes it: nobody can draw while we hold the lock, so that one sequence
// value is both before and after.
const TAKE: &str = "\
WITH now AS MATERIALIZED (
    SELECT pg_current_xact_id() AS xid, pg_current_snapshot() AS snapshot, pg_sequence_last_value('outbox.event_seq') AS seq
), old AS (
    DELETE FROM outbox.ticks WHERE tick > 0
)
INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after)
SELECT $1, hashtextextended(gen_random_uuid()::text, 0) & 9007199254740991, now.xid, now.snapshot, now.seq, now.seq FROM now";

// Genesis becomes the same place, so that a subscription that starts with the earliest event starts
// above the floor.
const MOVE_GENESIS: &str = "\
UPDATE outbox.ticks g
SET xid = t.xid, snapshot = t.snapshot, seq_before = t.seq_before, seq_after = t.seq_after, ticked_at = t.ticked_at
FROM outbox.ticks t WHERE g.tick = 0 AND t.tick > 0";

// Owners, if any, are fenced off.
const MOVE_CURSORS: &str = "\
UPDATE outbox.cursors
SET tick = (SELECT max(tick) FROM outbox.ticks), target = NULL, seq = 0, owner = NULL, leased_until = '-infinity',
    epoch = epoch + 1, updated_at = clock_timestamp()";

const TAKE_POSSESSION: &str = "\
UPDATE outbox.meta
SET system_identifier = outbox.system_identifier(), database_oid = outbox.database_oid(),
    seq_floor = pg_sequence_last_value('outbox.event_seq')";

const FORGET_RELAYS: &str = "DELETE FROM outbox.relays";
