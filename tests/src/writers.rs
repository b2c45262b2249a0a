//! [`Writers`]: business transactions of every kind, at random.

mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use diesel::connection::CacheSize;
use diesel::dsl;
use diesel::sql_types::Text;
use diesel_async::{
    AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _,
};
use tokio::task::JoinSet;

use self::writer::Writer;
use crate::oracle::Commits;
use crate::{SOON, eventually};

/// Writers that serialise on their aggregates: each change of an aggregate raises its version under
/// its row lock and emits an event that carries the version, so that a consumer can tell what is
/// missing and what is out of order.
#[derive(Debug, Clone)]
pub struct Writers {
    url: String,
    seed: u64,
    count: u64,
    aggregates: i64,
    topics: Vec<String>,
    statement_cache: bool,
    two_phase: bool,
    pause: Duration,
    pace: Option<Duration>,
}

impl Writers {
    /// Four writers for the database at the URL, one topic, 40 aggregates. The seed is random,
    /// unless `OUTBOX_SEED` says otherwise.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        let seed = std::env::var("OUTBOX_SEED").ok().and_then(|seed| seed.parse().ok());
        Self {
            url: url.into(),
            seed: seed.unwrap_or_else(|| fastrand::u64(..)),
            count: 4,
            aggregates: 40,
            topics: vec!["changes".to_owned()],
            statement_cache: true,
            two_phase: true,
            pause: Duration::from_millis(4),
            pace: None,
        }
    }

    /// Sets what everything random comes from.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets how many there are.
    #[must_use]
    pub fn count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// Sets how many aggregates they share.
    #[must_use]
    pub fn aggregates(mut self, aggregates: i64) -> Self {
        self.aggregates = aggregates;
        self
    }

    /// Sets the topics that events are spread over; those of one aggregate go to all of them.
    #[must_use]
    pub fn topics(mut self, topics: impl IntoIterator<Item = String>) -> Self {
        self.topics = topics.into_iter().collect();
        self
    }

    /// Sets whether connections keep prepared statements. Behind a transaction pooler they must
    /// not.
    #[must_use]
    pub fn statement_cache(mut self, statement_cache: bool) -> Self {
        self.statement_cache = statement_cache;
        self
    }

    /// Sets whether some transactions are prepared. The server then needs
    /// `max_prepared_transactions`.
    #[must_use]
    pub fn two_phase(mut self, two_phase: bool) -> Self {
        self.two_phase = two_phase;
        self
    }

    /// Sets the longest pause between two transactions of one writer.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Makes them commit this many events a second, all together: one in each transaction, and
    /// nothing ever goes wrong.
    #[must_use]
    pub fn per_second(mut self, events: u32) -> Self {
        let writers = u32::try_from(self.count).expect("a few writers");
        self.pace = Some(Duration::from_secs(1) * writers / events);
        self
    }

    /// Lays out the ledger of versions and the history of events, if they are not there, and starts writing.
    pub async fn start(self) -> Writing {
        let mut conn = AsyncPgConnection::establish(&self.url).await.expect("the database is up");
        conn.batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS ledger (id bigint PRIMARY KEY, version bigint NOT NULL);
             CREATE TABLE IF NOT EXISTS history (id uuid PRIMARY KEY, aggregate bigint NOT NULL, version bigint NOT NULL);
             CREATE TABLE IF NOT EXISTS known (id bigint PRIMARY KEY);
             CREATE TABLE IF NOT EXISTS doomed (id bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED);
             INSERT INTO ledger SELECT id, 0 FROM generate_series(1, {}) id ON CONFLICT DO NOTHING",
            self.aggregates
        ))
        .await
        .expect("the ledger is laid out");
        let shared = Arc::new(Shared::default());
        let mut tasks = JoinSet::new();
        for nth in 0..self.count {
            let writer = Writer::new(self.clone(), nth, Arc::clone(&shared));
            tasks.spawn(writer.write());
        }
        Writing { seed: self.seed, url: self.url, shared, tasks }
    }
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    committed: AtomicU64,
    commits: Mutex<Commits>,
}

/// Writers at work. They survive lost connections; what became of such a transaction only the
/// database knows.
#[derive(Debug)]
pub struct Writing {
    seed: u64,
    url: String,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Writing {
    /// Belongs into every message about a failure.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// How many transactions were seen to commit.
    #[must_use]
    pub fn committed(&self) -> u64 {
        AtomicU64::load(&self.shared.committed, Ordering::Relaxed)
    }

    /// Lets every writer finish its transaction, commits what is still prepared, and returns what was
    /// seen to commit.
    pub async fn stop(mut self) -> Commits {
        self.shared.stopped.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap_or_else(|panic| panic!("seed {}: {panic}", self.seed));
        }
        // Behind a pooler a connection may take more than one try.
        let mut conn =
            eventually(SOON, async || AsyncPgConnection::establish(&self.url).await.ok()).await;
        conn.set_prepared_statement_cache_size(CacheSize::Disabled);
        let list = dsl::sql::<Text>(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
        );
        // In a transaction, for the sake of poolers.
        let left: Vec<String> = conn
            .transaction(async |conn| list.load(conn).await)
            .await
            .expect("lists prepared transactions");
        for gid in left {
            let commit = format!("COMMIT PREPARED '{gid}'");
            conn.batch_execute(&commit).await.expect("a prepared transaction can be committed");
        }
        std::mem::take(&mut *self.shared.commits.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
