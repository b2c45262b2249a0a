//! What draining a backlog costs: memory of the relay's process, WAL, dead tuples, time.
//!
//! The small variant runs with all tests. The large ones need the relay as it ships, about 4 GB of
//! memory and disk, and some minutes:
//!
//! ```sh
//! cargo test --release -p outbox-tests --test it -- --ignored --nocapture footprint
//! ```
//!
//! Each has a PostgreSQL and a Redis of its own. PostgreSQL runs without autovacuum, because what
//! it writes belongs to the emits; WAL is counted from a checkpoint after the emits to the moment
//! at which the last event has arrived and the cursors are settled.

use std::time::{Duration, Instant};

use outbox_tests::{Scene, TestDatabase, TestRedis, backlog, eventually};
use xtask::postgres::{Options, Postgres};
use xtask::redis::Redis;

const RELAY: &str = env!("CARGO_BIN_EXE_relay");
const MIB: u64 = 1024 * 1024;
const LONG: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Footprint {
    events: u32,
    time: Duration,
    peak_memory: u64,
    wal: i64,
    dead_tuples: i64,
}

impl Footprint {
    fn print(&self) {
        let Self { events, time, peak_memory, wal, dead_tuples } = self;
        println!(
            "{events} events in {time:?} ({:.0}/s); peak memory {} KiB; {wal} bytes of WAL; {dead_tuples} dead tuples",
            f64::from(*events) / time.as_secs_f64(),
            peak_memory / 1024,
        );
    }
}

async fn drain(events: u32, aggregates: u32, bytes: u32) -> Footprint {
    let server = Postgres::start(Options::default().setting("autovacuum", "off"))
        .expect("a private PostgreSQL starts");
    let redis = Redis::start(xtask::redis::Options::default()).expect("a private Redis starts");
    let database = TestDatabase::on(&server.url("postgres"));
    let scene = Scene::on(database, TestRedis::on(&redis.url()));
    let step = events.min(50_000);
    for _ in 0..events / step {
        backlog(scene.database(), step, aggregates, bytes);
    }
    // Whoever first reads a row notes on its page that it is committed, and where pages have
    // checksums, as clusters of PostgreSQL 18 do, this page goes to the WAL once per checkpoint.
    scene.database().sql("SELECT count(payload::text) FROM outbox.events");
    scene.database().sql("CHECKPOINT");
    let wal = |since: i64| -> i64 {
        scene.database().value(&format!(
            "SELECT (pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') - {since})::bigint"
        ))
    };
    let before = wal(0);
    let started = Instant::now();
    let mut relay = scene.relay_with(RELAY, "drain", &[("RELAY_OPTIONS", "default")]);
    let wanted = usize::try_from(events).expect("a count");
    eventually(LONG, async || (scene.arrived().await >= wanted).then_some(())).await;
    let time = started.elapsed();
    let settled =
        "SELECT min(c.tick) > 0 FROM outbox.cursors c WHERE c.seq = 0 AND c.target IS NULL";
    eventually(LONG, async || scene.database().value::<Option<bool>>(settled)?.then_some(())).await;
    let wal = wal(before);
    let peak_memory = relay.peak_memory().unwrap_or(0);
    relay.stop();
    let dead_tuples = scene.database().value(
        "SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables
         WHERE schemaname = 'outbox' AND relname LIKE 'events%'",
    );
    let footprint = Footprint { events, time, peak_memory, wal, dead_tuples };
    footprint.print();
    scene.verdict().await.assert_clean(0);
    footprint
}

#[tokio::test(flavor = "multi_thread")]
async fn consuming_writes_next_to_nothing() {
    let footprint = drain(20_000, 500, 200).await;
    assert_eq!(footprint.dead_tuples, 0);
    // On few events, full pages after the checkpoint, heartbeats, and hint bits where there are
    // checksums (the default of PostgreSQL 18) weigh more. One update per event writes 500 bytes.
    assert!(footprint.wal <= 20_000 * 20, "{footprint:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_events_are_carried_in_little_memory() {
    // Several times as much as a relay may hold.
    let footprint = drain(160, 20, 1_048_000).await;
    assert!(footprint.peak_memory < 64 * MIB, "{footprint:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes, and only in a release build"]
async fn footprint_of_a_million_events() {
    let footprint = drain(1_000_000, 5_000, 200).await;
    assert!(footprint.peak_memory < 64 * MIB, "{footprint:?}");
    assert!(footprint.wal <= 1_000_000 * 5, "{footprint:?}");
    assert_eq!(footprint.dead_tuples, 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes, and only in a release build"]
async fn footprint_of_events_of_one_mebibyte() {
    let footprint = drain(600, 50, 1_048_000).await;
    assert!(footprint.peak_memory < 64 * MIB, "{footprint:?}");
    assert_eq!(footprint.dead_tuples, 0);
}
