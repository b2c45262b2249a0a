//! Outages: of the database and of the broker. Nothing is lost, nothing spins, nobody restarts it.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::{AsyncEmit as _, Health, Relay};
use outbox_tests::{Hooked, SOON, TestDatabase, TestEvent, TestRedis, eventually, orders, quick};
use redis::AsyncCommands as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use xtask::postgres::{Durability, Options, Postgres};
use xtask::redis::Redis;

/// What was logged, on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Everything at trace level, from now until the guard is dropped. The test must run on one
    /// thread.
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let guard = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .set_default();
        (log, guard)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Lines that an operator sees.
    fn lines(&self) -> usize {
        let text = self.text();
        let seen = |line: &&str| [" INFO ", " WARN ", "ERROR "].iter().any(|l| line.contains(l));
        text.lines().filter(seen).filter(|line| line.contains("outbox_diesel")).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for_quietly() {
    let (log, _guard) = Log::start();
    let mut server = Postgres::start(Options::default().durability(Durability::None)).unwrap();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    database.insert("before");
    orders(&broker, 1).await;
    let running = log.lines();
    server.stop().unwrap();
    let away = Instant::now();
    eventually(SOON, async || {
        let waits = matches!(relay.health(), Health::Interrupted { .. });
        (waits && away.elapsed() > Duration::from_secs(4)).then_some(())
    })
    .await;
    let said = log.lines() - running;
    assert!((1..=8).contains(&said), "{said} lines: {}", log.text());
    server.restart().unwrap();
    database.insert("after");
    assert_eq!(orders(&broker, 2).await, ["before", "after"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_at_any_moment_lose_and_repeat_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(2));
    let options = quick().batch_events(5);
    let relays = [
        database.relay_with(broker.clone(), options.clone()).await,
        database.relay_with(broker.clone(), options).await,
    ];
    let expected: Vec<_> = (0..300).map(|n| n.to_string()).collect();
    for (n, order) in expected.iter().enumerate() {
        database.insert(order);
        if n % 15 == 0 {
            database.cut_relays();
        }
    }
    let mut sent = orders(&broker, 300).await;
    for relay in relays {
        relay.shutdown().await;
    }
    sent.sort_by_key(|order| order.parse::<u32>().unwrap());
    assert_eq!(sent, expected);
    assert_eq!(broker.delivered().len(), 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_transaction_stays_open_while_the_broker_takes_its_time() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.hang();
    let relay = database.relay(broker.clone()).await;
    database.insert("a");
    let open = "SELECT EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'relay'
          AND xact_start < clock_timestamp() - interval '200 ms')";
    eventually(SOON, async || {
        assert!(!database.value::<bool>(open), "a transaction is open");
        matches!(relay.health(), Health::BrokerUnavailable { .. }).then_some(())
    })
    .await;
    broker.come_back();
    orders(&broker, 1).await;
    relay.shutdown().await;
    assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_unknown_outcome_is_neither_lost_nor_sent_twice() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), quick().batch_events(3)).await;
    for round in 0..10 {
        broker.lose_answers(1);
        for n in 0..4 {
            database.insert(&format!("{round}-{n}"));
        }
    }
    let sent = orders(&broker, 40).await;
    relay.shutdown().await;
    let mut unique = sent.clone();
    unique.sort();
    unique.dedup();
    assert_eq!((sent.len(), unique.len(), broker.delivered().len()), (40, 40, 40));
    assert!(broker.repeats() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_larger_than_a_batch_and_batches_of_one_event_go_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    let large = format!("\"{}\"", "x".repeat(3 << 20));
    let large = TestEvent::new("large").payload_limit(4 << 20).payload(large);
    conn.transaction(async |conn| {
        conn.emit(&TestEvent::new("before")).await?;
        conn.emit(&large).await?;
        conn.emit(&TestEvent::new("after")).await
    })
    .await
    .unwrap();
    let options = quick().batch_bytes(1 << 20);
    let relay = database.relay_with(broker.clone(), options).await;
    assert_eq!(orders(&broker, 3).await, ["before", "large", "after"]);
    relay.shutdown().await;
    let relay = database.relay_with(broker.clone(), quick().batch_events(1).batch_bytes(1)).await;
    for n in 0..20 {
        database.insert(&n.to_string());
    }
    assert_eq!(orders(&broker, 23).await.len(), 23);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_in_the_middle_of_a_delivery_finishes_it_and_gives_the_shards_back() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(300));
    let (started, mut has_started) = tokio::sync::mpsc::unbounded_channel();
    let hooked = Hooked::new(&broker, move |_| {
        started.send(()).ok();
        None
    });
    let relay = database.relay_with(hooked, quick()).await;
    database.insert("a");
    has_started.recv().await.unwrap();
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 1);
    assert!(database.value::<bool>("SELECT bool_and(owner IS NULL) FROM outbox.cursors"));
    assert!(database.value::<bool>("SELECT bool_or(tick > 0) FROM outbox.cursors"));
}

