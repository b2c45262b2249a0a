//! Leases: one owner per shard, whatever clocks, settings and zombies do.

use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection as _;
use outbox_diesel::RelayOptions;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{Crashable, Hooked, SOON, TestDatabase, eventually, orders, quick};

/// Waits until the condition holds in the database.
async fn until(database: &TestDatabase, condition: &str) {
    eventually(SOON, async || database.value::<bool>(condition).then_some(())).await;
}

const SHARES: &str = "SELECT string_agg(n::text, ' ' ORDER BY n) FROM \
    (SELECT count(*) AS n FROM outbox.cursors WHERE owner IS NOT NULL GROUP BY owner) s";

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_further_ahead_than_any_can_be_is_over_since_the_clock_was_set_back() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.sql(
        "UPDATE outbox.cursors SET owner = gen_random_uuid(), epoch = 1, leased_until = clock_timestamp() + interval '1 hour';
         INSERT INTO outbox.relays (id, subscription, host, version, started_at, seen_at)
         VALUES (gen_random_uuid(), 'default', 'dead', '0', '-infinity', clock_timestamp() + interval '1 hour')",
    );
    let relay = database.relay(broker.clone()).await;
    for order in 0..32 {
        database.insert(&order.to_string());
    }
    orders(&broker, 32).await;
    until(&database, "SELECT count(DISTINCT owner) = 1 FROM outbox.cursors").await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_longer_lease_than_ones_own_is_respected() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.sql(
        "UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = clock_timestamp() + interval '1 minute'
         WHERE shard < 8",
    );
    let relay = database.relay(broker.clone()).await;
    until(&database, "SELECT count(*) = 8 FROM outbox.cursors WHERE epoch = 1").await;
    // Two more heartbeats, and as many looks at the shares.
    database.sql("UPDATE outbox.relays SET seen_at = seen_at - interval '1 second'");
    until(&database, "SELECT bool_and(seen_at > started_at + interval '1.5 s') FROM outbox.relays")
        .await;
    assert!(
        database.value::<bool>("SELECT bool_and(epoch = (shard >= 8)::int) FROM outbox.cursors")
    );
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_of_seventeen_relays_have_a_shard_and_the_seventeenth_takes_over_the_next() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut relays = Vec::new();
    for _ in 0..17 {
        relays.push(database.relay(broker.clone()).await);
    }
    until(&database, "SELECT count(DISTINCT owner) = 16 FROM outbox.cursors").await;
    for order in 0..64 {
        database.insert(&order.to_string());
    }
    assert_eq!(orders(&broker, 64).await.len(), 64);
    let first = relays.swap_remove(0);
    first.shutdown().await;
    until(&database, "SELECT count(DISTINCT owner) = 16 FROM outbox.cursors").await;
    for relay in relays {
        relay.shutdown().await;
    }
    assert!(database.value::<bool>("SELECT bool_and(owner IS NULL) FROM outbox.cursors"));
    assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.relays"));
    assert_eq!(broker.delivered().len(), 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_differ_by_one_at_most_after_a_join_and_after_a_leave() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let shares = async |shares: &str| {
        eventually(SOON, async || {
            (database.value::<Option<String>>(SHARES).as_deref() == Some(shares)).then_some(())
        })
        .await;
    };
    let first = database.relay(broker.clone()).await;
    shares("16").await;
    let second = database.relay(broker.clone()).await;
    shares("8 8").await;
    // One with settings of its own is a peer like any other.
    let patient = RelayOptions::default().lease(Duration::from_secs(60));
    let third = database.relay_with(broker.clone(), patient).await;
    shares("5 5 6").await;
    let left = Instant::now();
    first.shutdown().await;
    shares("8 8").await;
    assert!(left.elapsed() < Duration::from_secs(3), "no lease had to run out");
    second.shutdown().await;
    shares("16").await;
    third.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_relay_that_slept_through_its_lease_neither_publishes_nor_settles() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let (asleep, mut is_asleep) = tokio::sync::mpsc::unbounded_channel();
    let (wake, awake) = std::sync::mpsc::channel::<()>();
    let hooked = Hooked::new(&broker, move |_| {
        asleep.send(()).ok();
        awake.recv().ok();
        None
    });
    let sleeper = database.relay(hooked).await;
    for order in 0..20 {
        database.insert(&order.to_string());
    }
    is_asleep.recv().await.unwrap();
    // As if its heartbeat slept too: its leases run out, and it is not counted as live.
    let id: uuid::Uuid = database.value("SELECT id FROM outbox.relays");
    database.sql(&format!(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER silence BEFORE INSERT ON outbox.relays FOR EACH ROW WHEN (NEW.id = '{id}') EXECUTE FUNCTION nothing();
         DELETE FROM outbox.relays;
         UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = '-infinity'"
    ));
    let relay = Crashable::start(&database, "default", broker.clone(), quick()).await;
    let expected: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let mut sent = orders(&broker, 20).await;
    sent.sort_by_key(|order| order.parse::<u32>().unwrap());
    assert_eq!(sent, expected);
    until(&database, "SELECT bool_and(tick > 0) FROM outbox.cursors").await;
    drop(wake);
    for order in 20..40 {
        database.insert(&order.to_string());
    }
    orders(&broker, 40).await;
    sleeper.shutdown().await;
    relay.crash(&database).await;
    let mut seqs: Vec<_> = broker.delivered().iter().map(|sent| sent.message.seq()).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (2..42).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_arrives_after_a_take_over_is_refused() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut thief = database.sync();
    let mut batches = 0;
    let hooked = Hooked::new(&broker, move |_| {
        batches += 1;
        if batches == 1 {
            thief
                .batch_execute("UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = '-infinity'")
                .unwrap();
        }
        None
    });
    database.insert("a");
    let relay = database.relay_with(hooked, quick()).await;
    orders(&broker, 1).await;
    database.insert("b");
    assert_eq!(orders(&broker, 2).await, ["a", "b"]);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_said_goodbye_is_not_heard_of_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let options = quick().heartbeat(Duration::from_millis(1));
    for _ in 0..10 {
        let relay = database.relay_with(broker.clone(), options.clone()).await;
        until(&database, "SELECT count(*) = 16 FROM outbox.cursors WHERE owner IS NOT NULL").await;
        relay.shutdown().await;
        assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.relays"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_no_more_than_its_share_under_the_worst_of_plans() {
    let database = TestDatabase::new();
    // With these a subquery is run anew for each row that it is compared with, and each run skips
    // what the run before has locked.
    for setting in ["hashjoin", "mergejoin", "material", "sort", "hashagg", "memoize"] {
        database.sql(&format!("ALTER DATABASE {} SET enable_{setting} = off", database.name()));
    }
    // As seen when one row was there.
    database.sql(
        "CREATE TABLE kept AS SELECT * FROM outbox.cursors WHERE shard > 0;
         DELETE FROM outbox.cursors WHERE shard > 0; ANALYZE outbox.cursors;
         INSERT INTO outbox.cursors SELECT * FROM kept;
         INSERT INTO outbox.relays (id, subscription, host, version, started_at, seen_at)
         SELECT gen_random_uuid(), 'default', 'peer', '0', '-infinity', clock_timestamp() + n * interval '1 ms'
         FROM generate_series(1, 15) n",
    );
    let patient = RelayOptions::default().lease(Duration::from_secs(60));
    let relay = database.relay_with(RecordingPublisher::default(), patient).await;
    until(&database, "SELECT count(*) > 0 FROM outbox.cursors WHERE owner IS NOT NULL").await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.cursors WHERE epoch > 0"), 1);
    relay.shutdown().await;
}
