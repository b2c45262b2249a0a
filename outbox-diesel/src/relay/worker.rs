//! The relay's loop: read, publish, settle, and what keeps its shards its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::Heartbeat;
use super::backoff::{Backoff, pause_for};
use super::doubt::{Evidence, Search};
use super::health::{Health, HealthCell};
use super::reader::{Reader, Step};
use super::replaying::Replaying;
use super::shard::Shard;
use super::sleeping::Sleeping;
use super::startup::{self, Refusal};
use super::ticking;
use super::upkeep::{UPKEEP, UPKEEP_ASLEEP, Upkeep};
use crate::lease::{self, Identity, Leases};
use crate::message::{Chunk, SHARDS};
use crate::options::RelayOptions;
use crate::publish::{Publisher, Repeat, Stamp};
use crate::read::Limits;
use crate::session::{Mode, Pool, Session, SessionError};

/// How often the shares are looked at. A take-over takes the lease and up to this.
const MEMBERSHIP: Duration = Duration::from_millis(500);
/// How often due retries are looked for, while something is parked.
const RETRY_PACE: Duration = Duration::from_millis(100);
/// How often what is parked is compared with the memory of it, even if no operator said so.
const RECHECK: Duration = Duration::from_secs(30);

/// Why the loop starts over with a new connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Interrupted {
    #[error("the relay cannot work with the database")]
    Session(#[from] SessionError),
    #[error("the relay may not run")]
    Refused(#[from] Refusal),
}

/// All that the loop keeps.
pub(super) struct Worker<P> {
    pub(super) pool: Pool,
    pub(super) options: RelayOptions,
    pub(super) who: Identity,
    pub(super) leases: Arc<Leases>,
    pub(super) health: HealthCell,
    pub(super) publisher: P,
    pub(super) stamp: Stamp,
    pub(super) shards: BTreeMap<u8, Shard>,
    pub(super) reader: Reader,
    pub(super) outage: Outage,
    pub(super) retry_chunk: Chunk,
    pub(super) clocks: Clocks,
    pub(super) upkeep: Upkeep,
    pub(super) diffs: Diffs,
    heartbeat: Heartbeat,
    /// It has its shards, or none are left for it.
    pub(super) is_ready: bool,
    pub(super) search: Search,
    pub(super) retry_search: Search,
    pub(super) evidence: Evidence,
    pub(super) replaying: Replaying,
    pub(super) sleeping: Sleeping,
    /// Raised by operators: the one last heeded.
    pub(super) revision: i64,
}

/// The broker is away until then.
#[derive(Debug, Default)]
pub(super) struct Outage {
    pub(super) backoff: Backoff,
    pub(super) until: Option<Instant>,
    /// What was sent last may still arrive.
    pub(super) is_unknown: bool,
}

/// When each recurring duty was last done.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    pub(super) membership: Option<Instant>,
    settle: Option<Instant>,
    pub(super) tick: Option<Instant>,
    look: Option<Instant>,
    retry: Option<Instant>,
    replay: Option<Instant>,
    upkeep: Option<Instant>,
    recheck: Option<Instant>,
    /// Looks in a row that brought nothing.
    pub(super) idle: u32,
}

/// Diffs delivered, and those of them that are settled such that a crash of the server does not
/// forget it.
#[derive(Debug, Default)]
pub(super) struct Diffs {
    pub(super) done: u64,
    pub(super) durable: u64,
}

fn is_due(last: &mut Option<Instant>, every: Duration) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|last| now >= last + every);
    if due {
        *last = Some(now);
    }
    due
}

