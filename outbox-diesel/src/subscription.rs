//! Subscription: a named group of relays with its own cursors and failures.

mod remove;
mod rewind;
mod topics;

use chrono::{DateTime, Utc};
use diesel::result::Error;
use diesel::sql_types::{Array, BigInt, Nullable, Text};
use diesel_async::{
    AnsiTransactionManager, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection,
    TransactionManager,
};

pub(crate) use self::remove::live_relays;
pub use self::remove::remove;
pub(crate) use self::rewind::find_moment;
pub use self::rewind::rewind;
pub use self::topics::set_topics;
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

/// Where a new subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With the oldest event that is still kept.
    Earliest,
    /// With events that commit after this time, to the tick before it: up to ten minutes earlier.
    Since(DateTime<Utc>),
    /// With events that commit from now on.
    Now,
}

impl Start {
    /// The last tick at or before this time is where it is, in PostgreSQL's words.
    fn time(self) -> String {
        match self {
            Self::Earliest => "-infinity".to_owned(),
            Self::Since(time) => time.to_rfc3339(),
            Self::Now => "infinity".to_owned(),
        }
    }
}

/// Under the tick lock: the deletion of old ticks must not miss the new cursors.
const LOCK: &str = "SELECT pg_advisory_xact_lock(outbox.tick_lock_key())";

// A name that existed before starts with a higher generation than it had: a broker that remembers
// its positions must not take new ones for repeats. The clock is above every generation counted up.
const CREATE: &str = "\
WITH start AS (
    SELECT max(tick) AS tick FROM outbox.ticks WHERE tick = 0 OR ticked_at <= $1::text::timestamptz
), created AS (
    INSERT INTO outbox.subscriptions (name, generation)
    VALUES ($2::text, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
    ON CONFLICT DO NOTHING RETURNING name
), filtered AS (
    INSERT INTO outbox.topic_filters (subscription, from_tick, topics)
    SELECT name, 0, $3::text[] FROM created
)
INSERT INTO outbox.cursors (subscription, shard, tick)
SELECT name, shard, tick FROM created, start, generate_series(0, 15) shard";

/// Creates a subscription and says whether it is new; an existing one is left as it is.
///
/// `topics` are the only ones it gets; empty means all of them.
///
/// # Errors
/// What the database says, and [`AlreadyInTransaction`](diesel::result::Error::AlreadyInTransaction)
/// inside of a transaction: this one commits its own.
///
/// # Cancel safety
/// Drop the connection if the future was dropped: its transaction may still be open.
pub async fn create(
    conn: &mut AsyncPgConnection,
    name: &str,
    start: Start,
    topics: &[&str],
) -> diesel::QueryResult<bool> {
    let topics = (!topics.is_empty()).then_some(topics);
    // A transaction of the caller's would be committed by ours.
    if AnsiTransactionManager::transaction_manager_status_mut(conn).transaction_depth()?.is_some() {
        return Err(Error::AlreadyInTransaction);
    }
    let created = async {
        if start == Start::Now {
            // Without a tick from now, "now" would be the newest one there is. Another relay may
            // just be taking one: then that is "now", and the lock below waits for it.
            conn.batch_execute(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT outbox.take_tick(); COMMIT",
            )
            .await?;
        }
        conn.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await?;
        conn.batch_execute(LOCK).await?;
        statement::<()>(CREATE)
            .bind::<Text, _>(start.time())
            .bind::<Text, _>(name)
            .bind::<Nullable<Array<Text>>, _>(topics)
            .execute(conn)
            .await
    }
    .await;
    match created {
        Ok(cursors) => {
            conn.batch_execute("COMMIT").await?;
            Ok(cursors > 0)
        }
        Err(error) => {
            // The first error counts; a lost connection is rolled back anyway.
            conn.batch_execute("ROLLBACK").await.ok();
            Err(error)
        }
    }
}

/// From which tick on a subscription gets which topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicFilter {
    pub(crate) from_tick: i64,
    /// None: all.
    pub(crate) topics: Option<Vec<String>>,
}

const FILTERS: &str = "\
SELECT from_tick, topics FROM outbox.topic_filters WHERE subscription = $1 ORDER BY from_tick";

/// The filters of a subscription, ascending.
pub(crate) async fn filters(
    session: &mut Session,
    subscription: &str,
) -> Result<Vec<TopicFilter>, SessionError> {
    let rows: Vec<(i64, Option<Vec<String>>)> = session
        .load(
            Mode::Read,
            statement::<(BigInt, Nullable<Array<Text>>)>(FILTERS)
                .bind::<Text, _>(subscription.to_owned()),
        )
        .await?;
    Ok(rows.into_iter().map(|(from_tick, topics)| TopicFilter { from_tick, topics }).collect())
}

const STATE: &str = "\
SELECT s.generation, coalesce(r.revision, 0) FROM outbox.subscriptions s
LEFT JOIN outbox.revisions r ON r.subscription = s.name WHERE s.name = $1";

/// What relays look at again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, diesel::Queryable)]
pub(crate) struct State {
    pub(crate) generation: i64,
    /// Raised by operators.
    pub(crate) revision: i64,
}

/// The state of a subscription; None if there is no such subscription.
pub(crate) async fn state(
    session: &mut Session,
    subscription: &str,
) -> Result<Option<State>, SessionError> {
    let state = statement::<(BigInt, BigInt)>(STATE).bind::<Text, _>(subscription.to_owned());
    Ok(session.load(Mode::Read, state).await?.into_iter().next())
}

const RAISE_GENERATION: &str = "\
UPDATE outbox.subscriptions SET generation = greatest(generation, $1) + 1 WHERE name = $2
RETURNING generation";

/// Raises the generation above this one and returns it.
pub(crate) async fn raise_generation(
    session: &mut Session,
    subscription: &str,
    above: i64,
) -> Result<i64, SessionError> {
    let raised: Vec<i64> = session
        .load(
            Mode::Durable,
            statement::<BigInt>(RAISE_GENERATION)
                .bind::<BigInt, _>(above)
                .bind::<Text, _>(subscription.to_owned()),
        )
        .await?;
    Ok(raised.into_iter().next().ok_or(diesel::result::Error::NotFound)?)
}
