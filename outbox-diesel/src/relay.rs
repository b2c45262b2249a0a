//! Relay: reads committed events and hands them to a publisher.
//!
//! Any number of relays share a subscription: each leases its fair share of the 16 shards. Run one
//! in every instance of the service, or a few on their own.

mod attempt;
mod backoff;
mod caution;
mod deliver;
mod doubt;
#[cfg(feature = "testing")]
pub(crate) mod drain;
mod fault;
mod health;
mod ownership;
mod progress;
mod rate;
mod reader;
mod replaying;
mod retrying;
#[cfg(feature = "metrics")]
mod sample;
mod shard;
mod sleeping;
pub(crate) mod startup;
mod ticking;
mod upkeep;
mod verify;
mod worker;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use futures_util::FutureExt;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};
use uuid::Uuid;

use self::attempt::text_of;
use self::backoff::Backoff;
use self::health::{Ending, HealthCell};
pub use self::health::{Health, Stopped};
use self::rate::Rate;
pub use self::startup::Refusal;
use self::worker::Worker;
pub(crate) use self::worker::chain;
use crate::lease::{self, Identity, Leases, SelfReport};
use crate::options::{InvalidOptions, RelayOptions};
use crate::publish::Publisher;
use crate::session::Session;
pub use crate::session::{Pool, SessionError};
use crate::wake::Manager;

/// A relay, not yet running.
#[derive(Debug)]
#[must_use = "a relay does nothing until it is spawned or run"]
pub struct Relay<P> {
    pool: Pool,
    publisher: P,
    options: RelayOptions,
    subscription: String,
    direct: Option<Arc<Manager>>,
}

impl Relay<()> {
    /// Starts building a relay. It uses the pool's manager only, to open two connections of its
    /// own the way the application opens its, and a third one to listen on if it does
    /// ([`Wake::Listen`](crate::Wake::Listen)).
    pub fn builder(pool: Pool) -> Relay<()> {
        Relay {
            pool,
            publisher: (),
            options: RelayOptions::default(),
            subscription: "default".to_owned(),
            direct: None,
        }
    }
}

impl<P> Relay<P> {
    /// Where events go.
    pub fn publisher<Q: Publisher>(self, publisher: Q) -> Relay<Q> {
        let Self { pool, options, subscription, direct, .. } = self;
        Relay { pool, publisher, options, subscription, direct }
    }

    /// Settings. Default: [`RelayOptions::default`].
    pub fn options(mut self, options: RelayOptions) -> Self {
        self.options = options;
        self
    }

    /// What opens the connection that listens, where the pool goes through a transaction pooler:
    /// notifications arrive only in a session that stays. Used with
    /// [`Wake::Listen`](crate::Wake::Listen) only. Default: the pool's manager.
    ///
    /// ```no_run
    /// use diesel_async::AsyncPgConnection;
    /// use diesel_async::pooled_connection::AsyncDieselConnectionManager;
    /// use outbox_diesel::{Relay, RelayOptions, Wake};
    ///
    /// # fn example(pool: outbox_diesel::relay::Pool) {
    /// let server = "postgres://relay@database:5432/shop";
    /// let relay = Relay::builder(pool)
    ///     .options(RelayOptions::default().wake(Wake::Listen))
    ///     .direct(AsyncDieselConnectionManager::<AsyncPgConnection>::new(server));
    /// # drop(relay);
    /// # }
    /// ```
    pub fn direct(mut self, manager: AsyncDieselConnectionManager<AsyncPgConnection>) -> Self {
        self.direct = Some(Arc::new(manager));
        self
    }

    /// Which subscription it works for. Default: `default`, which the migration creates; see
    /// [`subscription::create`](crate::subscription::create) for others.
    pub fn subscription(mut self, name: impl Into<String>) -> Self {
        self.subscription = name.into();
        self
    }
}

