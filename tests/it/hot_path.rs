//! What the hot statements do on any machine, however fast: index scans only, whatever the statistics
//! were when their plans were cached, few partitions, and few statements per event.
//!
//! The plans are those that the server itself ran, by `auto_explain`.

use std::collections::BTreeSet;
use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel_async::{AsyncConnection as _, SimpleAsyncConnection as _};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{AsyncEmit as _, EmitError};
use outbox_tests::{SOON, TestDatabase, TestEvent, backlog, eventually, quick};
use serde_json::Value;
use xtask::postgres::{Durability, Options, Postgres};

/// A server that logs every plan. None where PostgreSQL came without its contributed modules.
fn explaining() -> Option<Postgres> {
    let options = Options::default().durability(Durability::None);
    let plain = Postgres::start(options.clone()).expect("a private PostgreSQL starts");
    let database = TestDatabase::on(&plain.url("postgres"));
    if database.sync().batch_execute("LOAD 'auto_explain'").is_err() {
        eprintln!("WARNING: PostgreSQL has no auto_explain here: SKIPPED");
        return None;
    }
    drop((database, plain));
    let options = options
        .setting("session_preload_libraries", "auto_explain")
        .setting("auto_explain.log_min_duration", "0")
        .setting("auto_explain.log_nested_statements", "on")
        .setting("auto_explain.log_analyze", "on")
        .setting("auto_explain.log_timing", "off")
        .setting("auto_explain.log_format", "json")
        .setting("autovacuum", "off");
    Some(Postgres::start(options).expect("a private PostgreSQL starts"))
}

/// A plan as the server ran it.
struct Plan {
    query: String,
    root: Value,
}

impl Plan {
    /// All that were logged since this many bytes.
    fn logged(server: &Postgres, since: usize) -> Vec<Self> {
        let log = server.log();
        let mut plans = Vec::new();
        for logged in log[since..].split("plan:\n").skip(1) {
            let lines = logged.lines().map_while(|line| line.strip_prefix('\t'));
            let text: String = lines.collect();
            let plan: Value = serde_json::from_str(&text).expect("a plan is JSON");
            let query = plan["Query Text"].as_str().expect("each has a text").to_owned();
            plans.push(Self { query, root: plan["Plan"].clone() });
        }
        plans
    }

    /// Kind and table of each scan that was run.
    fn scans(&self) -> Vec<(String, String)> {
        let mut scans = Vec::new();
        let mut nodes = vec![&self.root];
        while let Some(node) = nodes.pop() {
            let was_run = node["Actual Loops"].as_i64().is_none_or(|loops| loops > 0);
            if let Some(table) = node["Relation Name"].as_str().filter(|_| was_run) {
                let kind = node["Node Type"].as_str().unwrap_or_default();
                scans.push((kind.to_owned(), table.to_owned()));
            }
            nodes.extend(node["Plans"].as_array().into_iter().flatten());
        }
        scans
    }

    fn leaves(&self) -> BTreeSet<String> {
        let tables = self.scans().into_iter().map(|(_, table)| table);
        tables.filter(|table| table.starts_with("events")).collect()
    }
}

/// Statistics at the time at which the relay's plans are made.
#[derive(Debug, Clone, Copy)]
enum Statistics {
    None,
    OfEmptyPartitions,
    OfEvents,
}

/// Thirty partitions of 100,000; the events lie in two of them in the middle.
fn log_on(server: &Postgres) -> TestDatabase {
    let database = TestDatabase::on(&server.url("postgres"));
    database.sql(
        "DROP TABLE outbox.events_s1, outbox.events_s1000000, outbox.events_s2000000;
         SELECT outbox.create_partition(n * 100000::bigint, (n + 1) * 100000::bigint)
         FROM generate_series(0, 29) n;
         SELECT setval('outbox.event_seq', 1497500)",
    );
    // While nothing is in flight: it bounds where the stragglers of every later tick can lie.
    database.ticks(1);
    database
}