#[tokio::test]
async fn neither_passwords_nor_payloads_are_logged_at_any_level() {
    let (log, _guard) = Log::start();
    let database = TestDatabase::new();
    // Nobody listens there.
    let url = "postgres://user:hunter2@127.0.0.1:1/none";
    let pool = bb8::Pool::builder()
        .build(AsyncDieselConnectionManager::<AsyncPgConnection>::new(url))
        .await
        .unwrap();
    let relay = Relay::builder(pool).publisher(RecordingPublisher::default());
    let shown = format!("{relay:?}");
    let relay = relay.options(quick()).spawn().unwrap();
    let cause = eventually(SOON, async || match relay.health() {
        Health::Interrupted { cause } => Some(cause),
        _ => None,
    })
    .await;
    relay.shutdown().await;

    let broker = RecordingPublisher::default();
    broker.reject(|event| {
        (event.aggregate_id() == "bad").then(|| String::from("the schema does not match"))
    });
    let relay = database.relay(broker.clone()).await;
    for order in ["bad", "good"] {
        let insert =
            outbox_tests::insert(order).replace("'{}'", "'{\"email\": \"ann@example.com\"}'");
        database.sql(&insert);
    }
    orders(&broker, 1).await;
    relay.shutdown().await;
    let errors: String = database.value("SELECT string_agg(error, ' ') FROM outbox.parked");
    let own = |line: &&str| line.contains("outbox_diesel");
    let logged: String = log.text().lines().filter(own).collect();
    for text in [shown, cause, logged, errors] {
        assert!(!text.contains("hunter2") && !text.contains("ann@example.com"), "{text}");
    }
}

#[tokio::test]
async fn a_redis_that_may_evict_streams_is_warned_of_once() {
    for (policy, warnings) in [("noeviction", 0), ("volatile-lru", 0), ("allkeys-lru", 1)] {
        let (log, _guard) = Log::start();
        let options = xtask::redis::Options::default().setting("maxmemory-policy", policy);
        let server = Redis::start(options).unwrap();
        let (database, redis) = (TestDatabase::new(), TestRedis::on(&server.url()));
        let publisher = RedisPublisher::connect_lazily(redis.url()).unwrap();
        let relay = database.relay(publisher.stream_prefix(redis.prefix())).await;
        let mut conn = redis.connect().await;
        for round in 1..=2 {
            database.insert("a");
            let stream = format!("{}order", redis.prefix());
            eventually(SOON, async || {
                (conn.clone().xlen::<_, usize>(&stream).await.ok()? == round).then_some(())
            })
            .await;
            // It connects anew for the next one.
            let kill = ["KILL", "TYPE", "normal", "SKIPME", "yes"];
            let _: i64 = redis::cmd("CLIENT").arg(&kill).query_async(&mut conn).await.unwrap();
        }
        relay.shutdown().await;
        let text = log.text();
        let said = text.lines().filter(|line| line.contains("may evict streams")).count();
        assert_eq!(said, warnings, "{policy}");
    }
}
