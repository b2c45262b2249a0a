//! [`Writers`]: business transactions of every kind, at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use diesel::connection::CacheSize;
use diesel::sql_types::{BigInt, Text};
use diesel::{QueryResult, dsl};
use diesel_async::{
    AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _,
};
use fastrand::Rng;
use outbox_diesel::AsyncEmit as _;
use tokio::task::JoinSet;

use crate::oracle::AGGREGATE_TYPE;
use crate::{SOON, TestEvent, eventually};

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

    /// Lays out the ledger of versions, if it is not there, and starts writing.
    pub async fn start(self) -> Writing {
        let mut conn = AsyncPgConnection::establish(&self.url).await.expect("the database is up");
        conn.batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS ledger (id bigint PRIMARY KEY, version bigint NOT NULL);
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
            let writer = Writer {
                rng: Rng::with_seed(self.seed.wrapping_add(nth)),
                name: format!("{:x}-{nth}", fastrand::u64(..)),
                plan: self.clone(),
                shared: Arc::clone(&shared),
                prepared: 0,
                in_doubt: false,
            };
            tasks.spawn(writer.write());
        }
        Writing { seed: self.seed, url: self.url, shared, tasks }
    }
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    committed: AtomicU64,
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

    /// Lets every writer finish its transaction, and commits what is still prepared.
    pub async fn stop(mut self) {
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
    }
}

struct Writer {
    rng: Rng,
    name: String,
    plan: Writers,
    shared: Arc<Shared>,
    prepared: u64,
    /// Whether the last prepared transaction may still be there, with its locks.
    in_doubt: bool,
}

/// How a transaction ends.
#[derive(Clone, Copy)]
enum End {
    Commit,
    Rollback,
    FailedCommit,
    Prepare,
    PrepareAndRollback,
}

