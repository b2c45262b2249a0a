//! Skips a backlog.

use std::fmt;

use chrono::{DateTime, Utc};
use diesel::sql_types::{BigInt, Bool, Text, Timestamptz};
use diesel_async::AsyncPgConnection;
use tracing::warn;

use crate::operation::{self, AdminError, begin, end, execute, load, notice};
use crate::statement::statement;
use crate::subscription::{Start, find_moment};

/// What a skip would do. Look at it, then pass it to [`skip`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkipPlan {
    /// The subscription.
    pub subscription: String,
    /// It goes on with events that commit after this time.
    pub to: DateTime<Utc>,
    /// How many events it will not deliver.
    pub events: Events,
    tick: i64,
}

/// A number of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// Counted.
    Exactly(u64),
    /// More than 10,000: the distance in the log, which counts the events of other topics and of
    /// transactions that were rolled back too.
    AtMost(u64),
    /// Counted up to here, and there are more.
    MoreThan(u64),
}

impl Events {
    fn limit(self) -> u64 {
        match self {
            Self::Exactly(events) | Self::AtMost(events) => events,
            Self::MoreThan(_) => u64::MAX,
        }
    }
}

impl fmt::Display for Events {
    /// `17`, `≤ 12000`, `> 10000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(events) => write!(f, "{events}"),
            Self::AtMost(events) => write!(f, "≤ {events}"),
            Self::MoreThan(events) => write!(f, "> {events}"),
        }
    }
}

/// Plans to move a subscription forward, past events that nobody wants any more: to what commits
/// after a time, or [`Start::Now`]. Nothing is skipped yet.
///
/// # Errors
/// [`NoSubscription`](AdminError::NoSubscription), or what the database says.
pub async fn plan_skip(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    to: Start,
) -> Result<SkipPlan, AdminError> {
    begin(conn).await?;
    let plan = async {
        if to == Start::Now {
            operation::take_tick(conn).await?;
        } else {
            operation::lock_ticks(conn).await?;
        }
        let moment = find_moment(conn, to).await?;
        let events = count(conn, subscription, moment.tick).await?;
        let subscription = subscription.to_owned();
        Ok(SkipPlan { subscription, to: moment.ticked_at, events, tick: moment.tick })
    }
    .await;
    end(conn, plan).await
}

// A shard whose cursor aims beyond the tick has delivered part of what lies behind it under a later
// position: moved to the tick, the rest would look like repeats. It stays.
macro_rules! behind {
    () => {
        "c.tick < t.tick AND coalesce(c.target, 0) <= t.tick"
    };
}

const COUNT: &str = concat!(
    "\
SELECT s.name, coalesce(sum(n.events), 0)::bigint, coalesce(bool_or(n.events > 10000), false), coalesce(max(t.seq_after - n.above), 0)::bigint
FROM outbox.subscriptions s
JOIN outbox.ticks t ON t.tick = $1
LEFT JOIN LATERAL (
    SELECT (SELECT count(*) FROM (
                SELECT FROM outbox.events e
                WHERE e.seq > b.above AND e.seq <= t.seq_after AND e.shard = c.shard
                  AND pg_visible_in_snapshot(e.xid, t.snapshot) AND NOT pg_visible_in_snapshot(e.xid, k.snapshot)
                  AND NOT coalesce(e.seq <= c.seq AND pg_visible_in_snapshot(e.xid, n.snapshot), false)
                  AND NOT EXISTS (SELECT FROM outbox.parked p WHERE p.subscription = s.name AND p.seq = e.seq)
                  AND coalesce(e.topic = ANY ((
                      SELECT f.topics FROM outbox.topic_filters f LEFT JOIN outbox.ticks ft ON ft.tick = f.from_tick
                      WHERE f.subscription = s.name
                        AND (f.from_tick = 0 OR NOT coalesce(pg_visible_in_snapshot(e.xid, ft.snapshot), false))
                      ORDER BY f.from_tick DESC LIMIT 1)::text[]), true)
                LIMIT 10001) found) AS events,
           b.above
    FROM outbox.cursors c
    JOIN outbox.ticks k ON k.tick = c.tick
    LEFT JOIN outbox.ticks n
        ON n.tick = coalesce(c.target, (SELECT min(a.tick) FROM outbox.ticks a WHERE a.tick > c.tick))
    CROSS JOIN LATERAL (
        SELECT greatest((SELECT x.seq_before FROM outbox.ticks x
                         WHERE x.xid <= pg_snapshot_xmin(k.snapshot) ORDER BY x.xid DESC LIMIT 1),
                        (SELECT m.seq_floor FROM outbox.meta m), 0) AS above) b
    WHERE c.subscription = s.name AND ",
    behind!(),
    "
) n ON true
WHERE s.name = $2
GROUP BY s.name"
);

