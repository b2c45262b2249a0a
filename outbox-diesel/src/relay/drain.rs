//! Drain: delivers all there is, once and at once, for tests. No pause, no heartbeat, no other relay.

use std::sync::Arc;
use std::time::Instant;

use diesel::sql_types::{BigInt, Text};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Heartbeat;
use super::doubt::{Evidence, Search};
use super::health::{Health, HealthCell};
use super::reader::{Reader, Step};
use super::startup::{self, Refusal};
use super::worker::{Clocks, Diffs, Interrupted, Outage, Worker};
use crate::lease::{self, Identity, Leases};
use crate::message::SHARDS;
use crate::options::{LONGEST_LEASE, RelayOptions};
use crate::publish::Publisher;
use crate::session::{Mode, Pool, Session, SessionError};
use crate::statement::statement;
use crate::tick;

/// Where a relay of a test dies. What its successor does then is what your consumers must bear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashPoint {
    /// It owns all shards and has published nothing. The successor takes over; nothing is repeated.
    AfterClaim,
    /// It has published its first batch and not noted that anywhere. The successor publishes the
    /// batch again.
    AfterPublish,
    /// Another relay has taken its shards while it stood still; then it publishes its first batch
    /// all the same and cannot note it. The successor publishes the batch again.
    LeaseLost,
}

impl CrashPoint {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::AfterClaim, Self::AfterPublish, Self::LeaseLost];
}

/// Why not everything could be delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DrainError {
    /// The database failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A relay would refuse this database too.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The publisher said that the broker is away, or took too long. What it had not published is
    /// still there.
    #[error("the broker is unavailable: {0}")]
    Unavailable(String),
    /// The publisher gave no verdict on an event that was due for a retry.
    #[error("the publisher neither delivers nor rejects an event that is tried again")]
    Stuck,
    /// There is nothing to publish, so that nobody can die at it: emit and commit something first.
    #[error("the relay was to die at a publish, and there was no event")]
    NothingToPublish,
}

impl From<Interrupted> for DrainError {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::Session(error) => Self::Session(error),
            Interrupted::Refused(refusal) => Self::Refused(refusal),
        }
    }
}

// Only a test may do this: whoever owns the shards counts as dead, and as one who died of nothing.
const EXPIRE: &str = "\
UPDATE outbox.cursors SET owner = NULL, leased_until = '-infinity', crashes = 0
WHERE subscription = $1 AND (owner IS NOT NULL OR crashes > 0)";

const MAKE_DUE: &str = "\
UPDATE outbox.parked SET next_attempt_at = '-infinity'
WHERE subscription = $1 AND next_attempt_at IS NOT NULL";

// Tells whether a pass of retries has changed anything.
const PARKED: &str = "\
SELECT count(*) FILTER (WHERE NOT p.dead AND p.next_attempt_at IS NOT NULL), count(*), coalesce(sum(p.attempts), 0)::bigint
FROM outbox.parked p WHERE p.subscription = $1";

/// A relay's worker between two runs.
pub(crate) struct Drain<P>(Worker<P>);

impl<P: Publisher> Drain<P> {
    pub(crate) fn new(
        pool: Pool,
        options: RelayOptions,
        subscription: String,
        publisher: P,
    ) -> Self {
        let who = Identity { relay: Uuid::nil(), subscription, host: "a test".to_owned() };
        let heartbeat = Heartbeat { tasks: JoinSet::new(), retire: CancellationToken::new() };
        let (leases, health) = (Arc::new(Leases::default()), HealthCell::new(&who.subscription));
        Self(Worker::new(pool, options, who, leases, health, publisher, heartbeat))
    }

    /// A new relay's whole life, or its life up to its death.
    pub(crate) async fn run(&mut self, crash: Option<CrashPoint>) -> Result<(), DrainError> {
        let worker = &mut self.0;
        let mut session =
            Session::open(worker.pool.clone(), worker.options.database_timeout).await?;
        let session = &mut session;
        begin(worker, session).await?;
        if crash == Some(CrashPoint::AfterClaim) {
            return Ok(());
        }
        loop {
            // Everything that has committed by now is in this tick or an earlier one.
            tick::take(session).await?;
            if deliver_diffs(worker, session, crash).await? {
                return Ok(());
            }
            worker.settle(session, Mode::Durable).await?;
            if !retry(worker, session).await? {
                break;
            }
        }
        if crash.is_some() {
            return Err(DrainError::NothingToPublish);
        }
        let shards = worker.shards.keys().map(|shard| i16::from(*shard)).collect();
        lease::release(session, &worker.who, shards).await?;
        Ok(())
    }
}

