//! [`Stage`]: servers, relays, and what they went through.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use diesel::QueryResult;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, SimpleAsyncConnection as _};
use xtask::postgres::{Durability, Postgres};
use xtask::redis::{Persistence, Redis};

use super::host::Host;
use super::report::Report;
use crate::oracle::{Commits, Committed, Verdict};
use crate::{Scene, TestDatabase, TestRedis, quick_lease};

/// How long after the writers' end everything may take to arrive.
const PATIENCE: Duration = Duration::from_secs(90);

/// A PostgreSQL, a Redis, and relays between them.
#[derive(Debug)]
pub(super) struct Stage {
    // Declared before the servers, hence dropped before them.
    pub(super) hosts: Vec<Host>,
    pub(super) scene: Scene,
    postgres: Arc<Mutex<Postgres>>,
    redis: Arc<Mutex<Redis>>,
    /// From when to when a server was away, for one relay at least.
    outages: Mutex<Vec<(Instant, Instant)>>,
}

impl Stage {
    /// Servers that keep whatever they acknowledged, and this many relays.
    pub(super) async fn durable(program: &str, relays: usize) -> Self {
        Self::start(program, relays, Durability::Full, Persistence::Always).await
    }

    /// Servers that keep it if nothing but a process ends, and in order: what is measured is not the
    /// disk.
    pub(super) async fn quick(program: &str, relays: usize) -> Self {
        Self::start(program, relays, Durability::None, Persistence::EverySecond).await
    }

    async fn start(
        program: &str,
        relays: usize,
        durability: Durability,
        persistence: Persistence,
    ) -> Self {
        let options = xtask::postgres::Options::default().durability(durability);
        let postgres = Postgres::start(options).unwrap_or_else(|why| panic!("{why}"));
        let options = xtask::redis::Options::default().persistence(persistence);
        let redis = Redis::start(options).unwrap_or_else(|why| panic!("{why}"));
        let database = TestDatabase::on(&postgres.url("postgres"));
        let scene = Scene::on(database, TestRedis::on(&redis.url()));
        let mut hosts = Vec::new();
        for number in 0..relays {
            hosts.push(Host::start(program, number, &scene).await);
        }
        Self {
            hosts,
            scene,
            postgres: Arc::new(Mutex::new(postgres)),
            redis: Arc::new(Mutex::new(redis)),
            outages: Mutex::default(),
        }
    }

    /// Does something to PostgreSQL that takes its time.
    pub(super) async fn with_postgres(&self, act: impl FnOnce(&mut Postgres) + Send + 'static) {
        blocking(&self.postgres, act).await;
    }

    /// Does something to Redis that takes its time.
    pub(super) async fn with_redis(&self, act: impl FnOnce(&mut Redis) + Send + 'static) {
        blocking(&self.redis, act).await;
    }

    /// A server was away, for one relay at least.
    pub(super) fn note_outage(&self, since: Instant) {
        lock(&self.outages).push((since, Instant::now()));
    }

    /// Runs statements on a connection of their own, one after the other.
    pub(super) async fn sql(&self, statements: &[&str]) -> QueryResult<()> {
        let conn = AsyncPgConnection::establish(&self.scene.database().url()).await;
        let mut conn = conn.map_err(|error| {
            diesel::result::Error::QueryBuilderError(format!("no connection: {error}").into())
        })?;
        for statement in statements {
            conn.batch_execute(statement).await?;
        }
        Ok(())
    }

    /// Waits until everything that the writers wrote down has arrived; false if it does not.
    pub(super) async fn settled(&self) -> bool {
        let emitted: i64 = self.scene.database().value("SELECT count(*) FROM history");
        let emitted = usize::try_from(emitted).expect("a count");
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.scene.arrived().await >= emitted {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        false
    }

    /// Lets everything arrive, stops the relays and judges.
    pub(super) async fn end(&self, commits: &Commits) -> Report {
        let mut remarks = Vec::new();
        if !self.settled().await {
            remarks.push(format!("not everything arrived within {PATIENCE:?}"));
        }
        for host in &self.hosts {
            host.stop_relay();
        }
        let committed = Committed::in_history(&mut self.scene.database().sync());
        let arrivals = self.scene.arrivals().await;
        let verdict = Verdict::on(&committed, &arrivals);
        let delays = arrivals.delays(commits);
        let stall = delays.last().copied().unwrap_or_default();
        let outage = longest(std::mem::take(&mut lock(&self.outages)));
        let leaves: String = self.scene.database().value(
            "SELECT format('partitions: %s from seq %s on', count(*), min(from_seq)) FROM outbox.leaves",
        );
        remarks.extend([verdict.to_string(), leaves]);
        remarks.push(format!("longest outage of a server: {} ms", outage.as_millis()));
        for percent in [50, 99] {
            let delay = percentile(&delays, percent);
            remarks.push(format!("p{percent} from commit to Redis: {} ms", delay.as_millis()));
        }
        Report {
            emitted: verdict.committed,
            in_redis: verdict.arrived,
            lost: verdict.lost,
            duplicated: verdict.duplicated + verdict.phantom,
            reordered: verdict.reordered,
            dead: self.scene.database().value("SELECT count(*) FROM outbox.dead_letters"),
            max_stall_ms: stall.as_millis().try_into().unwrap_or(u64::MAX),
            limit: 2 * quick_lease() + outage,
            remarks,
        }
    }
}

/// The longest time for which one server or another was away: for events it is one outage.
fn longest(mut outages: Vec<(Instant, Instant)>) -> Duration {
    outages.sort();
    let mut longest = Duration::ZERO;
    let mut last = None;
    for (from, to) in outages {
        let (begin, end) = match last {
            Some((begin, end)) if from <= end => (begin, end.max(to)),
            _ => (from, to),
        };
        longest = longest.max(end - begin);
        last = Some((begin, end));
    }
    longest
}

/// The delay that so many of a hundred do not exceed. They are in ascending order.
pub(super) fn percentile(delays: &[Duration], percent: usize) -> Duration {
    let last = delays.len().saturating_sub(1);
    delays.get(last * percent / 100).copied().unwrap_or_default()
}

async fn blocking<T: Send + 'static>(
    server: &Arc<Mutex<T>>,
    act: impl FnOnce(&mut T) + Send + 'static,
) {
    let server = Arc::clone(server);
    tokio::task::spawn_blocking(move || act(&mut lock(&server))).await.expect("a server obeys");
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_that_overlap_are_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let span = |outages: &[(u64, u64)]| {
            longest(outages.iter().map(|(from, to)| (at(*from), at(*to))).collect()).as_secs()
        };
        assert_eq!(span(&[]), 0);
        assert_eq!(span(&[(5, 7), (0, 3)]), 3);
        assert_eq!(span(&[(2, 5), (0, 3), (10, 14)]), 5);
        assert_eq!(span(&[(0, 9), (2, 3), (8, 10)]), 10);
    }
}