impl<P: Publisher> Worker<P> {
    pub(super) fn new(
        pool: Pool,
        options: RelayOptions,
        who: Identity,
        leases: Arc<Leases>,
        health: HealthCell,
        publisher: P,
        heartbeat: Heartbeat,
    ) -> Self {
        let stamp = Stamp {
            source: uuid::Uuid::nil(),
            subscription: who.subscription.clone(),
            generation: 0,
            epochs: [0; SHARDS],
            repeat: Repeat::EventId,
        };
        let reader = Reader::new(who.subscription.clone());
        let sleeping = Sleeping::new(pool.clone(), &options, health.clone());
        Self {
            pool,
            options,
            who,
            leases,
            health,
            publisher,
            stamp,
            shards: BTreeMap::new(),
            reader,
            outage: Outage::default(),
            retry_chunk: Chunk::default(),
            clocks: Clocks::default(),
            upkeep: Upkeep::default(),
            diffs: Diffs::default(),
            heartbeat,
            is_ready: false,
            search: Search::default(),
            retry_search: Search::default(),
            evidence: Evidence::default(),
            replaying: Replaying::default(),
            sleeping,
            revision: 0,
        }
    }

    /// Works until cancelled, through lost connections and refusals.
    pub(super) async fn run(&mut self, cancelled: &CancellationToken) {
        let mut backoff = Backoff::default();
        while !cancelled.is_cancelled() {
            let started = Instant::now();
            let Err(interrupted) = self.work(cancelled).await else { return };
            // What went well for longer than the longest pause is no part of the same trouble.
            if started.elapsed() > Backoff::CAP {
                backoff.reset();
            }
            let pause = backoff.next();
            if backoff.is_news() {
                let cause = chain(&interrupted);
                warn!(subscription = %self.who.subscription, ?pause, cause, "the relay starts over");
            }
            self.health.set(Health::Interrupted { cause: chain(&interrupted) });
            tokio::select! {
                () = cancelled.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Works with one connection until cancelled; shards are given back then.
    async fn work(&mut self, cancelled: &CancellationToken) -> Result<(), Interrupted> {
        let mut session = Session::open(self.pool.clone(), self.options.database_timeout).await?;
        let session = &mut session;
        let facts = startup::check(session, &self.who.subscription).await?;
        self.sleeping.begin(session).await?;
        self.stamp.source = facts.source;
        self.stamp.generation = facts.generation;
        // Nothing in memory counts after a reconnect, and outcomes are unknown.
        self.reader = Reader::new(self.who.subscription.clone());
        self.shards.clear();
        self.diffs = Diffs::default();
        self.clocks = Clocks::default();
        self.evidence.forget();
        // The heartbeat registers the relay too, but its first one may come later than this.
        let asked = Instant::now();
        let report = Health::Running.report();
        let own = lease::renew(session, &self.who, report, self.options.lease).await?;
        self.leases.extend(own, asked, self.options.lease);
        self.adopt_own(session).await?;
        self.raise_epochs(session).await?;
        self.reader.rewind(&self.shards);
        self.is_ready = false;
        self.sleeping.announce(session).await?;

        let mut next = None;
        while !cancelled.is_cancelled() {
            if self.resume(session).await? {
                self.drop_ahead(&mut next);
            }
            if self.do_duties(session).await? {
                self.drop_ahead(&mut next);
            }
            if let Some(pause) = self.outage_left() {
                self.drop_ahead(&mut next);
                self.rouse(session).await?;
                pause_for(pause.min(Duration::from_millis(100)), cancelled).await;
                continue;
            }
            let asked = self.health.asked();
            let (step, looked) = match next.take() {
                Some(step) => (step, false),
                None => (self.reader.next(session, &self.shards, self.limits()).await?, true),
            };
            if looked
                && self.is_ready
                && matches!(step, Step::CaughtUp { waiting: false } | Step::Idle)
            {
                self.health.progressed();
                self.health.drained(asked);
            }
            match step {
                Step::Deliver(reading) => {
                    next = self.advance(session, reading).await?;
                    self.rouse(session).await?;
                }
                Step::Aim { shards, target } => self.aim(session, &shards, target).await?,
                Step::CaughtUp { waiting } => self.catch_up(session, waiting, cancelled).await?,
                Step::Idle => self.stand_by(session, cancelled).await?,
            }
        }
        self.health.set(Health::Stopping);
        self.rouse(session).await?;
        self.settle(session, Mode::Durable).await?;
        self.heartbeat.end().await;
        let shards = self.shards.keys().map(|shard| i16::from(*shard)).collect();
        lease::release(session, &self.who, shards).await?;
        lease::leave(session, &self.who).await?;
        self.sleeping.announce(session).await?;
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { events: self.options.batch_events, bytes: self.options.batch_bytes }
    }

    fn outage_left(&self) -> Option<Duration> {
        self.outage.until.and_then(|until| until.checked_duration_since(Instant::now()))
    }

    /// What was read ahead is not valid any more.
    pub(super) fn drop_ahead(&mut self, next: &mut Option<Step>) {
        if let Some(Step::Deliver(reading)) = next.take() {
            self.reader.recycle(reading.chunk);
        }
        self.reader.rewind(&self.shards);
    }

    /// Does what is due; true if shards came or went.
    async fn do_duties(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let mut changed = false;
        if self.is_wary() || is_due(&mut self.clocks.settle, self.options.settle_interval) {
            changed |= self.settle(session, Mode::Relaxed).await?;
        }
        if is_due(&mut self.clocks.membership, MEMBERSHIP) {
            changed |= self.balance(session).await?;
            let unasked = is_due(&mut self.clocks.recheck, RECHECK);
            self.heed_operators(session, unasked).await?;
        }
        // Asleep: emits wake us, and nobody fills partitions.
        let is_dozing = self.sleeping.is_dozing();
        if !is_dozing && is_due(&mut self.clocks.look, ticking::PACE) {
            self.keep_ticking(session).await?;
        }
        if self.shards.values().any(|shard| !shard.parked.is_empty())
            && self.outage_left().is_none()
            && is_due(&mut self.clocks.retry, RETRY_PACE)
        {
            changed |= self.retry_due(session).await?;
        }
        if self.replaying.is_likely
            && self.outage_left().is_none()
            && is_due(&mut self.clocks.replay, RETRY_PACE)
        {
            let before = self.shards.len();
            self.replay(session).await?;
            changed |= self.shards.len() != before;
        }
        if is_due(&mut self.clocks.upkeep, if is_dozing { UPKEEP * UPKEEP_ASLEEP } else { UPKEEP })
        {
            self.keep_up(session).await?;
            #[cfg(feature = "metrics")]
            self.sample(session).await?;
        }
        Ok(changed)
    }

    /// The broker can't be used: back off, and treat the outcome of what was sent as unknown.
    pub(super) fn go_out(&mut self, reason: &str) {
        let pause = self.outage.backoff.next();
        self.outage.until = Some(Instant::now() + pause);
        if self.outage.backoff.is_news() {
            error!(subscription = %self.who.subscription, reason, ?pause, "the broker is unavailable");
        }
        self.health.set(Health::BrokerUnavailable { reason: reason.to_owned() });
        self.outage.is_unknown = true;
    }

    /// Once the pause is over and before anything is sent again: shuts out calls under the old
    /// epochs, and notices what is not ours any more. True if a shard was lost.
    async fn resume(&mut self, session: &mut Session) -> Result<bool, SessionError> {
        if self.outage_left().is_some() || !std::mem::take(&mut self.outage.is_unknown) {
            return Ok(false);
        }
        let owned = self.shards.len();
        self.raise_epochs(session).await?;
        Ok(self.shards.len() != owned)
    }

    /// The broker answered.
    pub(super) fn come_back(&mut self) {
        if self.outage.until.take().is_some() {
            self.outage.backoff.reset();
            info!(subscription = %self.who.subscription, "the broker is available again");
            self.health.set(Health::Running);
        }
    }
}

/// An error with its causes, on one line, and what the server advises.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    for cause in std::iter::successors(Some(error), |cause| cause.source()) {
        let separator = if text.is_empty() { "" } else { ": " };
        text.push_str(separator);
        text.push_str(&cause.to_string());
        if let Some(diesel::result::Error::DatabaseError(_, server)) = cause.downcast_ref()
            && let Some(hint) = server.hint()
        {
            text.push_str("; ");
            text.push_str(hint);
        }
    }
    text
}
