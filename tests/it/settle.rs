//! Settle: shards that share a stream, and places that differ, neither lose nor repeat.

use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::publish::redis::{RedisPublisher, StreamNaming};
use outbox_tests::{
    Crashable, SOON, TestDatabase, TestRedis, backlog, eventually, insert, orders, quick,
};
use redis::AsyncCommands as _;

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_shards_and_two_relays_that_crash_share_one_redis_stream() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let publisher = || {
        RedisPublisher::connect_lazily(redis.url())
            .unwrap()
            .stream_prefix(redis.prefix())
            .streams(StreamNaming::PerTopic)
    };
    let options = quick().batch_events(7).settle_interval(Duration::from_secs(3600));
    let mut conn = redis.connect().await;
    let stream = format!("{}order", redis.prefix());
    for round in 0..3 {
        for n in 0..40 {
            database.insert(&format!("{round}-{n}"));
        }
        let start = || Crashable::start(&database, "default", publisher(), options.clone());
        let (first, second) = (start().await, start().await);
        let count = 40 * (round + 1);
        eventually(SOON, async || {
            let length: usize = conn.xlen(&stream).await.unwrap();
            (length >= count).then_some(())
        })
        .await;
        first.crash(&database).await;
        second.crash(&database).await;
    }
    let relay = database.relay(publisher()).await;
    database.insert("last");
    eventually(SOON, async || {
        let length: usize = conn.xlen(&stream).await.unwrap();
        (length > 120).then_some(())
    })
    .await;
    relay.shutdown().await;
    let length: usize = conn.xlen(&stream).await.unwrap();
    assert_eq!(length, 121);
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_at_unlike_places_of_one_diff_each_go_on_from_their_own() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let events: Vec<_> = (0..64).map(|n| insert(&n.to_string())).collect();
    database.sql(&events.join(";"));
    let _ = database.tick();
    database.sql("UPDATE outbox.cursors SET seq = shard * 4");
    let expected: Vec<String> = database.value(
        "SELECT ARRAY(SELECT aggregate_id FROM outbox.events WHERE seq > shard * 4 ORDER BY seq)",
    );
    let relay = database.relay_with(broker.clone(), quick().batch_events(5)).await;
    assert_eq!(orders(&broker, expected.len()).await, expected);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), expected.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn within_a_diff_order_is_by_seq_and_a_locked_aggregate_keeps_its_own() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    // Without a lock: y commits before x, and the tick sees both.
    let mut x = database.sync();
    x.batch_execute(&format!("BEGIN; {}", insert("x"))).unwrap();
    database.insert("y");
    x.batch_execute("COMMIT").unwrap();
    // With one: the second writer emits after it has got it.
    database.sql("CREATE TABLE orders AS SELECT 1 AS id");
    let lock = "BEGIN; SELECT FROM orders WHERE id = 1 FOR UPDATE";
    let mut first = database.sync();
    first.batch_execute(lock).unwrap();
    let mut second = database.sync();
    let waiting = std::thread::spawn(move || {
        second.batch_execute(&format!("{lock}; {}; COMMIT", insert("locked 2"))).unwrap();
    });
    eventually(SOON, async || {
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')";
        database.value::<bool>(waits).then_some(())
    })
    .await;
    first.batch_execute(&format!("{}; COMMIT", insert("locked 1"))).unwrap();
    waiting.join().unwrap();
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 4).await, ["x", "y", "locked 1", "locked 2"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_a_prepared_nor_a_foreign_transaction_delays_others_and_its_own_events_come_too() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut prepared = database.sync();
    let name = format!("{}_prepared", database.name());
    prepared
        .batch_execute(&format!("BEGIN; {}; PREPARE TRANSACTION '{name}'", insert("prepared")))
        .unwrap();
    let mut foreign = database.sync();
    foreign.batch_execute("BEGIN; CREATE TABLE unrelated ()").unwrap();
    let relay = database.relay(broker.clone()).await;
    database.insert("now");
    assert_eq!(orders(&broker, 1).await, ["now"]);
    prepared.batch_execute(&format!("COMMIT PREPARED '{name}'")).unwrap();
    assert_eq!(orders(&broker, 2).await, ["now", "prepared"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_subtransactions_delay_nobody() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut nested = database.sync();
    nested
        .batch_execute(&format!(
            "BEGIN; {}; CREATE TEMP TABLE t (n int);
             DO $$ BEGIN FOR n IN 1..100000 LOOP BEGIN INSERT INTO t VALUES (n); EXCEPTION WHEN division_by_zero THEN END; END LOOP; END $$",
            insert("nested")
        ))
        .unwrap();
    let relay = database.relay(broker.clone()).await;
    let start = std::time::Instant::now();
    for n in 0..20 {
        database.insert(&n.to_string());
        orders(&broker, n + 1).await;
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    nested.batch_execute("COMMIT").unwrap();
    assert_eq!(orders(&broker, 21).await[20], "nested");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_whose_time_lies_in_the_past_or_nowhere_are_delivered_in_order() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    for time in ["now", "2001-01-01", "infinity", "-infinity", "2999-01-01"] {
        database.sql(&insert(time).replacen("payload)", "payload, created_at)", 1).replacen(
            "'{}')",
            &format!("'{{}}', '{time}')"),
            1,
        ));
    }
    let sent = orders(&broker, 5).await;
    assert_eq!(sent, ["now", "2001-01-01", "infinity", "-infinity", "2999-01-01"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_and_relays_are_updated_in_place_so_that_no_index_grows() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let options = quick().settle_interval(Duration::from_millis(1));
    let relay = database.relay_with(broker.clone(), options).await;
    for n in 0..50 {
        database.insert(&n.to_string());
        orders(&broker, n + 1).await;
    }
    relay.shutdown().await;
    wait_for_statistics(&database).await;
    for table in ["cursors", "relays"] {
        let told = |column: &str| {
            database.value::<i64>(&format!(
                "SELECT {column} FROM pg_stat_user_tables WHERE schemaname = 'outbox' AND relname = '{table}'"
            ))
        };
        let (all, in_place) = (told("n_tup_upd"), told("n_tup_hot_upd"));
        assert!(all >= 2, "{table}: {all}");
        // All of them, unless somebody's snapshot still needs the old rows. None, with an index on a
        // column that they change.
        assert!(in_place * 2 >= all, "{table}: {in_place} of {all}");
    }
}

/// A session counts what it did when it ends.
async fn wait_for_statistics(database: &TestDatabase) {
    eventually(SOON, async || {
        let ended = "SELECT count(*) = 0 FROM pg_stat_activity
                     WHERE datname = current_database() AND application_name = 'relay'";
        database.value::<bool>(ended).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_vacuum_horizon_leaves_few_dead_rows_for_the_next_claim_to_walk_over() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut report = database.sync();
    report
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM outbox.cursors")
        .unwrap();
    backlog(&database, 3_000, 100, 32);
    let written = "SELECT pg_stat_get_tuples_updated('outbox.cursors'::regclass)";
    let began = Instant::now();
    // Each of these batches moves all sixteen cursors.
    let relay = database.relay_with(broker.clone(), quick().batch_events(5)).await;
    orders(&broker, 3_000).await;
    relay.shutdown().await;
    let took = began.elapsed();
    wait_for_statistics(&database).await;
    let updated = database.value::<i64>(written);
    // Written by time: ten settles a second, two heartbeats, and what a start and an end write.
    let rounds = i64::try_from(took.as_millis() / 100 + took.as_millis() / 500).unwrap() + 8;
    assert!((32..=16 * rounds).contains(&updated), "{updated} rows for 600 batches in {took:?}");
    let relay = database.relay(broker.clone()).await;
    database.insert("after");
    orders(&broker, 3_001).await;
    relay.shutdown().await;
}
