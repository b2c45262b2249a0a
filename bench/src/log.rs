//! [`Log`]: a database full of events, drained again and again by new subscriptions.

use std::time::{Duration, Instant};

use diesel_async::AsyncPgConnection;
use outbox_diesel::subscription::{self, Start};
use outbox_tests::{TestDatabase, backlog};
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;

use crate::judge::Judge;
use crate::process::{self, Spent};
use crate::side::Side;
use crate::{Outcome, Servers};

/// What the log consists of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) events: u32,
    pub(crate) aggregates: u32,
    pub(crate) bytes: u32,
    /// None: as the migration has them.
    pub(crate) partitions: Option<u32>,
}

impl Shape {
    /// These many events of 200 bytes, spread over 5,000 aggregates.
    pub(crate) fn of(events: u32) -> Self {
        // Every aggregate has the same number of events.
        let aggregates = 5_000.min(events.max(1));
        Self { events: events - events % aggregates, aggregates, bytes: 200, partitions: None }
    }
}

/// How one relay, or several, drained it.
#[derive(Debug)]
pub(crate) struct Drained {
    pub(crate) events_per_second: f64,
    pub(crate) peak_memory: f64,
}

/// The log.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) database: TestDatabase,
    pub(crate) redis: String,
    pub(crate) shape: Shape,
    subscriptions: u32,
}

impl Shape {
    /// No event yet.
    pub(crate) fn none() -> Self {
        Self { events: 0, aggregates: 1, bytes: 0, partitions: None }
    }
}

/// The topic that `backlog` emits to.
const TOPIC: &str = "a";

impl Log {
    /// Emits the events into a new database.
    pub(crate) fn new(servers: &Servers, shape: Shape) -> Self {
        let database = TestDatabase::on(&servers.database);
        if let Some(partitions) = shape.partitions {
            partition(&database, shape.events, partitions);
        }
        let log = Self { database, redis: servers.redis.clone(), shape, subscriptions: 0 };
        if shape.events > 0 {
            log.emit();
            // What PostgreSQL would do of itself later is not to be counted to whoever reads next.
            log.database.sql("VACUUM (FREEZE, ANALYZE) outbox.events");
            log.database.sql("CHECKPOINT");
        }
        log
    }

    /// Emits the events, in one transaction or, if they are very many bytes, in several.
    pub(crate) fn emit(&self) {
        let Shape { events, aggregates, bytes, .. } = self.shape;
        let step = if bytes > 100_000 { aggregates } else { events };
        for _ in 0..events / step {
            backlog(&self.database, step, aggregates, bytes);
        }
    }

    /// A subscription that has everything before it.
    pub(crate) async fn subscribe(&mut self, start: Start, topics: &[&str]) -> Outcome<String> {
        self.subscriptions += 1;
        let name = format!("bench-{}", self.subscriptions);
        let mut conn = self.database.connect().await;
        subscription::create(&mut conn, &name, start, topics).await?;
        Ok(name)
    }

    /// Starts a relay to Redis; streams begin with the prefix.
    pub(crate) async fn relay(&self, subscription: &str, prefix: &str) -> Outcome<Side> {
        self.relay_with(subscription, prefix, &[]).await
    }

    /// The same with options: see [`Side`].
    pub(crate) async fn relay_with(
        &self,
        subscription: &str,
        prefix: &str,
        options: &[&str],
    ) -> Outcome<Side> {
        let url = self.database.url();
        let arguments = ["relay", &url, subscription, &self.redis, prefix];
        let arguments = [&arguments, options].concat();
        Side::start(&arguments).await
    }

    /// Drains everything into Redis, and looks at what has arrived.
    pub(crate) async fn drain(&mut self) -> Outcome<Drained> {
        self.drain_with(&[]).await
    }

    /// The same with metrics and a log.
    pub(crate) async fn drain_observed(&mut self) -> Outcome<Drained> {
        self.drain_with(&["--observed"]).await
    }

    async fn drain_with(&mut self, options: &[&str]) -> Outcome<Drained> {
        let subscription = self.subscribe(Start::Earliest, &[]).await?;
        let stream = stream_of(&subscription);
        let prefix = format!("{subscription}:");
        let mut relay = self.relay_with(&subscription, &prefix, options).await?;
        let mut conn = self.connect().await?;
        let spent = Spent::from_now(relay.pid(), &self.database, redis_pid(&mut conn).await?);
        let started = Instant::now();
        relay.go().await?;
        let events = u64::from(self.shape.events);
        wait_for(&mut conn, &stream, events).await?;
        let seconds = started.elapsed().as_secs_f64();
        spent.tell("drain", &self.database, f64::from(self.shape.events), seconds);
        self.wait_for_settle(&subscription).await;
        let peak_memory = process::peak_memory(relay.pid());
        relay.end().await?;
        judge(&mut conn, &stream, Judge::default(), self.shape).await?;
        forget(&mut conn, &stream).await?;
        Ok(Drained { events_per_second: f64::from(self.shape.events) / seconds, peak_memory })
    }

