//! The database goes back in time: failover to a standby that lags, a disk restored. What the broker
//! has from the lost future is repeated or left alone, and nothing that is there now is dropped.

use std::time::{Duration, Instant};

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::{Health, Relay, RelayHandle};
use outbox_tests::{Proxy, SOON, TestDatabase, TestRedis, eventually, quick};
use xtask::postgres::{Durability, Options, Postgres};

use crate::log::Log;

const PATIENCE: Duration = Duration::from_secs(60);

/// The tick of a server whose clock is an hour ahead: those that follow lie above it.
const TICK_AHEAD: &str = "\
BEGIN;
SELECT pg_advisory_xact_lock(outbox.tick_lock_key());
INSERT INTO outbox.ticks (tick, mark, xid, snapshot, seq_before, seq_after)
SELECT tick + 3600000000, (random() * 1e15)::bigint, xid, snapshot, seq_before, seq_after
FROM outbox.ticks ORDER BY tick DESC LIMIT 1;
COMMIT";

fn server() -> Postgres {
    Postgres::start(Options::default().durability(Durability::None)).expect("PostgreSQL starts")
}

async fn start_relay(url: &str, redis: &TestRedis) -> RelayHandle {
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(url);
    let pool = bb8::Pool::builder().build(manager).await.expect("a pool opens nothing yet");
    let publisher = RedisPublisher::connect_lazily(redis.url()).expect("a Redis URL");
    Relay::builder(pool)
        .publisher(publisher.stream_prefix(redis.prefix()))
        .options(quick())
        .spawn()
        .expect("options that fit together")
}

/// Emits an event of one and the same aggregate: all of them are in one shard.
fn emit(database: &TestDatabase, name: &str) {
    database.sql(&format!(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('order', 'order', '1', '{name}', '{{}}')"
    ));
}