impl<P: Publisher> Relay<P> {
    /// Runs the relay as a task of the current tokio runtime. A panic in it ends neither: it starts
    /// over after a pause, and [`RelayHandle::health`] says so.
    ///
    /// # Errors
    /// Settings that cannot work together. A database that is away or not fit is no error: the
    /// relay tries again, and [`RelayHandle::health`] says why.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(self) -> Result<RelayHandle, InvalidOptions> {
        self.options.check()?;
        let cancelled = CancellationToken::new();
        let health = HealthCell::new(&self.subscription);
        let task = tokio::spawn(run(self, cancelled.clone(), health.clone()));
        Ok(RelayHandle { cancelled, health, task: Some(task) })
    }

    /// Runs the relay until the token is cancelled, and then until its shards are given back, at
    /// most for the shutdown timeout.
    ///
    /// # Errors
    /// Settings that cannot work together.
    ///
    /// # Cancel safety
    /// A dropped future is like a crashed relay: nothing is lost, and its shards are taken over
    /// when their lease ends.
    pub async fn run(self, cancelled: CancellationToken) -> Result<(), InvalidOptions> {
        self.options.check()?;
        let health = HealthCell::new(&self.subscription);
        // Boxed, for it is large and would lie in the caller's future.
        Box::pin(run(self, cancelled, health)).await;
        Ok(())
    }
}

async fn run<P: Publisher>(relay: Relay<P>, cancelled: CancellationToken, health: HealthCell) {
    let _ending = Ending(health.clone());
    let Relay { pool, publisher, options, subscription, direct } = relay;
    let who = Identity { relay: Uuid::now_v7(), subscription, host: host() };
    let leases = Arc::new(Leases::default());

    // The heartbeat has a task and a connection of its own, so that a slow publish cannot starve
    // it. It ends with this future, however that ends.
    let retire = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let (its_pool, its_options, its_leases) = (pool.clone(), options.clone(), Arc::clone(&leases));
    let its_health = health.clone();
    tasks.spawn(beat(its_pool, its_options, who.clone(), its_leases, its_health, retire.clone()));
    let heartbeat = Heartbeat { tasks, retire };

    let mut worker = Worker::new(
        pool,
        options.clone(),
        who.clone(),
        leases,
        health.clone(),
        publisher,
        heartbeat,
    );
    if let Some(manager) = direct {
        worker.sleeping.listen_through(manager);
    }
    let overdue = async {
        cancelled.cancelled().await;
        tokio::time::sleep(options.shutdown_timeout).await;
    };
    tokio::select! {
        () = supervise(&mut worker, &who, &health, &cancelled) => {}
        () = overdue => {
            let limit = options.shutdown_timeout;
            warn!(subscription = %who.subscription, ?limit, "the shutdown was abandoned; shards are taken over when their lease ends");
        }
    }
}

