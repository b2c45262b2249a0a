//! The relay's loop: read, publish, settle, and what keeps its shards its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::backoff::Backoff;
use super::health::{Health, HealthCell};
use super::reader::{Reader, Reading, Step};
use super::shard::{Shard, UNSETTLED_DIFFS};
use super::startup::{self, Refusal};
use crate::lease::{self, Identity, Leases, Raise};
use crate::message::{Chunk, SHARDS};
use crate::options::RelayOptions;
use crate::park;
use crate::partition;
use crate::publish::{Publisher, Repeat, Stamp};
use crate::read::Limits;
use crate::retry;
use crate::session::{Mode, Pool, Session, SessionError};
use crate::settle::{self, Move, Place};
use crate::tick;

/// At most 200 ticks a second: each costs a transaction id and a flush.
const TICK_PAUSE: Duration = Duration::from_millis(5);
/// While there is a backlog, or the broker is away, the timeline goes on at this pace.
const TICK_PACE: Duration = Duration::from_millis(500);
/// How often the shares are looked at. A take-over takes the lease and up to this.
const MEMBERSHIP: Duration = Duration::from_millis(500);
/// How often due retries are looked for, while something is parked.
const RETRY_PACE: Duration = Duration::from_millis(100);
/// How often partitions and old ticks are looked after.
const UPKEEP: Duration = Duration::from_secs(5);

/// Why the loop starts over with a new connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Interrupted {
    #[error("the relay lost its connection to the database")]
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
    clocks: Clocks,
    diffs: Diffs,
}

/// The broker is away until then.
#[derive(Debug, Default)]
pub(super) struct Outage {
    pub(super) backoff: Backoff,
    pub(super) until: Option<Instant>,
}

/// When each recurring duty was last done.
#[derive(Debug, Default)]
struct Clocks {
    membership: Option<Instant>,
    settle: Option<Instant>,
    tick: Option<Instant>,
    look: Option<Instant>,
    retry: Option<Instant>,
    upkeep: Option<Instant>,
    idle: u32,
}

