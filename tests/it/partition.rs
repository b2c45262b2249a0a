//! Partitions: emits never wait or fail for them, diffs touch few, wherever the events lie.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::{OwnedMessage, RecordingPublisher, publisher_fn};
use outbox_tests::{SOON, TestDatabase, eventually, insert, orders, quick};
use xtask::postgres::{Durability, Options, Postgres};

const RANGES: &str = "SELECT count(*) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid \
    WHERE i.inhparent = 'outbox.events'::regclass AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'";

#[tokio::test(flavor = "multi_thread")]
async fn overrun_ranges_stop_no_emit_and_the_next_range_starts_far_above() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.sql("SELECT setval('outbox.event_seq', 3000000)");
    database.insert("in default");
    assert!(database.value::<bool>("SELECT count(*) = 1 FROM outbox.events_default"));
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 1).await, ["in default"]);
    eventually(SOON, async || (database.value::<i64>(RANGES) > 3).then_some(())).await;
    let first = "SELECT min(from_seq) FROM outbox.leaves WHERE from_seq > 3000001";
    let from: i64 = database.value(first);
    assert!(from >= 8_000_000, "{from} could be reached soon");
    // Emits in between, in the new range, and back again in no range's way.
    database.insert("in the gap");
    database.sql(&format!("SELECT setval('outbox.event_seq', {from})"));
    database.insert("in the range");
    assert_eq!(orders(&broker, 3).await, ["in default", "in the gap", "in the range"]);
    let home = "SELECT tableoid::regclass::text FROM outbox.events ORDER BY seq DESC LIMIT 1";
    assert_eq!(database.value::<String>(home), format!("outbox.events_s{from}"));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_every_range_is_gone_emits_go_on_and_ranges_are_made_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.sql("DROP TABLE outbox.events_s1, outbox.events_s1000000, outbox.events_s2000000");
    database.insert("a");
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || (database.value::<i64>(RANGES) > 0).then_some(())).await;
    database.insert("b");
    assert_eq!(orders(&broker, 2).await, ["a", "b"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_that_cannot_be_attached_now_holds_no_emit_for_long_and_delivery_not_at_all() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.sql("SELECT setval('outbox.event_seq', 2950000)");
    // A long report: an attach would wait for it.
    let mut report = database.sync();
    report
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.events; LOCK TABLE outbox.events IN ROW EXCLUSIVE MODE; LOCK TABLE outbox.events_default IN SHARE MODE")
        .unwrap();
    let relay = database.relay(broker.clone()).await;
    for n in 0..20 {
        database.sql(&format!("SET lock_timeout = '1s'; {}", insert(&n.to_string())));
    }
    orders(&broker, 20).await;
    assert_eq!(database.value::<i64>(RANGES), 3);
    report.batch_execute("COMMIT").unwrap();
    eventually(SOON, async || (database.value::<i64>(RANGES) > 3).then_some(())).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_attached_between_a_tick_and_its_diff_is_seen() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    // Far ahead, so that the relay makes none itself.
    database.sql("SELECT outbox.create_partition(1000000000000, 1000000001000)");
    let relay = database.relay(broker.clone()).await;
    for n in 0..10 {
        let from = 5_000_000 + n * 1000;
        database.sql(&format!(
            "SELECT outbox.create_partition({from}, {from} + 1000);
             SELECT setval('outbox.event_seq', {from} + 10)"
        ));
        database.insert(&n.to_string());
    }
    let expected: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    assert_eq!(orders(&broker, 10).await, expected);
    relay.shutdown().await;
}

/// Plans of all statements with this text, as they ran.
fn plans(log: &str, text: &str) -> Vec<String> {
    log.split("duration: ")
        .skip(1)
        .filter(|entry| entry.contains("plan:") && entry.contains(text))
        .map(str::to_owned)
        .collect()
}

/// Of the question whether something has committed that was in flight at the newest tick.
const COMMITTED: &str = "pg_visible_in_snapshot(x.xid, pg_current_snapshot())";

#[tokio::test(flavor = "multi_thread")]
async fn diffs_polls_and_retries_touch_few_of_sixty_partitions_by_their_indexes() {
    let server = Postgres::start(
        Options::default()
            .durability(Durability::None)
            .setting("session_preload_libraries", "auto_explain")
            .setting("auto_explain.log_min_duration", "0")
            .setting("auto_explain.log_analyze", "on")
            .setting("auto_explain.log_timing", "off")
            .setting("auto_explain.log_buffers", "on"),
    )
    .unwrap();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    for n in 0..60 {
        let from = 3_000_000 + n * 100_000;
        database.sql(&format!("SELECT outbox.create_partition({from}, {from} + 100000)"));
    }
    database.sql("SELECT setval('outbox.event_seq', 6000000)");
    database.insert("before");
    let _ = database.tick();
    let mut straggler = database.sync();
    straggler.batch_execute(&format!("BEGIN; {}", insert("late"))).unwrap();
    // Many events that are nobody's yet: whoever looks must not walk over them.
    let mut open = database.sync();
    open.batch_execute(&format!(
        "BEGIN; {}",
        insert("open").replacen("VALUES (", "SELECT ", 1).replacen(
            "'{}')",
            "'{}' FROM generate_series(1, 20000)",
            1
        )
    ))
    .unwrap();
    database.insert("now");
    let once = std::sync::atomic::AtomicBool::new(true);
    broker.reject(move |event| {
        (event.aggregate_id() == "now" && once.swap(false, std::sync::atomic::Ordering::SeqCst))
            .then(|| String::from("once"))
    });
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 2).await, ["before", "now"]);
    straggler.batch_execute("COMMIT").unwrap();
    orders(&broker, 3).await;
    // Some polls of an idle log beside the open transaction.
    let log = eventually(SOON, async || {
        let log = server.log();
        (plans(&log, COMMITTED).len() > 60).then_some(log)
    })
    .await;
    relay.shutdown().await;
    for (name, text) in [
        ("rest", "NOT pg_visible_in_snapshot(e.xid"),
        ("late", "CROSS JOIN LATERAL ("),
        ("stragglers", "WITH RECURSIVE unlisted"),
        ("committed", COMMITTED),
        ("due", "WITH current AS MATERIALIZED"),
        ("settle", "from_tick, from_seq"),
    ] {
        let plans = plans(&log, text);
        assert!(!plans.is_empty(), "{name} ran");
        assert!(plans.iter().all(|plan| !plan.contains("Seq Scan on events_")), "{name}");
        // The last one: the first diff reaches over all that was never drawn.
        let plan = plans.last().expect("it ran");
        let used = plan
            .lines()
            .filter(|line| line.contains("on events_") && !line.contains("(never executed)"));
        assert!(used.count() <= 6, "{name} reads few leaves: {plan}");
        let buffers =
            plan.lines().find_map(|line| line.trim().strip_prefix("Buffers: shared hit="));
        let buffers = buffers.and_then(|rest| rest.split(' ').next()).expect("buffers");
        // The rest of a diff passes each row once; a poll comes 50 times a second, and asks what has committed.
        let bound = if name == "rest" { 2_000 } else { 200 };
        assert!(
            buffers.parse::<u32>().unwrap() < bound,
            "{name} beside an open transaction: {plan}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_of_a_hundred_thousand_events_streams_in_chunks_of_equal_cost() {
    let database = TestDatabase::new();
    let (sent, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let publisher = publisher_fn(move |event: OwnedMessage| {
        sent.send(event.seq()).ok();
        async { Ok(()) }
    });
    let mut straggler = database.sync();
    straggler
        .batch_execute(&format!(
            "BEGIN; {}",
            insert("x")
                .replacen("VALUES (", "SELECT ", 1)
                .replacen("'x'", "(n % 100)::text", 1)
                .replacen("'{}')", "'{}' FROM generate_series(1, 100000) n", 1)
        ))
        .unwrap();
    database.insert("marker");
    let relay = database.relay_with(publisher, quick().batch_events(1000)).await;
    assert_eq!(arrived.recv().await, Some(100_002));
    straggler.batch_execute("COMMIT").unwrap();
    // The last chunks cost no more than the first ones: each passes its own events only.
    let mut times = Vec::new();
    let mut start = std::time::Instant::now();
    for seq in 2..100_002 {
        assert_eq!(arrived.recv().await, Some(seq));
        if (seq - 1) % 20_000 == 0 {
            times.push(std::mem::replace(&mut start, std::time::Instant::now()).elapsed());
        }
    }
    assert!(times[4] < times[0] * 4 + std::time::Duration::from_millis(500), "{times:?}");
    relay.shutdown().await;
}
