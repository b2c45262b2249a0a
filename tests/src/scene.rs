//! [`Scene`]: writers, a database, relays as processes, and Redis.

use std::time::Duration;

use crate::oracle::{Arrivals, Committed, Verdict};
use crate::{RelayProcess, TestDatabase, TestRedis, Writers, Writing, eventually};

/// How long everything that was committed may take to arrive, on a busy machine.
const ALL: Duration = Duration::from_secs(60);

/// A database, a Redis, and the topics between them.
#[derive(Debug)]
pub struct Scene {
    database: TestDatabase,
    redis: TestRedis,
    topics: Vec<String>,
}

impl Scene {
    /// On the shared servers.
    #[must_use]
    pub fn new() -> Self {
        Self::on(TestDatabase::new(), TestRedis::new())
    }

    /// On these. There are three topics.
    #[must_use]
    pub fn on(database: TestDatabase, redis: TestRedis) -> Self {
        Self { database, redis, topics: ["a", "b", "c"].map(str::to_owned).to_vec() }
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &TestDatabase {
        &self.database
    }

    /// Redis.
    #[must_use]
    pub fn redis(&self) -> &TestRedis {
        &self.redis
    }

    /// Writers for this database and its topics.
    #[must_use]
    pub fn writers(&self) -> Writers {
        Writers::new(self.database.url()).topics(self.topics.clone())
    }

    /// Starts the program as a relay between the two.
    #[must_use]
    pub fn relay(&self, program: &str, name: &str) -> RelayProcess {
        self.relay_with(program, name, &[])
    }

    /// The same, with settings of its environment.
    #[must_use]
    pub fn relay_with(&self, program: &str, name: &str, settings: &[(&str, &str)]) -> RelayProcess {
        RelayProcess::start(program, name, &self.database, &self.redis, settings)
    }

    /// How many shards the relay of this name leases.
    #[must_use]
    pub fn owned(&self, name: &str) -> i64 {
        self.database.value(&format!(
            "SELECT count(*) FROM outbox.cursors c JOIN outbox.relays r ON r.id = c.owner
             WHERE r.host = '{name}' AND c.leased_until > clock_timestamp()"
        ))
    }

    /// How many entries there are.
    pub async fn arrived(&self) -> usize {
        let mut conn = self.redis.connect().await;
        let mut arrived = 0;
        for stream in self.streams() {
            let len: usize =
                redis::cmd("XLEN").arg(stream).query_async(&mut conn).await.unwrap_or(0);
            arrived += len;
        }
        arrived
    }

    /// Waits until more has arrived: relays are publishing.
    pub async fn under_way(&self) {
        let before = self.arrived().await;
        eventually(ALL, async || (self.arrived().await > before + 50).then_some(())).await;
    }

    /// Waits until all that was committed has arrived.
    pub async fn all_arrived(&self) {
        let committed = self.database.value::<i64>("SELECT count(*) FROM outbox.events");
        let committed = usize::try_from(committed).expect("a count");
        eventually(ALL, async || (self.arrived().await >= committed).then_some(())).await;
    }

    /// Stops the writers, lets everything arrive (or not), stops the relays and judges.
    ///
    /// # Panics
    /// Unless nothing was lost, made up, repeated or put out of order.
    pub async fn end(
        &self,
        writing: Writing,
        relays: impl IntoIterator<Item = RelayProcess>,
    ) -> Verdict {
        self.close(writing, relays, self.all_arrived(), Verdict::clone).await
    }

    /// The same for a broker that tells no repeats. They are no fault; among the first arrivals
    /// nothing may be missing or out of order.
    ///
    /// # Panics
    /// Unless nothing was lost, made up or put out of order.
    pub async fn end_at_least_once(
        &self,
        writing: Writing,
        relays: impl IntoIterator<Item = RelayProcess>,
    ) -> Verdict {
        let none_is_missing = async || (self.verdict().await.lost == 0).then_some(());
        let all = eventually(ALL, none_is_missing);
        self.close(writing, relays, all, Verdict::at_least_once).await
    }

    async fn close(
        &self,
        writing: Writing,
        relays: impl IntoIterator<Item = RelayProcess>,
        all: impl Future<Output = ()>,
        promised: fn(&Verdict) -> Verdict,
    ) -> Verdict {
        let seed = writing.seed();
        writing.stop().await;
        let all = tokio::time::timeout(ALL / 2, all).await;
        for mut relay in relays {
            relay.stop();
        }
        let verdict = self.verdict().await;
        promised(&verdict).assert_clean(seed);
        all.unwrap_or_else(|_| panic!("OUTBOX_SEED={seed}: did not come to an end: {verdict}"));
        verdict
    }

    /// Judges what has arrived by now.
    pub async fn verdict(&self) -> Verdict {
        let committed = Committed::read(&mut self.database.sync());
        Verdict::on(&committed, &self.arrivals().await)
    }

    /// What has arrived by now.
    pub async fn arrivals(&self) -> Arrivals {
        Arrivals::in_streams(&mut self.redis.connect().await, &self.streams()).await
    }

    fn streams(&self) -> Vec<String> {
        self.topics.iter().map(|topic| format!("{}{topic}", self.redis.prefix())).collect()
    }
}

impl Default for Scene {
    fn default() -> Self {
        Self::new()
    }
}
