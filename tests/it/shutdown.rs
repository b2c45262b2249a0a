//! Shutdown: bounded, and safe in whatever way it comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_diesel::publish::{OwnedMessage, RecordingPublisher, publisher_fn};
use outbox_diesel::{Health, Relay};
use outbox_tests::{SOON, TestDatabase, eventually, insert, orders, quick};
use tokio_util::sync::CancellationToken;

/// As time would.
const LEASES_END: &str =
    "UPDATE outbox.cursors SET leased_until = clock_timestamp(); DELETE FROM outbox.relays";
const ALL_FREE: &str = "SELECT bool_and(owner IS NULL) FROM outbox.cursors";

fn emit(database: &TestDatabase, count: usize) {
    let events: Vec<_> = (0..count).map(|n| insert(&n.to_string())).collect();
    database.sql(&events.join(";"));
}

/// A successor delivers all, and what was sent before is not sent again.
async fn goes_on(database: &TestDatabase, broker: &RecordingPublisher, count: usize) {
    let relay = database.relay(broker.clone()).await;
    let mut sent = orders(broker, count).await;
    relay.drained().await.unwrap();
    relay.shutdown().await;
    sent.sort();
    sent.dedup();
    assert_eq!((sent.len(), broker.delivered().len()), (count, count));
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_handle_stops_the_relay_and_gives_its_shards_back() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(20));
    emit(&database, 100);
    let relay = database.relay_with(broker.clone(), quick().batch_events(5)).await;
    orders(&broker, 20).await;
    drop(relay);
    eventually(SOON, async || database.value::<bool>(ALL_FREE).then_some(())).await;
    broker.delay(Duration::ZERO);
    goes_on(&database, &broker, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_task_is_aborted_loses_and_repeats_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(20));
    emit(&database, 100);
    let relay = Relay::builder(database.relay_pool().await)
        .publisher(broker.clone())
        .options(quick().batch_events(5));
    let task = tokio::spawn(relay.run(CancellationToken::new()));
    orders(&broker, 20).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    // Its heartbeat ended with it, and its connections.
    let connected = "SELECT count(*) = 0 FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'relay'";
    eventually(SOON, async || database.value::<bool>(connected).then_some(())).await;
    database.sql(LEASES_END);
    broker.delay(Duration::ZERO);
    goes_on(&database, &broker, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_runtime_goes_away_loses_and_repeats_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(20));
    emit(&database, 100);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let relay = {
        let pool = database.relay_pool().await;
        let _inside = runtime.enter();
        let relay = Relay::builder(pool).publisher(broker.clone());
        relay.options(quick().batch_events(5)).spawn().unwrap()
    };
    orders(&broker, 20).await;
    runtime.shutdown_background();
    eventually(SOON, async || (relay.health() == Health::Stopped).then_some(())).await;
    // A shutdown comes too late, and does not hang.
    tokio::time::timeout(SOON, relay.shutdown()).await.unwrap();
    database.sql(LEASES_END);
    broker.delay(Duration::ZERO);
    goes_on(&database, &broker, 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_bounded_however_long_the_publisher_hangs_and_costs_no_attempt() {
    let database = TestDatabase::new();
    let alive = Arc::new(());
    let held = alive.clone();
    let publisher = publisher_fn(move |_: OwnedMessage| {
        let held = held.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok(())
        }
    });
    emit(&database, 1000);
    let options = quick()
        .publish_timeout(Duration::from_secs(2))
        .shutdown_timeout(Duration::from_millis(300));
    let relay = database.relay_with(publisher, options).await;
    eventually(SOON, async || (Arc::strong_count(&alive) > 2).then_some(())).await;
    let asked = Instant::now();
    relay.shutdown().await;
    let took = asked.elapsed();
    assert!(took < Duration::from_millis(1500), "{took:?}");
    // Nothing of it is left: neither publisher nor task nor connection.
    assert_eq!(Arc::strong_count(&alive), 1);
    let connected = "SELECT count(*) = 0 FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'relay'";
    eventually(SOON, async || database.value::<bool>(connected).then_some(())).await;
    assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked"));
    database.sql(LEASES_END);
    let broker = RecordingPublisher::default();
    goes_on(&database, &broker, 1000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_stopped_before_it_starts_claims_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    emit(&database, 1);
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let relay = Relay::builder(database.relay_pool().await).publisher(broker.clone());
    tokio::time::timeout(SOON, relay.options(quick()).run(cancelled)).await.unwrap().unwrap();
    assert!(
        database.value::<bool>("SELECT bool_and(owner IS NULL AND epoch = 0) FROM outbox.cursors")
    );
    assert!(broker.delivered().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_keeps_what_was_published_settled_and_the_rest_for_the_next() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(30));
    emit(&database, 100);
    let options = quick().batch_events(10).settle_interval(Duration::from_secs(3600));
    let relay = database.relay_with(broker.clone(), options).await;
    orders(&broker, 30).await;
    relay.shutdown().await;
    assert!(database.value::<bool>(ALL_FREE));
    let published = broker.delivered().len();
    assert!(published < 100);
    goes_on(&database, &broker, 100).await;
    // Settled, hence not even read again.
    assert_eq!(broker.repeats(), 0);
}
