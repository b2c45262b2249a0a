//! What each trouble does.

use std::time::{Duration, Instant};

use diesel_async::{AsyncConnection as _, AsyncPgConnection, SimpleAsyncConnection as _};
use tokio::time::sleep;

use super::schedule::{Step, Trouble};
use super::stage::Stage;
use crate::oracle::AGGREGATE_TYPE;

/// An ordinary jump of the sequence, as after a crash, only larger.
const TO_NEXT_PARTITION: &str = "\
SELECT setval('outbox.event_seq', min(from_seq)) FROM outbox.leaves
WHERE from_seq > pg_sequence_last_value('outbox.event_seq')";

/// As relays do each minute.
const RETENTION: [&str; 3] = [
    "SELECT outbox.keep_partitions_ahead()",
    "SELECT outbox.retire_partition('0')",
    "SELECT outbox.drop_retired_partition()",
];

impl Stage {
    /// Goes through one trouble, from its beginning to its end.
    pub(super) async fn suffer(&self, Step { lasts, trouble, .. }: Step) {
        let since = Instant::now();
        match trouble {
            Trouble::KillRelay(n) => {
                self.hosts[n].kill_relay();
                sleep(lasts).await;
                self.hosts[n].start_relay();
            }
            Trouble::FreezeRelay(n) => {
                self.hosts[n].freeze_relay();
                sleep(lasts).await;
                self.hosts[n].thaw_relay();
            }
            Trouble::CutPostgres(n) => self.hosts[n].postgres.cut(),
            Trouble::CutRedis(n) => self.hosts[n].redis.cut(),
            Trouble::SilencePostgres(n) => {
                self.hosts[n].postgres.silence();
                sleep(lasts).await;
                self.hosts[n].postgres.resume();
                self.note_outage(since);
            }
            Trouble::SilenceRedis(n) => {
                self.hosts[n].redis.silence();
                sleep(lasts).await;
                self.hosts[n].redis.resume();
                self.note_outage(since);
            }
            Trouble::CrashPostgres => {
                self.with_postgres(|server| server.kill().expect("it is ours")).await;
                sleep(lasts).await;
                self.with_postgres(|server| server.restart().expect("it recovers")).await;
                self.note_outage(since);
            }
            Trouble::CrashRedis => {
                self.with_redis(|server| server.kill().expect("it is ours")).await;
                sleep(lasts).await;
                self.with_redis(|server| server.restart().expect("it starts again")).await;
                self.note_outage(since);
            }
            Trouble::FreezeRedis => {
                self.with_redis(|server| server.pause().expect("it is ours")).await;
                sleep(lasts).await;
                self.with_redis(|server| server.resume().expect("it is ours")).await;
                self.note_outage(since);
            }
            Trouble::PauseRedis => {
                self.pause_redis(lasts).await;
                self.note_outage(since);
            }
            Trouble::HoldTransaction => self.hold_transaction(lasts).await,
            Trouble::HoldPrepared => self.hold_prepared(lasts).await,
            Trouble::RollPartition => self.roll_partition().await,
        }
    }

    async fn pause_redis(&self, lasts: Duration) {
        let mut conn = self.scene.redis().connect().await;
        let millis = u64::try_from(lasts.as_millis()).expect("a few seconds");
        let mut pause = redis::cmd("CLIENT");
        pause.arg("PAUSE").arg(millis).arg("ALL");
        pause.exec_async(&mut conn).await.expect("Redis can be paused");
        sleep(lasts).await;
    }

    /// A server that crashes meanwhile takes the transaction along, and rightly so.
    async fn hold_transaction(&self, lasts: Duration) {
        let Ok(mut conn) = self.begin_and_emit().await else { return };
        sleep(lasts).await;
        conn.batch_execute("COMMIT").await.ok();
    }

    /// What is prepared outlives crashes, and is committed after them.
    async fn hold_prepared(&self, lasts: Duration) {
        let Ok(mut conn) = self.begin_and_emit().await else { return };
        let gid = format!("held-{:x}", fastrand::u64(..));
        // A connection that was lost may have prepared it all the same: the commit will tell.
        conn.batch_execute(&format!("PREPARE TRANSACTION '{gid}'")).await.ok();
        sleep(lasts).await;
        let commit = format!("COMMIT PREPARED '{gid}'");
        while let Err(error) = self.sql(&[&commit]).await {
            if error.to_string().contains("does not exist") {
                break;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// An event of an aggregate of its own, so that it holds up no writer.
    async fn begin_and_emit(&self) -> Result<AsyncPgConnection, diesel::ConnectionError> {
        let mut conn = AsyncPgConnection::establish(&self.scene.database().url()).await?;
        let id = fastrand::i64(1_000_000..i64::MAX);
        let begin = format!(
            "BEGIN;
             INSERT INTO ledger VALUES ({id}, 1);
             WITH event AS (
                 INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('a', '{AGGREGATE_TYPE}', '{id}', 'account.changed', '{{\"v\":1}}') RETURNING id)
             INSERT INTO history SELECT id, {id}, 1 FROM event"
        );
        conn.batch_execute(&begin)
            .await
            .map_err(diesel::ConnectionError::CouldntSetupConfiguration)?;
        Ok(conn)
    }

    /// A server that is away, or a lock that is not to be had, puts it off to the next time.
    async fn roll_partition(&self) {
        let statements = [&[TO_NEXT_PARTITION][..], &RETENTION].concat();
        if let Err(error) = self.sql(&statements).await {
            eprintln!("rolling a partition was put off: {error}");
        }
    }
}