/// Diffs delivered, and those of them that are settled such that a crash of the server does not
/// forget it.
#[derive(Debug, Default)]
struct Diffs {
    done: u64,
    durable: u64,
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
    ) -> Self {
        let stamp = Stamp {
            source: uuid::Uuid::nil(),
            subscription: who.subscription.clone(),
            generation: 0,
            epochs: [0; SHARDS],
            repeat: Repeat::EventId,
        };
        Self {
            pool,
            options,
            who,
            leases,
            health,
            publisher,
            stamp,
            shards: BTreeMap::new(),
            reader: Reader::default(),
            outage: Outage::default(),
            retry_chunk: Chunk::default(),
            clocks: Clocks::default(),
            diffs: Diffs::default(),
        }
    }

    /// Works until cancelled, through lost connections and refusals.
    pub(super) async fn run(&mut self, cancelled: &CancellationToken) {
        let mut backoff = Backoff::default();
        while !cancelled.is_cancelled() {
            let started = Instant::now();
            let Err(interrupted) = self.work(cancelled).await else { return };
            if started.elapsed() > Duration::from_secs(30) {
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
        self.stamp.source = facts.source;
        self.stamp.generation = facts.generation;
        self.reader.filters = facts.filters;
        // Nothing in memory counts after a reconnect, and outcomes are unknown.
        self.shards.clear();
        self.diffs = Diffs::default();
        self.clocks = Clocks::default();
        self.adopt_own(session).await?;
        self.raise_epochs(session).await?;
        self.health.set(Health::Running);

        let mut next = None;
        while !cancelled.is_cancelled() {
            if self.do_duties(session).await? {
                self.drop_ahead(&mut next);
            }
            if let Some(pause) = self.outage_left() {
                self.drop_ahead(&mut next);
                pause_for(pause.min(Duration::from_millis(100)), cancelled).await;
                continue;
            }
            let step = match next.take() {
                Some(step) => step,
                None => self.reader.next(session, &self.shards, self.limits()).await?,
            };
            match step {
                Step::Deliver(reading) => next = self.advance(session, reading).await?,
                Step::Aim { shards, target } => self.aim(session, &shards, target).await?,
                Step::CaughtUp { waiting } => self.catch_up(session, waiting, cancelled).await?,
                Step::Idle => pause_for(self.options.poll_idle, cancelled).await,
            }
        }
        self.health.set(Health::Stopping);
        self.settle(session, Mode::Durable).await?;
        let shards = self.shards.keys().map(|shard| i16::from(*shard)).collect();
        lease::release(session, &self.who, shards).await?;
        lease::leave(session, &self.who).await?;
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { events: self.options.batch_events, bytes: self.options.batch_bytes }
    }

    fn outage_left(&self) -> Option<Duration> {
        self.outage.until.and_then(|until| until.checked_duration_since(Instant::now()))
    }

    /// What was read ahead is not valid any more.
    fn drop_ahead(&mut self, next: &mut Option<Step>) {
        if let Some(Step::Deliver(reading)) = next.take() {
            self.reader.recycle(reading.chunk);
        }
        self.reader.rewind(&self.shards);
    }

    /// Does what is due; true if shards came or went.
    async fn do_duties(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let mut changed = false;
        if is_due(&mut self.clocks.settle, self.options.settle_interval) {
            changed |= self.settle(session, Mode::Relaxed).await?;
        }
        if is_due(&mut self.clocks.membership, MEMBERSHIP) {
            changed |= self.balance(session).await?;
        }
        if is_due(&mut self.clocks.look, TICK_PACE) {
            self.keep_ticking(session).await?;
        }
        if self.shards.values().any(|shard| !shard.blocked.is_empty())
            && self.outage_left().is_none()
            && is_due(&mut self.clocks.retry, RETRY_PACE)
        {
            changed |= self.retry_due(session).await?;
        }
        if is_due(&mut self.clocks.upkeep, UPKEEP) {
            self.keep_up(session).await;
        }
        Ok(changed)
    }

    /// Partitions and old ticks: what fails is tried again later, delivery goes on.
    async fn keep_up(&mut self, session: &mut Session) {
        match partition::keep_ahead(session).await {
            Ok(0) => {}
            Ok(made) => info!(made, "created partitions"),
            Err(error) => {
                warn!(cause = chain(&error), "partitions could not be created; will try again");
            }
        }
        if let Err(error) = partition::delete_ticks(session).await {
            debug!(cause = chain(&error), "old ticks could not be deleted; will try again");
        }
    }

    async fn keep_ticking(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let is_quiet = self.clocks.tick.is_none_or(|last| last.elapsed() >= TICK_PACE);
        if is_quiet && !self.shards.is_empty() && tick::poll(session, i64::MAX).await?.waiting {
            self.take_tick(session).await?;
        }
        Ok(())
    }

    async fn take_tick(&mut self, session: &mut Session) -> Result<(), SessionError> {
        tick::take(session).await?;
        self.clocks.tick = Some(Instant::now());
        Ok(())
    }

    /// Nothing to read: tick if that would show something, else wait a little.
    async fn catch_up(
        &mut self,
        session: &mut Session,
        waiting: bool,
        cancelled: &CancellationToken,
    ) -> Result<(), SessionError> {
        if !waiting {
            let pause = self.options.poll_awake.saturating_mul(1 << self.clocks.idle.min(16));
            self.clocks.idle += 1;
            pause_for(pause.min(self.options.poll_idle), cancelled).await;
            return Ok(());
        }
        self.clocks.idle = 0;
        if let Some(wait) = self.clocks.tick.and_then(|last| TICK_PAUSE.checked_sub(last.elapsed()))
        {
            pause_for(wait, cancelled).await;
        }
        self.take_tick(session).await
    }

    /// Takes the fair share of the shards, no more and no less; true if it changed.
    async fn balance(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let share = lease::fair_share(session, &self.who, self.options.lease).await?;
        let mut changed = self.adopt_own(session).await?;
        if self.shards.len() > share {
            self.settle(session, Mode::Durable).await?;
            let excess: Vec<u8> = self
                .shards
                .keys()
                .rev()
                .take(self.shards.len().saturating_sub(share))
                .copied()
                .collect();
            lease::release(session, &self.who, excess.iter().map(|s| i16::from(*s)).collect())
                .await?;
            for shard in excess {
                self.lose(shard);
            }
            changed = true;
        } else if self.shards.len() < share {
            let asked = Instant::now();
            let missing = share - self.shards.len();
            let claimed = lease::claim(session, &self.who, self.options.lease, missing).await?;
            self.leases.extend(claimed.iter().map(|c| c.shard), asked, self.options.lease);
            changed |= !claimed.is_empty();
            self.adopt(session, &claimed).await?;
        }
        Ok(changed)
    }

    /// Brings our shards in line with what the database says is ours; true if they changed.
    async fn adopt_own(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let own = lease::reload(session, &self.who).await?;
        let is_own = |shard: u8| own.iter().any(|claimed| claimed.shard == i16::from(shard));
        let lost: Vec<u8> = self.shards.keys().copied().filter(|shard| !is_own(*shard)).collect();
        for shard in &lost {
            warn!(subscription = %self.who.subscription, shard, "the lease was lost");
            self.lose(*shard);
        }
        let found: Vec<_> = own
            .into_iter()
            .filter(|claimed| {
                u8::try_from(claimed.shard).is_ok_and(|s| !self.shards.contains_key(&s))
            })
            .collect();
        self.adopt(session, &found).await?;
        Ok(!lost.is_empty() || !found.is_empty())
    }

    async fn adopt(
        &mut self,
        session: &mut Session,
        claimed: &[lease::Claimed],
    ) -> Result<(), SessionError> {
        if claimed.is_empty() {
            return Ok(());
        }
        let numbers: Vec<i16> = claimed.iter().map(|claimed| claimed.shard).collect();
        retry::promote(session, &self.who, numbers.clone()).await?;
        let parked = park::load_parked(session, &self.who, numbers).await?;
        for claimed in claimed {
            let Ok(shard) = u8::try_from(claimed.shard) else { continue };
            self.stamp.epochs[usize::from(shard)] = claimed.epoch;
            self.shards.insert(shard, Shard::new(claimed));
        }
        for parked in parked {
            let Some(shard) = u8::try_from(parked.shard).ok().and_then(|s| self.shards.get_mut(&s))
            else {
                continue;
            };
            shard.parked.insert(parked.seq);
            shard.blocked.insert((parked.aggregate_type, parked.aggregate_id));
        }
        info!(subscription = %self.who.subscription, shards = ?self.shards.keys().collect::<Vec<_>>(), "leases shards");
        Ok(())
    }

    /// Forgets a shard that is not ours any more.
    pub(super) fn lose(&mut self, shard: u8) {
        self.shards.remove(&shard);
        self.leases.forget(shard);
    }

    /// Raises the epochs of all our shards: calls under the old ones may still be on their way.
    pub(super) async fn raise_epochs(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let raises: Vec<Raise> = self
            .shards
            .iter()
            .map(|(shard, state)| Raise { shard: *shard, epoch: state.epoch, above: 0 })
            .collect();
        self.raise(session, &raises).await
    }

    /// Raises epochs; shards that are not ours any more are dropped.
    pub(super) async fn raise(
        &mut self,
        session: &mut Session,
        raises: &[Raise],
    ) -> Result<(), SessionError> {
        if raises.is_empty() {
            return Ok(());
        }
        let answer = lease::raise_epochs(session, &self.who, raises).await?;
        for raise in raises {
            let epoch = answer.iter().find(|(shard, _)| *shard == i16::from(raise.shard));
            match (epoch, self.shards.get_mut(&raise.shard)) {
                (Some((_, epoch)), Some(shard)) => {
                    shard.epoch = *epoch;
                    self.stamp.epochs[usize::from(raise.shard)] = *epoch;
                }
                _ => self.lose(raise.shard),
            }
        }
        Ok(())
    }

    /// Writes the cursors that moved; true if a shard turned out not to be ours.
    pub(super) async fn settle(
        &mut self,
        session: &mut Session,
        mode: Mode,
    ) -> Result<bool, SessionError> {
        let moves: Vec<Move> = self
            .shards
            .iter()
            .filter(|(_, state)| state.done != state.settled)
            .map(|(shard, state)| Move {
                shard: *shard,
                epoch: state.epoch,
                from: state.settled,
                to: state.done,
            })
            .collect();
        let lost = self.move_cursors(session, mode, &moves).await?;
        if matches!(mode, Mode::Durable) {
            self.diffs.durable = self.diffs.done;
        }
        Ok(lost)
    }

    async fn move_cursors(
        &mut self,
        session: &mut Session,
        mode: Mode,
        moves: &[Move],
    ) -> Result<bool, SessionError> {
        if moves.is_empty() {
            return Ok(false);
        }
        let answer = settle::settle(session, mode, &self.who, moves).await?;
        let mut lost = false;
        for m in moves {
            match self.shards.get_mut(&m.shard) {
                Some(state) if answer.contains(&i16::from(m.shard)) => state.settled = m.to,
                _ => {
                    warn!(subscription = %self.who.subscription, shard = m.shard, "the lease was lost");
                    self.lose(m.shard);
                    lost = true;
                }
            }
        }
        Ok(lost)
    }

    /// Writes a target into cursors before anything of the diff up to it is published.
    async fn aim(
        &mut self,
        session: &mut Session,
        shards: &[u8],
        target: i64,
    ) -> Result<(), SessionError> {
        self.settle(session, Mode::Durable).await?;
        let moves: Vec<Move> = shards
            .iter()
            .filter_map(|shard| {
                let state = self.shards.get(shard)?;
                let to = Place { target: Some(target), ..state.done };
                Some(Move { shard: *shard, epoch: state.epoch, from: state.settled, to })
            })
            .collect();
        self.move_cursors(session, Mode::Durable, &moves).await?;
        for shard in shards {
            if let Some(state) = self.shards.get_mut(shard) {
                state.done = state.settled;
            }
        }
        self.reader.rewind(&self.shards);
        Ok(())
    }

    /// Delivers a reading and reads ahead meanwhile; returns what was read ahead.
    async fn advance(
        &mut self,
        session: &mut Session,
        reading: Reading,
    ) -> Result<Option<Step>, Interrupted> {
        if !reading.chunk.is_empty()
            && self.diffs.done - self.diffs.durable >= u64::from(UNSETTLED_DIFFS)
        {
            self.settle(session, Mode::Durable).await?;
        }
        self.clocks.idle = 0;
        let owned = self.shards.len();
        let (delivered, mut next) = self.deliver(session, &reading).await?;
        if delivered {
            for (shard, _, after) in &reading.moves {
                if let Some(state) = self.shards.get_mut(shard) {
                    state.done = *after;
                    state.walk = state.walk.saturating_sub(u32::from(reading.ends_diff));
                }
            }
            self.diffs.done += u64::from(reading.ends_diff);
        }
        if !delivered || self.shards.len() != owned {
            self.drop_ahead(&mut next);
        }
        self.reader.recycle(reading.chunk);
        Ok(next)
    }

    /// The broker can't be used: back off, and treat the outcome of what was sent as unknown.
    pub(super) async fn go_out(
        &mut self,
        session: &mut Session,
        reason: &str,
    ) -> Result<(), SessionError> {
        let pause = self.outage.backoff.next();
        self.outage.until = Some(Instant::now() + pause);
        if self.outage.backoff.is_news() {
            error!(subscription = %self.who.subscription, reason, ?pause, "the broker is unavailable");
        }
        self.health.set(Health::BrokerUnavailable { reason: reason.to_owned() });
        self.raise_epochs(session).await
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

async fn pause_for(pause: Duration, cancelled: &CancellationToken) {
    tokio::select! {
        () = cancelled.cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