/// Forgets all, and takes every shard from whoever has it.
async fn begin<P: Publisher>(
    worker: &mut Worker<P>,
    session: &mut Session,
) -> Result<(), DrainError> {
    let facts = startup::check(session, &worker.who.subscription).await?;
    worker.stamp.source = facts.source;
    worker.stamp.generation = facts.generation;
    worker.reader = Reader::new(worker.who.subscription.clone());
    worker.shards.clear();
    worker.diffs = Diffs::default();
    worker.clocks = Clocks::default();
    worker.outage = Outage::default();
    worker.search = Search::default();
    worker.retry_search = Search::default();
    worker.evidence = Evidence::default();
    worker.health.set(Health::Running);
    worker.who.relay = Uuid::now_v7();
    let who = worker.who.clone();
    let asked = Instant::now();
    let claimed = usurp(session, &who).await?;
    worker.leases.extend(claimed, asked, LONGEST_LEASE / 2);
    worker.adopt_own(session).await?;
    worker.reader.rewind(&worker.shards);
    Ok(())
}

async fn usurp(session: &mut Session, who: &Identity) -> Result<Vec<i16>, SessionError> {
    let expire = statement::<()>(EXPIRE).bind::<Text, _>(who.subscription.clone());
    session.execute(Mode::Durable, expire).await?;
    lease::claim(session, who, LONGEST_LEASE / 2, SHARDS).await
}

/// Delivers all diffs; true if it died at the first batch.
async fn deliver_diffs<P: Publisher>(
    worker: &mut Worker<P>,
    session: &mut Session,
    crash: Option<CrashPoint>,
) -> Result<bool, DrainError> {
    let mut next = None;
    loop {
        let step = match next.take() {
            Some(step) => step,
            None => worker.reader.next(session, &worker.shards, worker.limits()).await?,
        };
        match step {
            Step::Deliver(reading) => {
                let dies = crash.filter(|_| !reading.chunk.is_empty());
                if dies == Some(CrashPoint::LeaseLost) {
                    let successor = Identity { relay: Uuid::now_v7(), ..worker.who.clone() };
                    usurp(session, &successor).await?;
                }
                next = worker.advance(session, reading).await?;
                if worker.outage.until.is_some() {
                    return Err(unavailable(worker));
                }
                if dies == Some(CrashPoint::LeaseLost) {
                    worker.settle(session, Mode::Durable).await?;
                }
                if dies.is_some() {
                    return Ok(true);
                }
            }
            Step::Aim { shards, target } => worker.aim(session, &shards, target).await?,
            Step::CaughtUp { waiting: true } => tick::take(session).await?,
            Step::CaughtUp { waiting: false } => return Ok(false),
            Step::Idle => {
                return Err(SessionError::Query(diesel::result::Error::NotFound).into());
            }
        }
    }
}

/// Tries again what is parked, without its pause; false if nothing is left that could be tried.
async fn retry<P: Publisher>(
    worker: &mut Worker<P>,
    session: &mut Session,
) -> Result<bool, DrainError> {
    let before = parked(worker, session).await?;
    if before.0 == 0 {
        return Ok(false);
    }
    let due = statement::<()>(MAKE_DUE).bind::<Text, _>(worker.who.subscription.clone());
    session.execute(Mode::Durable, due).await?;
    worker.retry_due(session).await?;
    if worker.outage.until.is_some() {
        return Err(unavailable(worker));
    }
    if parked(worker, session).await? == before {
        return Err(DrainError::Stuck);
    }
    Ok(true)
}

/// How many are waiting for a retry, how many are parked, and the attempts made of all.
async fn parked<P: Publisher>(
    worker: &Worker<P>,
    session: &mut Session,
) -> Result<(i64, i64, i64), SessionError> {
    let asked = statement::<(BigInt, BigInt, BigInt)>(PARKED)
        .bind::<Text, _>(worker.who.subscription.clone());
    let rows: Vec<(i64, i64, i64)> = session.load(Mode::Read, asked).await?;
    Ok(rows.first().copied().unwrap_or_default())
}

fn unavailable<P>(worker: &Worker<P>) -> DrainError {
    match worker.health.get() {
        Health::BrokerUnavailable { reason } => DrainError::Unavailable(reason),
        _ => DrainError::Unavailable(String::new()),
    }
}
