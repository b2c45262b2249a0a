//! The real thing: a database, sessions, relays and a broker, next to the model of them.

use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection as _;
use diesel::sql_types::BigInt;
use diesel::{Connection as _, PgConnection, dsl};
use diesel_async::{AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _};
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::admin::{self, Filter};
use outbox_diesel::subscription::{self, Start};
use outbox_tests::{RelayThread, TestDatabase, TestEvent, eventually};

use super::broker::Broker;
use super::model::{Model, Session};
use super::step::{
    AGGREGATES, RELAYS, SESSIONS, SKIPPING, SKIPPING_TYPE, Step, TOPICS, UNORDERED, UNORDERED_TYPE,
};

const PATIENCE: Duration = Duration::from_secs(30);
/// As if every lease had run out, and everybody had long been silent.
const LEASES_END: &str = "\
UPDATE outbox.cursors SET leased_until = clock_timestamp(); DELETE FROM outbox.relays";

pub(crate) struct World {
    // Before the database: relays and sessions end first.
    relays: Vec<RelayThread>,
    sessions: Vec<AsyncPgConnection>,
    model: Model,
    broker: Broker,
    database: TestDatabase,
}

impl Drop for World {
    /// What is still prepared after a failure would outlive its database's test, and keep one of
    /// the server's few places.
    fn drop(&mut self) {
        let Ok(mut conn) = PgConnection::establish(&self.database.url()) else { return };
        for session in (0..SESSIONS).filter(|session| self.model.is_prepared(*session)) {
            conn.batch_execute(&format!("ROLLBACK PREPARED '{}'", self.gid(session))).ok();
        }
    }
}