/// Starts the worker over when it panics: a relay does not die unseen.
async fn supervise<P: Publisher>(
    worker: &mut Worker<P>,
    who: &Identity,
    health: &HealthCell,
    cancelled: &CancellationToken,
) {
    let mut backoff = Backoff::default();
    loop {
        let started = Instant::now();
        // It begins by forgetting all that it knew.
        let ran = AssertUnwindSafe(worker.run(cancelled)).catch_unwind().await;
        let Err(panic) = ran else { return };
        if started.elapsed() > Duration::from_secs(30) {
            backoff.reset();
        }
        let (pause, cause) = (backoff.next(), text_of(&*panic));
        error!(subscription = %who.subscription, ?pause, cause, "the relay panicked and starts over");
        health.set(Health::Interrupted { cause: format!("the relay panicked: {cause}") });
        tokio::select! {
            () = cancelled.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// The heartbeat's task.
struct Heartbeat {
    tasks: JoinSet<()>,
    retire: CancellationToken,
}

impl Heartbeat {
    /// Returns after the last beat. One that came after the goodbye would make the others leave
    /// shards to a relay that is gone, for the length of a lease.
    async fn end(&mut self) {
        self.retire.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn beat(
    pool: Pool,
    options: RelayOptions,
    who: Identity,
    leases: Arc<Leases>,
    health: HealthCell,
    retire: CancellationToken,
) {
    let mut session = None;
    let mut rate = Rate::default();
    let mut pace = tokio::time::interval(options.heartbeat);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while retire.run_until_cancelled(pace.tick()).await.is_some() {
        health.forget_old_looks();
        let report = health.report(rate.of(health.delivered()));
        let beat = beat_once(&pool, &options, &who, &leases, report, &mut session);
        let failure = match AssertUnwindSafe(beat).catch_unwind().await {
            Ok(beat) => beat.err().map(|error| chain(&error)),
            Err(panic) => Some(format!("it panicked: {}", text_of(&*panic))),
        };
        if let Some(cause) = failure {
            debug!(subscription = %who.subscription, cause, "the heartbeat failed");
            session = None;
            // Soon again: the lease is running.
            pace.reset_after(options.heartbeat / 4);
        }
    }
}

async fn beat_once(
    pool: &Pool,
    options: &RelayOptions,
    who: &Identity,
    leases: &Leases,
    report: SelfReport,
    session: &mut Option<Session>,
) -> Result<(), SessionError> {
    if session.is_none() {
        *session = Some(Session::open(pool.clone(), options.database_timeout).await?);
    }
    if let Some(session) = session {
        let asked = Instant::now();
        let renewed = lease::renew(session, who, report, options.lease).await?;
        leases.extend(renewed, asked, options.lease);
    }
    Ok(())
}

/// For people who look at `outbox.relays`.
fn host() -> String {
    std::env::var("HOSTNAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/etc/hostname").ok())
        .map_or_else(|| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// A running relay. Dropping the handle stops the relay in the background.
#[derive(Debug)]
#[must_use = "the relay stops when its handle is dropped"]
pub struct RelayHandle {
    cancelled: CancellationToken,
    health: HealthCell,
    task: Option<JoinHandle<()>>,
}

impl RelayHandle {
    /// What the relay is doing. Whether it gets on with it, [`last_progress`](Self::last_progress)
    /// tells.
    #[must_use]
    pub fn health(&self) -> Health {
        self.health.get()
    }

    /// When the relay last delivered something, or found nothing to deliver. An idle relay looks many
    /// times a second, one that sleeps every [`poll_asleep`](RelayOptions::poll_asleep); one that is
    /// stuck, or whose broker or database is away, falls behind.
    #[must_use]
    pub fn last_progress(&self) -> Instant {
        self.health.last_progress()
    }

    /// Waits until the relay leases shards, hence delivers; or stands by, where there are more relays
    /// than shards. After a crash of its predecessor that takes until the lease ends.
    ///
    /// # Errors
    /// The relay was stopped before.
    ///
    /// # Cancel safety
    /// It only waits.
    pub async fn ready(&self) -> Result<(), Stopped> {
        self.health.ready().await
    }

    /// Waits until all that was committed before this call is delivered or parked, of the shards
    /// that this relay leases: of all of them if it is the only relay of its subscription and
    /// [`ready`](Self::ready). What is parked, `outbox.parked` and [`admin::list`](crate::admin::list)
    /// tell.
    ///
    /// ```no_run
    /// # async fn example(relay: outbox_diesel::RelayHandle) -> Result<(), outbox_diesel::relay::Stopped> {
    /// relay.ready().await?;
    /// // … emit and commit …
    /// relay.drained().await?;
    /// // Now the broker has it.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The relay was stopped before.
    ///
    /// # Cancel safety
    /// It only waits.
    pub async fn drained(&self) -> Result<(), Stopped> {
        self.health.all_delivered().await
    }

    /// Stops the relay: what is in flight is finished, cursors are settled, shards given back.
    /// Returns when all of that is done, at most after the shutdown timeout.
    ///
    /// # Cancel safety
    /// If the future is dropped, the relay still stops.
    pub async fn shutdown(mut self) {
        self.cancelled.cancel();
        if let Some(task) = self.task.take()
            && let Err(failed) = task.await
        {
            warn!(cause = chain(&failed), "the relay's task had ended already");
        }
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}
