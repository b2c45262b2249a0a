//! Connections that fall silent, hosts that need all theirs, brokers that went back in time.

use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use outbox_diesel::Relay;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_tests::{SOON, TestDatabase, TestRedis, eventually, insert, orders, quick};
use redis::AsyncCommands as _;
use xtask::postgres::{Durability, Options, Postgres};

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_fall_silent_are_given_up_and_replaced() {
    let server = Postgres::start(Options::default().durability(Durability::None)).unwrap();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    database.insert("before");
    orders(&broker, 1).await;
    let pids: String = database.value(
        "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'relay'",
    );
    let pids: Vec<_> = pids.split(' ').map(|pid| Pid::from_raw(pid.parse().unwrap())).collect();
    assert_eq!(pids.len(), 2, "work and heartbeat");
    // No error, no end of file: nothing is heard of them any more.
    for pid in &pids {
        kill(*pid, Signal::SIGSTOP).unwrap();
    }
    database.insert("meanwhile");
    let sent = orders(&broker, 2).await;
    for pid in &pids {
        kill(*pid, Signal::SIGCONT).unwrap();
    }
    assert_eq!(sent, ["before", "meanwhile"]);
    database.insert("after");
    assert_eq!(orders(&broker, 3).await, ["before", "meanwhile", "after"]);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_froze_on_the_cursors_holds_a_relay_up_only_while_it_is_there() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    relay.ready().await.unwrap();
    let mut frozen = database.sync();
    frozen.batch_execute("BEGIN; SELECT FROM outbox.cursors FOR UPDATE").unwrap();
    let events: Vec<_> = (0..100).map(|n| insert(&n.to_string())).collect();
    database.sql(&events.join(";"));
    // Longer than a lease.
    let pause = outbox_tests::quick_lease() + Duration::from_secs(1);
    tokio::time::sleep(pause).await;
    frozen.batch_execute("ROLLBACK").unwrap();
    orders(&broker, 100).await;
    relay.drained().await.unwrap();
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_uses_up_its_pool_does_not_stop_the_relay_nor_the_relay_the_host() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database.url());
    let pool = bb8::Pool::builder()
        .max_size(1)
        .connection_timeout(Duration::from_millis(200))
        .build(manager)
        .await
        .unwrap();
    let taken = pool.get().await.unwrap();
    let relay = Relay::builder(pool.clone()).publisher(broker.clone()).options(quick());
    let relay = relay.spawn().unwrap();
    database.insert("a");
    assert_eq!(orders(&broker, 1).await, ["a"]);
    assert!(pool.get().await.is_err(), "the host has the only one");
    drop(taken);
    // The relay has taken none: half of those that ask give up early, and the rest is served.
    for n in 0..50 {
        let patience = Duration::from_millis(if n % 2 == 0 { 1 } else { 5000 });
        let got = tokio::time::timeout(patience, pool.get()).await;
        assert!(n % 2 == 0 || got.is_ok_and(|got| got.is_ok()));
    }
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_went_back_in_time_gets_all_that_comes_after_once() {
    let database = TestDatabase::new();
    let redis = TestRedis::new();
    let publisher = RedisPublisher::connect_lazily(redis.url()).unwrap();
    let relay = database.relay(publisher.stream_prefix(redis.prefix())).await;
    let stream = format!("{}order", redis.prefix());
    let mut conn = redis.connect().await;
    let emit = |range: std::ops::Range<usize>| {
        let events: Vec<_> = range.map(|n| insert(&n.to_string())).collect();
        database.sql(&events.join(";"));
    };
    emit(0..10);
    relay.drained().await.unwrap();
    // Everything of the prefix, as a snapshot has it: streams, fences, keys of retries.
    let pattern = format!("*{}*", redis.prefix());
    let keys: Vec<String> = conn.keys(&pattern).await.unwrap();
    assert!(keys.len() > 1, "{keys:?}");
    let mut saved = Vec::new();
    for key in &keys {
        let dump: Vec<u8> = redis::cmd("DUMP").arg(key).query_async(&mut conn).await.unwrap();
        saved.push((key, dump));
    }
    emit(10..20);
    relay.drained().await.unwrap();
    for (key, dump) in saved {
        let restore = redis::cmd("RESTORE").arg(key).arg(0).arg(dump).arg("REPLACE").to_owned();
        let () = restore.query_async(&mut conn).await.unwrap();
    }
    emit(20..30);
    relay.drained().await.unwrap();
    relay.shutdown().await;
    let entries: redis::streams::StreamRangeReply = conn.xrange_all(&stream).await.unwrap();
    let mut ids: Vec<usize> = entries
        .ids
        .iter()
        .map(|entry| entry.get::<String>("aggregate_id").unwrap().parse().unwrap())
        .collect();
    ids.sort_unstable();
    // What Redis forgot it had taken; the rest is there once.
    let expected: Vec<_> = (0..10).chain(20..30).collect();
    assert_eq!(ids, expected);
    let parked = "SELECT count(*) = 0 FROM outbox.parked";
    eventually(SOON, async || database.value::<bool>(parked).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_take_longer_than_a_lease_together_are_published_once() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(400));
    let options = quick().batch_events(2);
    let relays = [
        database.relay_with(broker.clone(), options.clone()).await,
        database.relay_with(broker.clone(), options).await,
    ];
    let events: Vec<_> = (0..20).map(|_| insert("one shard")).collect();
    database.sql(&events.join(";"));
    orders(&broker, 20).await;
    for relay in relays {
        relay.shutdown().await;
    }
    assert_eq!((broker.delivered().len(), broker.repeats()), (20, 0));
}
