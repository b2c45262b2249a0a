//! `/metrics` of `outbox relay`.

use outbox_tests::{TestDatabase, TestRedis, eventually};
use redis::AsyncCommands as _;

use crate::program::{PATIENCE, Running, free_port, http};

/// A relay that can be scraped.
pub(crate) struct Scraped {
    port: u16,
    _relay: Running,
}

impl Scraped {
    pub(crate) fn start(database: &TestDatabase, redis: &str, prefix: &str) -> Self {
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let arguments = ["--listen", &address, "--retry-attempts", "1", "--retry-base", "1ms"];
        let relay = Running::relay(&database.url(), redis, prefix, &arguments);
        Self { port, _relay: relay }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The text for Prometheus.
    pub(crate) fn scrape(&self) -> Option<String> {
        let answer = http(self.port, "/metrics")?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
    }

    /// What a series says.
    fn value(&self, series: &str) -> Option<f64> {
        let scrape = self.scrape()?;
        let line = scrape.lines().find_map(|line| line.strip_prefix(series))?;
        line.trim().parse().ok()
    }

    /// Waits until a series of the default subscription says this.
    async fn tells(&self, metric: &str, expected: f64) {
        let series = format!("{metric}{{subscription=\"default\"}}");
        eventually(PATIENCE, async || {
            let value = self.value(&series)?;
            (value.total_cmp(&expected).is_eq() || (value.is_nan() && expected.is_nan()))
                .then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_sees_what_a_relay_delivers_and_how_the_database_is() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let relay = Scraped::start(&database, &redis.url(), redis.prefix());
    for order in ["a", "b", "c"] {
        database.insert(order);
    }
    relay.tells("outbox_events_published_total", 3.0).await;
    relay.tells("outbox_publish_latency_seconds_count", 3.0).await;
    relay.tells("outbox_shards_leased", 16.0).await;
    relay.tells("outbox_publisher_available", 1.0).await;
    relay.tells("outbox_relay_up", 1.0).await;
    relay.tells("outbox_events_pending", 0.0).await;
    relay.tells("outbox_oldest_pending_seconds", 0.0).await;
    relay.tells("outbox_dead_letters", 0.0).await;
    relay.tells("outbox_default_partition_rows", 0.0).await;
    relay.tells("outbox_overdue_partitions", 0.0).await;
    relay.tells("outbox_oldest_open_transaction_seconds", 0.0).await;
    let ahead = relay.value("outbox_partitions_ahead{subscription=\"default\"}").unwrap();
    assert!(ahead >= 2.0, "{ahead}");
    let latency = relay.value("outbox_publish_latency_seconds_sum{subscription=\"default\"}");
    assert!(latency.unwrap() < 180.0, "{latency:?}");
    let scrape = relay.scrape().unwrap();
    assert!(scrape.contains("# HELP outbox_events_pending Committed events"), "{scrape}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_and_what_waits_for_it_is_seen() {
    let database = TestDatabase::new();
    let relay = Scraped::start(&database, "redis://127.0.0.1:1/", "x");
    for order in ["a", "b"] {
        database.insert(order);
    }
    relay.tells("outbox_publisher_available", 0.0).await;
    relay.tells("outbox_events_pending", 2.0).await;
    relay.tells("outbox_relay_up", 1.0).await;
    let old = "outbox_oldest_pending_seconds{subscription=\"default\"}";
    eventually(PATIENCE, async || relay.value(old).filter(|seconds| *seconds > 1.0)).await;
    // Somebody emits and does not commit.
    let mut conn = database.sync();
    let open = format!("BEGIN; {}", outbox_tests::insert("c"));
    diesel::connection::SimpleConnection::batch_execute(&mut conn, &open).unwrap();
    let open = "outbox_oldest_open_transaction_seconds{subscription=\"default\"}";
    eventually(PATIENCE, async || relay.value(open).filter(|seconds| *seconds > 1.0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_database_a_relay_tells_nothing_that_it_cannot_know() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let relay = Scraped::start(&database, &redis.url(), redis.prefix());
    relay.tells("outbox_events_pending", 0.0).await;
    relay.tells("outbox_shards_leased", 16.0).await;
    // As good as away.
    database.sql("ALTER SCHEMA outbox RENAME TO elsewhere");
    relay.tells("outbox_relay_up", 0.0).await;
    relay.tells("outbox_shards_leased", 0.0).await;
    for gauge in ["outbox_events_pending", "outbox_dead_letters", "outbox_publisher_available"] {
        relay.tells(gauge, f64::NAN).await;
    }
    database.sql("ALTER SCHEMA elsewhere RENAME TO outbox");
    relay.tells("outbox_relay_up", 1.0).await;
    relay.tells("outbox_events_pending", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_fail_are_counted_by_type_and_dead_letters_show() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let relay = Scraped::start(&database, &redis.url(), redis.prefix());
    // Its stream is no stream.
    let stream = format!("{}order", redis.prefix());
    let _: () = redis.connect().await.set(stream, "a string").await.unwrap();
    database.insert("a");
    relay.tells("outbox_dead_letters", 1.0).await;
    relay.tells("outbox_parked", 1.0).await;
    let scrape = relay.scrape().unwrap();
    let failed = scrape
        .lines()
        .find(|line| line.starts_with("outbox_events_failed_total{") && !line.contains("other"));
    assert!(failed.is_some_and(|line| line.ends_with(" 1")), "{scrape}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_emitted_adds_no_series_beyond_the_cap() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let relay = Scraped::start(&database, &redis.url(), redis.prefix());
    relay.tells("outbox_dead_letters", 0.0).await;
    let series = || {
        let scrape = relay.scrape().unwrap();
        let is_series = |line: &&str| line.starts_with("outbox_") && !line.contains("_bucket{");
        scrape.lines().filter(is_series).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = series().len();
    let stream = format!("{}order", redis.prefix());
    let _: () = redis.connect().await.set(stream, "a string").await.unwrap();
    database.sql(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT 'order', 'order', 'aggregate ' || n, 'type ' || n, '{}' FROM generate_series(1, 150) n",
    );
    relay.tells("outbox_dead_letters", 150.0).await;
    let after = series();
    let of_type = |line: &&String| line.starts_with("outbox_events_failed_total{");
    assert_eq!(after.iter().filter(of_type).count(), 101, "{after:?}");
    assert_eq!(after.len(), before + 100, "{after:?}");
    let counts = after.iter().filter(of_type).map(|line| line.rsplit(' ').next().unwrap());
    let counted: u32 = counts.map(|count| count.parse::<u32>().unwrap()).sum();
    assert_eq!(counted, 150, "{after:?}");
    assert!(!after.concat().contains("aggregate 1"), "{after:?}");
}