async fn count(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    tick: i64,
) -> Result<Events, AdminError> {
    let count = statement::<(Text, BigInt, Bool, BigInt)>(COUNT)
        .bind::<BigInt, _>(tick)
        .bind::<Text, _>(subscription.to_owned());
    let rows: Vec<(String, i64, bool, i64)> = load(conn, count).await?;
    let Some((_, events, is_more, distance)) = rows.into_iter().next() else {
        return Err(AdminError::NoSubscription(subscription.to_owned()));
    };
    let number = |events: i64| u64::try_from(events).unwrap_or(0);
    Ok(if is_more { Events::AtMost(number(distance)) } else { Events::Exactly(number(events)) })
}

const TICK: &str = "SELECT ticked_at FROM outbox.ticks WHERE tick = $1";

// The owners lose their shards: what they still have on its way is fenced off by the epoch.
const SKIP: &str = concat!(
    "\
WITH moved AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c JOIN outbox.ticks t ON t.tick = $1
    WHERE c.subscription = $2 AND ",
    behind!(),
    " ORDER BY c.shard FOR UPDATE OF c
)
UPDATE outbox.cursors c
SET tick = $3, target = NULL, seq = 0, owner = NULL, leased_until = '-infinity', epoch = c.epoch + 1,
    updated_at = clock_timestamp()
FROM moved WHERE c.subscription = $4 AND c.shard = moved.shard"
);

/// Skips as planned, and returns how many events are not delivered: those that relays have delivered
/// since the plan was made do not count any more. What is parked stays parked. Running relays go on
/// from there within a second; repeating it is harmless.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// use outbox_diesel::admin;
/// use outbox_diesel::subscription::Start;
///
/// let plan = admin::plan_skip(conn, "cache", Start::Now).await?;
/// println!("{:?} events would not be delivered", plan.events);
/// admin::skip(conn, &plan).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`PlanOutdated`](AdminError::PlanOutdated) if more events would be lost than the plan says (the
/// subscription was rewound since) or the plan is days old,
/// [`NoSubscription`](AdminError::NoSubscription), or what the database says.
pub async fn skip(conn: &mut AsyncPgConnection, plan: &SkipPlan) -> Result<Events, AdminError> {
    begin(conn).await?;
    let skipped = skip_in(conn, plan).await;
    let events = end(conn, skipped).await?;
    warn!(subscription = plan.subscription, ?events, to = %plan.to, "events were skipped");
    Ok(events)
}

async fn skip_in(conn: &mut AsyncPgConnection, plan: &SkipPlan) -> Result<Events, AdminError> {
    operation::lock_ticks(conn).await?;
    notice(conn, &plan.subscription).await?;
    let tick = statement::<Timestamptz>(TICK).bind::<BigInt, _>(plan.tick);
    let ticks: Vec<DateTime<Utc>> = load(conn, tick).await?;
    if ticks.first() != Some(&plan.to) {
        return Err(AdminError::PlanOutdated("its tick is not kept any more"));
    }
    let events = count(conn, &plan.subscription, plan.tick).await?;
    if events.limit() > plan.events.limit() {
        return Err(AdminError::PlanOutdated("more events would be skipped now"));
    }
    let skip = statement::<()>(SKIP)
        .bind::<BigInt, _>(plan.tick)
        .bind::<Text, _>(plan.subscription.clone())
        .bind::<BigInt, _>(plan.tick)
        .bind::<Text, _>(plan.subscription.clone());
    execute(conn, skip).await?;
    Ok(events)
}