async fn assert_scans_by_index(statistics: Statistics) {
    let Some(server) = explaining() else { return };
    let database = log_on(&server);
    match statistics {
        Statistics::None => {}
        Statistics::OfEmptyPartitions => database.sql("ANALYZE"),
        Statistics::OfEvents => {
            backlog(&database, 5_000, 100, 200);
            database.sql("ANALYZE");
        }
    }
    let logged = server.log().len();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), quick()).await;
    let arrived = async |count: usize| {
        eventually(SOON, async || (broker.delivered().len() >= count).then_some(())).await;
    };
    let had = if matches!(statistics, Statistics::OfEvents) { 5_000 } else { 0 };
    arrived(had).await;
    // By now every statement has the plan it keeps. In flight while a tick passes: a straggler.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut late = database.connect().await;
    late.batch_execute("BEGIN").await.expect("begins");
    late.batch_execute(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('a', 'late', 'late', 'late', '{\"v\":1}')",
    )
    .await
    .expect("emits");
    backlog(&database, 5_000, 100, 200);
    arrived(had + 5_000).await;
    late.batch_execute("COMMIT").await.expect("commits");
    arrived(had + 5_001).await;
    relay.shutdown().await;

    let plans = Plan::logged(&server, logged);
    let hot = |plan: &&Plan| plan.query.contains("outbox.") && !plan.query.contains("ledger");
    let mut seen = BTreeSet::new();
    for plan in plans.iter().filter(hot) {
        for (kind, table) in plan.scans() {
            let of_the_log = table.starts_with("events") || table == "ticks";
            assert!(kind != "Seq Scan" || !of_the_log, "{statistics:?}: {table}: {}", plan.query);
            seen.insert(table);
        }
        // A read reaches over 100,000 seqs at most. Reads by xid are bounded by seq too.
        let leaves = plan.leaves();
        let reads = ["before + size", "size <= ", "unlisted"];
        let reads = reads.iter().any(|part| plan.query.contains(part));
        assert!(!reads || leaves.len() <= 2, "{statistics:?}: {leaves:?}: {}", plan.query);
    }
    assert!(seen.contains("ticks") && seen.contains("cursors"), "{seen:?}");
    assert!(seen.contains("events_s1400000") && seen.contains("events_s1500000"), "{seen:?}");
    let reads = |text: &str| plans.iter().filter(|plan| plan.query.contains(text)).count();
    assert!(reads("unlisted") > 0, "nobody looked for stragglers");
    let (rest, late) =
        (reads("NOT pg_visible_in_snapshot"), reads("CROSS JOIN LATERAL (\n            SELECT *"));
    assert!(late > 0, "nobody read a straggler");
    // The first diff begins with seq 0. Then of 1,000 events each, and of each diff's end; slow
    // machines have more ticks meanwhile.
    let ticks = reads("INSERT INTO outbox.ticks");
    let most = 15 + (had + 5_000) / 1_000 + 3 * ticks + 8;
    assert!(rest <= most, "{statistics:?}: {rest} reads, {ticks} ticks");
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_made_without_statistics_scan_by_index() {
    assert_scans_by_index(Statistics::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_made_while_analysed_partitions_were_empty_scan_by_index() {
    assert_scans_by_index(Statistics::OfEmptyPartitions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plans_made_with_statistics_scan_by_index() {
    assert_scans_by_index(Statistics::OfEvents).await;
}

#[tokio::test]
async fn an_emit_is_one_statement_that_reads_nothing() {
    let Some(server) = explaining() else { return };
    let database = TestDatabase::on(&server.url("postgres"));
    let mut conn = database.connect().await;
    let logged = server.log().len();
    let wal = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    let before = database.value::<i64>(wal);
    let fill = "x".repeat(180);
    for n in 0..1_000 {
        conn.transaction::<_, EmitError, _>(async |conn| {
            conn.emit(&TestEvent::new(n).payload(format!("{{\"fill\":\"{fill}\"}}"))).await
        })
        .await
        .expect("emits");
    }
    let written = (database.value::<i64>(wal) - before) / 1_000;
    let plans = Plan::logged(&server, logged);
    let own: Vec<&Plan> =
        plans.iter().filter(|plan| !plan.query.contains("pg_wal_lsn_diff")).collect();
    assert_eq!(own.len(), 1_000, "{:?}", own.first().map(|plan| &plan.query));
    for plan in own {
        assert_eq!(plan.root["Node Type"], "ModifyTable", "{}", plan.query);
        assert!(plan.scans().iter().all(|(kind, _)| kind == "ModifyTable"), "{:?}", plan.scans());
    }
    println!("{written} bytes of WAL per emit");
    assert!(written <= 1_000, "{written} bytes of WAL per emit of 200 bytes");
}