impl Writer {
    async fn write(mut self) {
        while !self.is_stopped() {
            let Ok(mut conn) = AsyncPgConnection::establish(&self.plan.url).await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            if !self.plan.statement_cache {
                conn.set_prepared_statement_cache_size(CacheSize::Disabled);
            }
            if self.resolve(&mut conn).await.is_err() {
                continue;
            }
            while !self.is_stopped() {
                match self.transaction(&mut conn).await {
                    Ok(true) => {
                        self.shared.committed.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(false) => {}
                    // The server is away, or has refused: only a new connection is sure to be good.
                    Err(_) => break,
                }
                self.rest(self.plan.pause).await;
            }
        }
    }

    fn is_stopped(&self) -> bool {
        AtomicBool::load(&self.shared.stopped, Ordering::Relaxed)
    }

    /// Commits what was prepared when the connection was lost, and bounds how long locks are waited
    /// for.
    async fn resolve(&mut self, conn: &mut AsyncPgConnection) -> QueryResult<()> {
        if self.plan.statement_cache {
            conn.batch_execute("SET lock_timeout = '5s'").await?;
        }
        if self.in_doubt {
            let gid = self.gid();
            let find = dsl::sql::<Text>("SELECT gid FROM pg_prepared_xacts WHERE gid = ")
                .bind::<Text, _>(gid.clone());
            let left: Vec<String> = conn.transaction(async |conn| find.load(conn).await).await?;
            if !left.is_empty() {
                conn.batch_execute(&format!("COMMIT PREPARED '{gid}'")).await?;
            }
            self.in_doubt = false;
        }
        Ok(())
    }

    fn gid(&self) -> String {
        format!("{}-{}", self.name, self.prepared)
    }

    /// One transaction; true if it committed.
    async fn transaction(&mut self, conn: &mut AsyncPgConnection) -> QueryResult<bool> {
        let end = match self.rng.u8(..100) {
            0..8 => End::Rollback,
            8..12 => End::FailedCommit,
            12..18 if self.plan.two_phase => End::Prepare,
            18..20 if self.plan.two_phase => End::PrepareAndRollback,
            _ => End::Commit,
        };
        conn.batch_execute("BEGIN").await?;
        if self.rng.u8(..4) == 0 {
            // Its transaction id is older than its first event.
            conn.batch_execute("SELECT pg_current_xact_id()").await?;
            self.rest(Duration::from_millis(20)).await;
        }
        let locked = self.aggregates();
        for id in &locked {
            self.change(conn, &[*id]).await?;
        }
        for _ in 0..self.rng.u8(..3) {
            let again = self.rng.choice(&locked).copied().unwrap_or(1);
            self.change(conn, &[again]).await?;
        }
        match self.rng.u8(..10) {
            0 => self.savepoint(conn, &locked, "RELEASE SAVEPOINT part").await?,
            1 => self.savepoint(conn, &locked, "ROLLBACK TO SAVEPOINT part").await?,
            2 => self.change(conn, &[locked.clone(), locked.clone()].concat()).await?,
            3 => self.rest(Duration::from_millis(30)).await,
            _ => {}
        }
        if self.rng.u8(..100) == 0 {
            self.rest(Duration::from_secs(1)).await;
        }
        self.end(conn, end).await
    }

    async fn end(&mut self, conn: &mut AsyncPgConnection, end: End) -> QueryResult<bool> {
        match end {
            End::Commit => conn.batch_execute("COMMIT").await.map(|()| true),
            End::Rollback => conn.batch_execute("ROLLBACK").await.map(|()| false),
            End::FailedCommit => {
                conn.batch_execute("INSERT INTO doomed VALUES (1)").await?;
                // A lost connection shows at the next statement.
                let committed = conn.batch_execute("COMMIT").await;
                assert!(committed.is_err(), "seed {}: a commit must fail", self.plan.seed);
                Ok(false)
            }
            End::Prepare | End::PrepareAndRollback => {
                self.prepared += 1;
                let gid = self.gid();
                self.in_doubt = true;
                conn.batch_execute(&format!("PREPARE TRANSACTION '{gid}'")).await?;
                self.rest(Duration::from_millis(150)).await;
                let committed = matches!(end, End::Prepare);
                let verb = if committed { "COMMIT" } else { "ROLLBACK" };
                conn.batch_execute(&format!("{verb} PREPARED '{gid}'")).await?;
                self.in_doubt = false;
                Ok(committed)
            }
        }
    }

    async fn savepoint(
        &mut self,
        conn: &mut AsyncPgConnection,
        locked: &[i64],
        end: &str,
    ) -> QueryResult<()> {
        conn.batch_execute("SAVEPOINT part").await?;
        self.change(conn, locked).await?;
        conn.batch_execute(end).await?;
        // What follows must not be mistaken for what was rolled back.
        self.change(conn, &locked[..1]).await
    }

    /// One to four, ascending: writers that lock in one order do not deadlock.
    fn aggregates(&mut self) -> Vec<i64> {
        let count = self.rng.usize(1..=4);
        let mut ids: Vec<i64> =
            (0..count).map(|_| self.rng.i64(1..=self.plan.aggregates)).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Raises the aggregates' versions and emits them: after the lock, in one of the ways there are.
    async fn change(&mut self, conn: &mut AsyncPgConnection, ids: &[i64]) -> QueryResult<()> {
        let mut events = Vec::with_capacity(ids.len());
        for id in ids {
            let version: i64 =
                dsl::sql::<BigInt>("UPDATE ledger SET version = version + 1 WHERE id = ")
                    .bind::<BigInt, _>(*id)
                    .sql(" RETURNING version")
                    .get_result(conn)
                    .await?;
            let topic = self.rng.choice(&self.plan.topics).expect("there is a topic").clone();
            events.push((*id, version, topic));
        }
        if events.len() == 1 && self.rng.u8(..5) == 0 {
            let (id, version, topic) = &events[0];
            return conn.batch_execute(&format!(
                "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('{topic}', '{AGGREGATE_TYPE}', '{id}', 'account.changed', '{{\"v\":{version}}}')"
            ))
            .await;
        }
        let events: Vec<TestEvent> = events
            .into_iter()
            .map(|(id, version, topic)| {
                TestEvent::new(id)
                    .aggregate_type(AGGREGATE_TYPE)
                    .event_type("account.changed")
                    .topic(topic)
                    .payload(format!(r#"{{"v":{version}}}"#))
            })
            .collect();
        match events.as_slice() {
            [event] => conn.emit(event).await.map(drop)?,
            several => conn.emit_all(several).await.map(drop)?,
        }
        Ok(())
    }

    async fn rest(&mut self, longest: Duration) {
        let pause = longest.mul_f64(self.rng.f64());
        tokio::time::sleep(pause).await;
    }
}
