//! One writer, and its transactions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use diesel::connection::CacheSize;
use diesel::sql_types::{Array, BigInt, Text, Uuid as SqlUuid};
use diesel::{QueryResult, dsl, sql_query};
use diesel_async::{
    AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _, SimpleAsyncConnection as _,
};
use fastrand::Rng;
use outbox_diesel::AsyncEmit as _;
use tokio::time::{Interval, MissedTickBehavior};
use uuid::Uuid;

use super::{Shared, Writers};
use crate::TestEvent;
use crate::oracle::AGGREGATE_TYPE;

pub(super) struct Writer {
    rng: Rng,
    name: String,
    plan: Writers,
    shared: Arc<Shared>,
    prepared: u64,
    /// Whether the last prepared transaction may still be there, with its locks.
    in_doubt: bool,
    /// The events of the transaction that is under way.
    events: Vec<Uuid>,
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
    /// The nth of these.
    pub(super) fn new(plan: Writers, nth: u64, shared: Arc<Shared>) -> Self {
        Self {
            rng: Rng::with_seed(plan.seed.wrapping_add(nth)),
            name: format!("{:x}-{nth}", fastrand::u64(..)),
            plan,
            shared,
            prepared: 0,
            in_doubt: false,
            events: Vec::new(),
        }
    }

    /// Until it is told to stop.
    pub(super) async fn write(mut self) {
        let mut pace = self.plan.pace.map(pace);
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
                self.events.clear();
                let ended = match &mut pace {
                    Some(pace) => {
                        pace.tick().await;
                        self.plain(&mut conn).await
                    }
                    None => self.transaction(&mut conn).await,
                };
                match ended {
                    Ok(true) => self.note_commit(),
                    Ok(false) => {}
                    // The server is away, or has refused: only a new connection is sure to be good.
                    Err(_) => break,
                }
                if pace.is_none() {
                    self.rest(self.plan.pause).await;
                }
            }
        }
    }

    fn note_commit(&mut self) {
        let now = SystemTime::now();
        self.shared.committed.fetch_add(1, Ordering::Relaxed);
        let mut commits = self.shared.commits.lock().unwrap_or_else(PoisonError::into_inner);
        commits.extend(self.events.drain(..).map(|id| (id, now)));
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

    /// One that changes one aggregate and commits.
    async fn plain(&mut self, conn: &mut AsyncPgConnection) -> QueryResult<bool> {
        let id = self.rng.i64(1..=self.plan.aggregates);
        conn.batch_execute("BEGIN").await?;
        self.change(conn, &[id]).await?;
        self.end(conn, End::Commit).await
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
        let emitted = if events.len() == 1 && self.rng.u8(..5) == 0 {
            vec![insert(conn, &events[0]).await?]
        } else {
            emit(conn, &events).await?
        };
        let aggregates: Vec<i64> = events.iter().map(|(id, ..)| *id).collect();
        let versions: Vec<i64> = events.iter().map(|(_, version, _)| *version).collect();
        sql_query("INSERT INTO history SELECT * FROM unnest($1, $2, $3)")
            .bind::<Array<SqlUuid>, _>(&emitted)
            .bind::<Array<BigInt>, _>(aggregates)
            .bind::<Array<BigInt>, _>(versions)
            .execute(conn)
            .await?;
        self.events.extend(emitted);
        Ok(())
    }

    async fn rest(&mut self, longest: Duration) {
        let pause = longest.mul_f64(self.rng.f64());
        tokio::time::sleep(pause).await;
    }
}

/// Aggregate, version, topic.
type Change = (i64, i64, String);

/// As any language would.
async fn insert(conn: &mut AsyncPgConnection, (id, version, topic): &Change) -> QueryResult<Uuid> {
    dsl::sql::<SqlUuid>(&format!(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('{topic}', '{AGGREGATE_TYPE}', '{id}', 'account.changed', '{{\"v\":{version}}}')
         RETURNING id"
    ))
    .get_result(conn)
    .await
}

async fn emit(conn: &mut AsyncPgConnection, changes: &[Change]) -> QueryResult<Vec<Uuid>> {
    let events: Vec<TestEvent> = changes
        .iter()
        .map(|(id, version, topic)| {
            TestEvent::new(id)
                .aggregate_type(AGGREGATE_TYPE)
                .event_type("account.changed")
                .topic(topic)
                .payload(format!(r#"{{"v":{version}}}"#))
        })
        .collect();
    Ok(match events.as_slice() {
        [event] => vec![conn.emit(event).await?.id()],
        several => conn.emit_all(several).await?.iter().map(outbox_diesel::Emitted::id).collect(),
    })
}

/// Late transactions are made up for, so that the rate holds over time.
fn pace(pause: Duration) -> Interval {
    let mut pace = tokio::time::interval(pause);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    pace
}