/// The types of the events in the stream, once there are as many, or patience is at its end.
async fn arrived(redis: &TestRedis, count: usize) -> Vec<String> {
    let mut conn = redis.connect().await;
    let stream = format!("{}order", redis.prefix());
    let until = Instant::now() + PATIENCE;
    loop {
        let mut range = redis::cmd("XRANGE");
        let range = range.arg(&stream).arg("-").arg("+").query_async(&mut conn).await;
        let range: redis::streams::StreamRangeReply = range.expect("reads");
        let name = |entry: &redis::streams::StreamId| entry.get("event_type").expect("a field");
        if range.ids.len() >= count || Instant::now() > until {
            return range.ids.iter().map(name).collect();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The standby has what the primary has, and from now on gets nothing.
async fn cut_off(primary: &TestDatabase, standby: &TestDatabase) {
    primary.sql("CREATE TABLE streamed ()");
    eventually(PATIENCE, async || {
        standby.value::<bool>("to_regclass('streamed') IS NOT NULL").then_some(())
    })
    .await;
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("SELECT pg_reload_conf()");
    eventually(PATIENCE, async || {
        primary.value::<bool>("SELECT NOT EXISTS (SELECT FROM pg_stat_replication)").then_some(())
    })
    .await;
}

/// The state that a lost future leaves: two events were delivered from ticks that were lost, and
/// the database has one event that it does not know to be delivered.
async fn live_on(database: &TestDatabase, redis: &TestRedis) {
    assert_eq!(arrived(redis, 1).await, ["kept"]);
    database.sql(TICK_AHEAD);
    for name in ["lost", "lost too"] {
        emit(database, name);
    }
    assert_eq!(arrived(redis, 3).await, ["kept", "lost", "lost too"]);
    // The fence has a tick that only this future has.
    let ahead = "SELECT max(tick) > extract(epoch FROM clock_timestamp()) * 1e6 FROM outbox.ticks";
    assert!(database.value::<bool>(ahead));
}

/// What is delivered in the end: every event that the database has now, once more or for the first
/// time, and behind what was there.
async fn nothing_is_dropped(database: &TestDatabase, redis: &TestRedis, log: &Log) {
    for name in ["new", "newer"] {
        emit(database, name);
    }
    let events = arrived(redis, 6).await;
    assert_eq!(events, ["kept", "lost", "lost too", "kept", "new", "newer"]);
    assert_eq!(database.value::<i64>("SELECT generation FROM outbox.subscriptions"), 2);
    assert_eq!(log.text().matches("it went back in time").count(), 1, "{}", log.text());
    // And then it goes on as ever.
    emit(database, "next");
    assert_eq!(arrived(redis, 7).await[6], "next");
}

#[tokio::test]
async fn after_a_failover_to_a_standby_that_lags_events_are_repeated_and_none_is_dropped() {
    let log = Log::default();
    let _guard = log.keep_warnings();
    let mut primary = server();
    let database = TestDatabase::on(&primary.url("postgres"));
    let redis = TestRedis::new();
    let standby = primary.start_standby().expect("a standby follows");
    emit(&database, "kept");
    let promoted = database.on_copy(&standby.url("postgres"));
    cut_off(&database, &promoted).await;

    let (network, url) = Proxy::before(&database.url()).await;
    let relay = start_relay(&url, &redis).await;
    live_on(&database, &redis).await;
    relay.shutdown().await;
    primary.kill().expect("it is ours");
    promoted.sql("SELECT pg_promote()");
    network.lead_to(standby.port());
    let relay = start_relay(&url, &redis).await;
    nothing_is_dropped(&promoted, &redis, &log).await;
    relay.shutdown().await;
}

#[tokio::test]
async fn after_a_disk_was_restored_events_are_repeated_and_none_is_dropped() {
    let log = Log::default();
    let _guard = log.keep_warnings();
    let mut server = server();
    let database = TestDatabase::on(&server.url("postgres"));
    let redis = TestRedis::new();
    emit(&database, "kept");
    let copy = server.copy().expect("a copy of the disk");
    let relay = start_relay(&database.url(), &redis).await;
    live_on(&database, &redis).await;
    relay.shutdown().await;
    server.restore(&copy).expect("the disk is restored");
    let relay = start_relay(&database.url(), &redis).await;
    nothing_is_dropped(&database, &redis, &log).await;
    relay.shutdown().await;
}

#[tokio::test]
async fn a_relay_that_lives_through_a_failover_takes_no_contact_of_before_for_its_own() {
    let log = Log::default();
    let _guard = log.keep_warnings();
    let mut primary = server();
    let database = TestDatabase::on(&primary.url("postgres"));
    let redis = TestRedis::new();
    let standby = primary.start_standby().expect("a standby follows");
    emit(&database, "kept");
    let promoted = database.on_copy(&standby.url("postgres"));
    cut_off(&database, &promoted).await;

    let (network, url) = Proxy::before(&database.url()).await;
    let relay = start_relay(&url, &redis).await;
    live_on(&database, &redis).await;
    primary.kill().expect("it is ours");
    promoted.sql("SELECT pg_promote()");
    network.lead_to(standby.port());
    nothing_is_dropped(&promoted, &redis, &log).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_at_a_standby_says_so_and_delivers_once_it_was_promoted() {
    let mut primary = server();
    let database = TestDatabase::on(&primary.url("postgres"));
    let redis = TestRedis::new();
    emit(&database, "a");
    let standby = primary.start_standby().expect("a standby follows");
    let promoted = database.on_copy(&standby.url("postgres"));
    let relay = start_relay(&promoted.url(), &redis).await;
    let cause = eventually(SOON, async || match relay.health() {
        Health::Interrupted { cause } => Some(cause),
        _ => None,
    })
    .await;
    assert!(cause.contains("read-only server"), "{cause}");
    promoted.sql("SELECT pg_promote()");
    assert_eq!(arrived(&redis, 1).await, ["a"]);
    assert_eq!(relay.health(), Health::Running);
    relay.shutdown().await;
}
