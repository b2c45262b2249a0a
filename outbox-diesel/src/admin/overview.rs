//! How far every subscription is, and who works on what.

mod shards;

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{
    Array, BigInt, Bool, Double, Nullable, Text, Timestamptz, Uuid as SqlUuid,
};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

pub use self::shards::ShardOverview;
use super::skip::Events;
use crate::backlog::{self, LIMIT, Reading};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

/// How far every subscription is, and who works on what, at one moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Overview {
    /// The log.
    pub log: Log,
    /// The subscriptions, by name.
    pub subscriptions: Vec<SubscriptionOverview>,
    /// The relays that were seen within the last day, by subscription and start.
    pub relays: Vec<RelayOverview>,
}

/// The log.
#[derive(Debug, Clone, PartialEq, Queryable)]
#[non_exhaustive]
pub struct Log {
    /// The last value drawn from its sequence; None: this role may not see it.
    pub last_seq: Option<i64>,
    /// When the newest tick was taken.
    pub newest_tick_at: DateTime<Utc>,
    /// Events emitted per second, over about the last minute: drawn from the sequence, whether or
    /// not their transactions committed.
    pub emitted_per_second: f64,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// How far a subscription is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SubscriptionOverview {
    /// Its name.
    pub name: String,
    /// Raised whenever positions may repeat.
    pub generation: i64,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// The only topics it gets now; None: all.
    pub topics: Option<Vec<String>>,
    /// Committed events that it has not delivered: exact up to 10,000.
    pub pending: Events,
    /// When the oldest of them was emitted.
    pub oldest_pending_at: Option<DateTime<Utc>>,
    /// Events delivered per second, over about the last minute: what its live relays say.
    pub delivered_per_second: f64,
    /// Events that were rejected and are tried again.
    pub retrying: Events,
    /// Events that wait behind one that was rejected.
    pub held: Events,
    /// Events that ran out of attempts.
    pub dead: Events,
    /// Its 16 shards.
    pub shards: Vec<ShardOverview>,
}

/// A relay.
#[derive(Debug, Clone, PartialEq, Queryable)]
#[non_exhaustive]
pub struct RelayOverview {
    /// Its id, new at every start.
    pub id: Uuid,
    /// Which subscription it works for.
    pub subscription: String,
    /// The host it runs on, as it says.
    pub host: String,
    /// Its version of this library.
    pub version: String,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// Its last heartbeat.
    pub seen_at: DateTime<Utc>,
    /// Whether it beats, or holds a lease. One that ended without a goodbye counts for some seconds.
    pub is_live: bool,
    /// What it says of itself: `starting`, `running`, `broker_unavailable`, `interrupted`,
    /// `stopping`.
    pub state: String,
    /// Since when, to the heartbeat.
    pub state_since: DateTime<Utc>,
    /// Why it does not deliver: what the publisher or the database says.
    pub reason: Option<String>,
    /// Why it polls although it was told to sleep ([`Wake::Listen`](crate::Wake::Listen)). None:
    /// nothing keeps it awake.
    pub sleepless: Option<String>,
    /// Events that it delivers per second, over about the last minute, to the heartbeat. None: not
    /// known yet.
    pub delivered_per_second: Option<f64>,
    /// The database role that it works as.
    pub role: String,
    /// How many shards it leases.
    pub shards: i64,
}

/// Tells how far every subscription is, and who works on what.
///
/// Costs the same however large the log is: of each place where cursors stand, at most 10,000
/// events are looked at.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// let overview = outbox_diesel::admin::overview(conn).await?;
/// for subscription in &overview.subscriptions {
///     println!("{}: {} pending, {} dead", subscription.name, subscription.pending, subscription.dead);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What the database says. Needs the rights of an operator.
pub async fn overview(conn: &mut AsyncPgConnection) -> Result<Overview, AdminError> {
    begin_look(conn).await?;
    let overview = look(conn).await;
    end(conn, overview).await
}

// From the last tick that is a minute old, or else from the first one after genesis.
const LOG: &str = "\
SELECT pg_sequence_last_value('outbox.event_seq'), newest.ticked_at,
       greatest(coalesce((newest.seq_after - base.seq_after)
                         / greatest(extract(epoch FROM clock_timestamp() - base.ticked_at), 1), 0), 0)::float8,
       clock_timestamp()
FROM (SELECT t.ticked_at, t.seq_after FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1) newest
LEFT JOIN LATERAL (
    (SELECT t.ticked_at, t.seq_after FROM outbox.ticks t
     WHERE t.tick > 0 AND t.tick <= ((extract(epoch FROM clock_timestamp()) - 60) * 1000000)::bigint
     ORDER BY t.tick DESC LIMIT 1)
    UNION ALL
    (SELECT t.ticked_at, t.seq_after FROM outbox.ticks t WHERE t.tick > 0 ORDER BY t.tick LIMIT 1)
    LIMIT 1) base ON true";