impl World {
    pub(crate) async fn new(broker: Broker) -> Self {
        let database = TestDatabase::new();
        database.sql(&format!(
            "CREATE TABLE ledger (id bigint PRIMARY KEY, version bigint NOT NULL);
             INSERT INTO ledger SELECT id, 0 FROM generate_series(0, {AGGREGATES} - 1) id;
             CREATE TABLE died (subscription text, version bigint);
             CREATE FUNCTION note_death() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO died VALUES (NEW.subscription, (NEW.payload ->> 'v')::bigint); RETURN NULL; END $$;
             CREATE TRIGGER note_death AFTER INSERT OR UPDATE ON outbox.parked
             FOR EACH ROW WHEN (NEW.dead) EXECUTE FUNCTION note_death()"
        ));
        let mut conn = database.connect().await;
        subscription::create(&mut conn, "copy", Start::Earliest, &[]).await.expect("creates it");
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(database.connect().await);
        }
        let relays = RELAYS.map(|subscription| broker.relay(&database.url(), subscription));
        let relays = relays.into_iter().collect();
        // Else a schedule would be over before the relays have begun.
        let leased = "SELECT bool_and(owner IS NOT NULL) FROM outbox.cursors";
        eventually(PATIENCE, async || database.value::<bool>(leased).then_some(())).await;
        Self { relays, sessions, model: Model::default(), broker, database }
    }

    pub(crate) async fn take(&mut self, step: &Step) {
        match *step {
            Step::Begin { session } => self.begin(session).await,
            Step::Emit { session, aggregate, topic } => {
                self.begin(session).await;
                self.emit(session, aggregate, TOPICS[topic]).await;
            }
            Step::Savepoint { session } => {
                if self.model.savepoint(session) {
                    self.run(session, "SAVEPOINT part").await;
                }
            }
            Step::RollBackToSavepoint { session } => {
                if self.model.roll_back_to_savepoint(session) {
                    self.run(session, "ROLLBACK TO part; RELEASE part").await;
                }
            }
            Step::Commit { session } => self.end_open(session, true).await,
            Step::RollBack { session } => self.end_open(session, false).await,
            Step::Prepare { session } => {
                if self.model.prepare(session) {
                    let prepare = format!("PREPARE TRANSACTION '{}'", self.gid(session));
                    self.run(session, &prepare).await;
                }
            }
            Step::EndPrepared { session, commits } => self.end_prepared(session, commits).await,
            Step::Tick => self.database.sql("SELECT outbox.take_tick()"),
            Step::Mishap { relay, mishap } => self.relays[relay].mishaps().push(mishap),
            Step::Crash { relay } => self.relays[relay].crash(),
            Step::LeasesEnd => self.database.sql(LEASES_END),
            Step::Reject { odd } => self.broker.reject(odd).await,
            Step::Accept => self.broker.accept().await,
            Step::RetryDead => self.retry_dead().await,
            Step::Wait { time } => tokio::time::sleep(time).await,
            Step::Drain => self.drain().await,
        }
        self.replace_the_dead();
        self.arrived_as_far_as_allowed().await;
    }

    /// Ends everything, and checks that all has arrived and nothing comes after.
    pub(crate) async fn end(mut self) {
        for session in 0..SESSIONS {
            self.end_open(session, session % 2 == 0).await;
            self.end_prepared(session, true).await;
        }
        self.drain().await;
        // Where an answer came too late, a retry is repeated, recognised, and forgotten then.
        let parked = "SELECT count(*) = 0 FROM outbox.parked";
        eventually(PATIENCE, async || {
            self.retry_dead().await;
            self.database.value::<bool>(parked).then_some(())
        })
        .await;
        for relay in &self.relays {
            relay.stop();
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.relays.iter().all(RelayThread::has_ended) {
            assert!(Instant::now() < deadline, "a relay does not stop");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(self.arrived_as_far_as_allowed().await, "something is missing after the shutdown");
    }

    async fn begin(&mut self, session: usize) {
        if self.model.is_idle(session) {
            self.run(session, "BEGIN").await;
            self.model.sessions[session] = Session::Open { changed: Vec::new(), savepoint: None };
        }
    }

    async fn emit(&mut self, session: usize, aggregate: usize, topic: &str) {
        let Some(version) = self.model.change(session, aggregate) else { return };
        let conn = &mut self.sessions[session];
        let id = i64::try_from(aggregate).expect("few");
        let drawn: i64 = dsl::sql::<BigInt>("UPDATE ledger SET version = version + 1 WHERE id = ")
            .bind::<BigInt, _>(id)
            .sql(" RETURNING version")
            .get_result(conn)
            .await
            .expect("nobody else holds the lock");
        assert_eq!(drawn, version, "the model is wrong");
        let mut event = TestEvent::new(id).topic(topic).payload(format!(r#"{{"v":{version}}}"#));
        match aggregate {
            SKIPPING => event = event.event_type(SKIPPING_TYPE),
            UNORDERED => event = event.event_type(UNORDERED_TYPE),
            _ => {}
        }
        conn.emit(&event).await.expect("emits");
    }

    async fn end_open(&mut self, session: usize, commits: bool) {
        if self.model.is_open(session) {
            self.run(session, if commits { "COMMIT" } else { "ROLLBACK" }).await;
            self.model.end(session, commits);
        }
    }

    async fn end_prepared(&mut self, session: usize, commits: bool) {
        if self.model.is_prepared(session) {
            let verb = if commits { "COMMIT" } else { "ROLLBACK" };
            let end = format!("{verb} PREPARED '{}'", self.gid(session));
            self.run(session, &end).await;
            self.model.end(session, commits);
        }
    }

    fn gid(&self, session: usize) -> String {
        format!("{}-{session}", self.database.name())
    }

    async fn run(&mut self, session: usize, sql: &str) {
        let done = self.sessions[session].batch_execute(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// A successor for each relay that died. Leases of the dead do not have to run out here: that
    /// they do is another test's matter.
    fn replace_the_dead(&mut self) {
        for (relay, subscription) in self.relays.iter_mut().zip(RELAYS) {
            if relay.has_ended() {
                *relay = self.broker.relay(&self.database.url(), subscription);
                self.database.sql(LEASES_END);
            }
        }
    }

    /// No more mishaps: then all that has committed arrives, however much is still open.
    async fn drain(&mut self) {
        for relay in &self.relays {
            relay.mishaps().clear();
        }
        self.broker.accept().await;
        let deadline = Instant::now() + PATIENCE;
        while !self.arrived_as_far_as_allowed().await {
            self.replace_the_dead();
            self.retry_dead().await;
            if Instant::now() > deadline {
                let arrived = self.broker.arrived().await;
                let state: Option<String> = self.database.value(
                    "SELECT string_agg(format('%s, cursor %s', row_to_json(p), row_to_json(c)), '; ')
                     FROM outbox.parked p JOIN outbox.cursors c USING (subscription, shard)",
                );
                let committed = self.model.committed;
                panic!("committed {committed:?}, arrived only {arrived:?}; parked {state:?}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn retry_dead(&self) {
        let dead = "SELECT EXISTS (SELECT FROM outbox.parked WHERE dead)";
        if self.database.value::<bool>(dead) {
            let mut conn = self.database.connect().await;
            admin::retry_all(&mut conn, &Filter::default()).await.expect("retries");
        }
    }

    /// Nothing but a dead event is passed by a later one of its aggregate.
    fn passed_only_the_dead(&self, subscription: &str, versions: &[i64]) {
        let overtaken = Model::overtaken(versions);
        if overtaken.is_empty() {
            return;
        }
        // It was written before anything passed it.
        let died: Vec<String> = self.database.value(&format!(
            "SELECT ARRAY(SELECT DISTINCT version::text FROM died WHERE subscription = '{subscription}')"
        ));
        for version in overtaken {
            assert!(
                died.contains(&version.to_string()),
                "{subscription}: {version} was passed alive: {versions:?}"
            );
        }
    }

    /// What arrived of an aggregate is always a prefix of what has committed. True if it is all.
    async fn arrived_as_far_as_allowed(&self) -> bool {
        let mut all = true;
        for (arrived, subscription) in self.broker.arrived().await.iter().zip(["default", "copy"]) {
            for (aggregate, versions) in arrived.iter().enumerate() {
                if let Some(fault) = self.model.fault(aggregate, versions) {
                    panic!("{subscription}: {fault}");
                }
                if aggregate == SKIPPING && self.broker.knows_subscriptions() {
                    self.passed_only_the_dead(subscription, versions);
                }
                all &= self.model.has_all(aggregate, versions);
            }
        }
        all
    }
}
