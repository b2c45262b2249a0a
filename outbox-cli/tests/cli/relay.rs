//! `outbox relay`.

use nix::sys::signal::Signal;
use outbox_tests::{TestDatabase, TestRedis, eventually};
use redis::AsyncCommands as _;

use crate::program::{PATIENCE, Running, free_port, http};

/// How many entries a stream has.
async fn length(redis: &TestRedis, topic: &str) -> u64 {
    let mut conn = redis.connect().await;
    conn.xlen(format!("{}{topic}", redis.prefix())).await.expect("a stream, or nothing")
}

fn insert(database: &TestDatabase, topic: &str, aggregate: &str) {
    database.sql(&format!(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('{topic}', 'order', '{aggregate}', 'order.placed', '{{}}')"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_delivers_and_stops_cleanly_on_either_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let (database, redis) = (TestDatabase::new(), TestRedis::new());
        let mut relay = Running::relay(&database.url(), &redis.url(), redis.prefix(), &[]);
        for order in ["a", "b", "c"] {
            insert(&database, "orders", order);
        }
        eventually(PATIENCE, async || (length(&redis, "orders").await == 3).then_some(())).await;
        assert!(
            database.value::<bool>("SELECT count(*) = 1 FROM outbox.relays WHERE host = 'box'")
        );
        relay.signal(signal);
        let (code, log) = relay.end().await;
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("the relay starts") && log.contains("stopped"), "{log}");
        assert!(!log.contains('\x1b'), "colours in a file: {log}");
        // Shards are given back, and it has said goodbye.
        assert!(database.value::<bool>("SELECT bool_and(owner IS NULL) FROM outbox.cursors"));
        assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.relays"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_come_from_the_environment_too() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let created = crate::program::outbox(
        &database,
        &["subscriptions", "create", "audit", "--start", "earliest"],
    );
    assert!(created.said().contains("created audit"));
    let mut command = crate::program::command(&database.url());
    command.arg("relay").env("REDIS_URL", redis.url()).env("OUTBOX_STREAM_PREFIX", redis.prefix());
    command.env("OUTBOX_SUBSCRIPTION", "audit").env("OUTBOX_STREAMS", "single:all");
    let _relay = Running::start(command);
    insert(&database, "orders", "a");
    insert(&database, "carts", "b");
    eventually(PATIENCE, async || (length(&redis, "all").await == 2).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_scripts_is_named_with_the_option_that_does_without() {
    let options = xtask::redis::Options::default().disabled("EVAL").disabled("EVALSHA");
    let server = xtask::redis::Redis::start(options).expect("a private Redis starts");
    let (database, redis) = (TestDatabase::new(), TestRedis::on(&server.url()));
    insert(&database, "orders", "a");
    let mut relay = Running::relay(&database.url(), &redis.url(), redis.prefix(), &[]);
    let told = "SELECT count(*) > 0 FROM outbox.relays WHERE reason LIKE '%--without-scripts%'";
    eventually(PATIENCE, async || database.value::<bool>(told).then_some(())).await;
    relay.signal(Signal::SIGTERM);
    relay.end().await;
    assert_eq!(length(&redis, "orders").await, 0);

    let arguments = ["--without-scripts"];
    let _relay = Running::relay(&database.url(), &redis.url(), redis.prefix(), &arguments);
    eventually(PATIENCE, async || (length(&redis, "orders").await == 1).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_its_broker_is_alive_and_not_ready() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let relay =
        Running::relay(&database.url(), &redis.url(), redis.prefix(), &["--listen", &address]);
    eventually(PATIENCE, async || {
        http(port, "/readyz").filter(|said| said.starts_with("HTTP/1.1 200"))
    })
    .await;
    assert!(http(port, "/healthz").unwrap().starts_with("HTTP/1.1 200"));
    assert!(http(port, "/else").unwrap().starts_with("HTTP/1.1 404"));
    drop(relay);

    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let _relay =
        Running::relay(&database.url(), "redis://127.0.0.1:1/", "x", &["--listen", &address]);
    insert(&database, "orders", "a");
    let said = eventually(PATIENCE, async || {
        http(port, "/readyz").filter(|said| said.contains("unavailable"))
    })
    .await;
    assert!(said.starts_with("HTTP/1.1 503"), "{said}");
    assert!(http(port, "/healthz").unwrap().starts_with("HTTP/1.1 200"));
}