// Counted up to a limit, each by an index of its own.
const SUBSCRIPTIONS: &str = "\
SELECT s.name, s.generation, s.created_at,
       (SELECT f.topics FROM outbox.topic_filters f WHERE f.subscription = s.name ORDER BY f.from_tick DESC LIMIT 1),
       (SELECT count(*) FROM (SELECT FROM outbox.parked p WHERE p.subscription = s.name LIMIT 10001) found),
       (SELECT count(*) FROM (SELECT FROM outbox.parked p
                              WHERE p.subscription = s.name AND p.next_attempt_at IS NOT NULL LIMIT 10001) found),
       (SELECT count(*) FROM (SELECT FROM outbox.parked p WHERE p.subscription = s.name AND p.dead LIMIT 10001) found)
FROM outbox.subscriptions s ORDER BY s.name";

const RELAYS: &str = "\
SELECT r.id, r.subscription, r.host, r.version, r.started_at, r.seen_at,
       r.seen_at > clock_timestamp() - interval '10 s' OR l.shards > 0,
       r.state, r.state_since, r.reason, r.sleepless, r.delivered_per_second, r.role, l.shards
FROM outbox.relays r
CROSS JOIN LATERAL (
    SELECT count(*) AS shards FROM outbox.cursors c
    WHERE c.subscription = r.subscription AND c.owner = r.id AND c.leased_until > clock_timestamp()) l
WHERE r.seen_at > clock_timestamp() - interval '1 day'
ORDER BY r.subscription, r.started_at, r.id";

type LogColumns = (Nullable<BigInt>, Timestamptz, Double, Timestamptz);
type SubscriptionColumns =
    (Text, BigInt, Timestamptz, Nullable<Array<Text>>, BigInt, BigInt, BigInt);
type RelayColumns = (
    SqlUuid,
    Text,
    Text,
    Text,
    Timestamptz,
    Timestamptz,
    Bool,
    Text,
    Timestamptz,
    Nullable<Text>,
    Nullable<Text>,
    Nullable<Double>,
    Text,
    BigInt,
);

#[derive(Queryable)]
struct SubscriptionRow {
    name: String,
    generation: i64,
    created_at: DateTime<Utc>,
    topics: Option<Vec<String>>,
    parked: i64,
    retrying: i64,
    dead: i64,
}

async fn look(conn: &mut AsyncPgConnection) -> Result<Overview, AdminError> {
    let log = load(conn, statement::<LogColumns>(LOG)).await?;
    let log = log.into_iter().next().ok_or(diesel::result::Error::NotFound)?;
    let rows: Vec<SubscriptionRow> =
        load(conn, statement::<SubscriptionColumns>(SUBSCRIPTIONS)).await?;
    let mut readings: Vec<Reading> = load(conn, backlog::look(None)).await?;
    let relays: Vec<RelayOverview> = load(conn, statement::<RelayColumns>(RELAYS)).await?;
    let subscriptions = rows
        .into_iter()
        .map(|row| {
            let own = readings.extract_if(.., |reading| reading.subscription == row.name).collect();
            let live =
                relays.iter().filter(|relay| relay.is_live && relay.subscription == row.name);
            let rate = live.filter_map(|relay| relay.delivered_per_second).sum();
            describe(row, own, rate)
        })
        .collect();
    Ok(Overview { log, subscriptions, relays })
}

fn describe(row: SubscriptionRow, readings: Vec<Reading>, rate: f64) -> SubscriptionOverview {
    let pending = match backlog::pending(&readings) {
        (events, true) => Events::Exactly(events),
        (events, false) => Events::AtMost(events),
    };
    let held = if row.parked > LIMIT {
        Events::MoreThan(u64::try_from((row.parked - row.retrying - row.dead).max(0)).unwrap_or(0))
    } else {
        bounded(row.parked - row.retrying - row.dead)
    };
    SubscriptionOverview {
        name: row.name,
        generation: row.generation,
        created_at: row.created_at,
        topics: row.topics,
        pending,
        oldest_pending_at: readings.iter().filter_map(|reading| reading.oldest_at).min(),
        delivered_per_second: rate,
        retrying: bounded(row.retrying),
        held,
        dead: bounded(row.dead),
        shards: readings.into_iter().map(ShardOverview::from).collect(),
    }
}

fn bounded(counted: i64) -> Events {
    let number = u64::try_from(counted.clamp(0, LIMIT)).unwrap_or(0);
    if counted > LIMIT { Events::MoreThan(number) } else { Events::Exactly(number) }
}

const TOPICS: &str = "\
SELECT topic FROM (SELECT e.topic FROM outbox.events e ORDER BY e.seq DESC LIMIT 1000) newest
UNION SELECT unnest(f.topics) FROM outbox.topic_filters f
ORDER BY 1";

/// The topics of the newest 1,000 events, and those that subscriptions name.
///
/// # Errors
/// What the database says.
pub async fn recent_topics(conn: &mut AsyncPgConnection) -> Result<Vec<String>, AdminError> {
    begin_look(conn).await?;
    let topics = load(conn, statement::<Text>(TOPICS)).await.map_err(AdminError::from);
    end(conn, topics).await
}