    /// Drains everything into a counting publisher; events per second.
    pub(crate) async fn count(&mut self) -> Outcome<f64> {
        let subscription = self.subscribe(Start::Earliest, &[]).await?;
        let events = self.shape.events.to_string();
        let mut relay =
            Side::start(&["counting", &self.database.url(), &subscription, &events]).await?;
        let started = Instant::now();
        relay.go().await?;
        let wrong = relay.done().await?;
        let seconds = started.elapsed().as_secs_f64();
        relay.end().await?;
        if wrong.is_empty() {
            Ok(f64::from(self.shape.events) / seconds)
        } else {
            Err(wrong.into())
        }
    }

    /// Waits until the subscription's cursors say that everything is done.
    pub(crate) async fn wait_for_settle(&self, subscription: &str) {
        let settled = format!(
            "SELECT bool_and(tick >= (SELECT max(tick) FROM outbox.ticks)) FROM outbox.cursors
             WHERE subscription = '{subscription}'"
        );
        while !self.database.value::<bool>(&settled) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until each of so many relays has its share of the shards.
    pub(crate) async fn wait_for_shares(&self, subscription: &str, relays: usize) {
        let shares = format!(
            "SELECT count(DISTINCT owner) FROM outbox.cursors WHERE subscription = '{subscription}'"
        );
        let even = format!(
            "SELECT coalesce(max(n) - min(n) <= 1 AND sum(n) = 16, false)
             FROM (SELECT count(*) AS n FROM outbox.cursors
                   WHERE subscription = '{subscription}' AND owner IS NOT NULL GROUP BY owner) s"
        );
        let enough =
            || usize::try_from(self.database.value::<i64>(&shares)).is_ok_and(|n| n >= relays);
        while !enough() || !self.database.value::<bool>(&even) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Bytes of WAL written so far, by anybody.
    pub(crate) fn wal(&self) -> f64 {
        let bytes: i64 = self
            .database
            .value("SELECT (pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0'))::bigint");
        #[expect(clippy::cast_precision_loss, reason = "no server has written 2^53 bytes of WAL")]
        let bytes = bytes as f64;
        bytes
    }

    /// A connection to Redis.
    pub(crate) async fn connect(&self) -> Outcome<MultiplexedConnection> {
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(60)));
        let client = redis::Client::open(self.redis.as_str())?;
        Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
    }

    /// A connection to PostgreSQL.
    pub(crate) async fn postgres(&self) -> AsyncPgConnection {
        self.database.connect().await
    }
}

/// As many partitions as asked for, of equal size, for these events.
fn partition(database: &TestDatabase, events: u32, partitions: u32) {
    let size = events.div_ceil(partitions).max(1) + 1;
    database.sql(&format!(
        "DO $$ DECLARE leaf regclass; BEGIN
             FOR leaf IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass
                         AND inhrelid <> 'outbox.events_default'::regclass LOOP
                 EXECUTE format('DROP TABLE %s', leaf);
             END LOOP;
         END $$;
         SELECT outbox.create_partition(n * {size}::bigint, (n + 1) * {size}::bigint)
         FROM generate_series(0, {partitions} - 1) n"
    ));
}

async fn redis_pid(conn: &mut MultiplexedConnection) -> Outcome<u32> {
    let server: String = redis::cmd("INFO").arg("server").query_async(conn).await?;
    let pid = server.lines().find_map(|line| line.strip_prefix("process_id:"));
    Ok(pid.ok_or("Redis does not tell its process id")?.trim().parse()?)
}

/// Waits for so many entries. Asks rarely: Redis is busy.
pub(crate) async fn wait_for(
    conn: &mut MultiplexedConnection,
    stream: &str,
    events: u64,
) -> Outcome {
    while conn.xlen::<_, u64>(stream).await? < events {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Reads the stream from its start, and fails unless all is there, once and in order.
pub(crate) async fn judge(
    conn: &mut MultiplexedConnection,
    stream: &str,
    mut judge: Judge,
    shape: Shape,
) -> Outcome {
    let page = (16 * 1024 * 1024 / shape.bytes.max(1)).clamp(1, 1000);
    let mut from = "-".to_owned();
    loop {
        let entries: StreamRangeReply = conn.xrange_count(stream, &from, "+", page).await?;
        let Some(last) = entries.ids.last() else { break };
        from = format!("({}", last.id);
        for entry in &entries.ids {
            let text = |field| entry.get::<String>(field).unwrap_or_default();
            judge.see(&text("aggregate_id"), &text("payload"));
        }
    }
    Ok(judge.verdict(u64::from(shape.events)).map_err(|wrong| format!("{stream}: {wrong}"))?)
}

/// Deletes the stream and its fence.
pub(crate) async fn forget(conn: &mut MultiplexedConnection, stream: &str) -> Outcome {
    let fence = format!("outbox:fence:{{{stream}}}");
    Ok(conn.unlink(&[stream, &fence]).await?)
}

/// The stream of a subscription's events.
pub(crate) fn stream_of(subscription: &str) -> String {
    format!("{subscription}:{TOPIC}")
}
