//! Supervision: what a relay says of itself, and that it does not die unseen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
use diesel_async::{AsyncConnection as _, AsyncPgConnection, SimpleAsyncConnection as _};
use futures_util::FutureExt as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::relay::Pool;
use outbox_diesel::{Health, Relay};
use outbox_tests::{SOON, TestDatabase, eventually, insert, orders, quick};

/// A pool whose set-up of a connection, code of the application, panics while it is told to.
async fn panicking(
    database: &TestDatabase,
    panics: Arc<AtomicBool>,
    seen: Arc<AtomicUsize>,
) -> Pool {
    let mut config = ManagerConfig::default();
    config.custom_setup = Box::new(move |url| {
        let (panics, seen) = (panics.clone(), seen.clone());
        async move {
            if panics.load(Ordering::SeqCst) {
                seen.fetch_add(1, Ordering::SeqCst);
                panic!("no such secret");
            }
            AsyncPgConnection::establish(url).await
        }
        .boxed()
    });
    let url = format!("{}?application_name=relay", database.url());
    let manager = AsyncDieselConnectionManager::new_with_config(url, config);
    bb8::Pool::builder().build(manager).await.expect("a pool opens nothing yet")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_panics_says_so_and_starts_over() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let (panics, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let pool = panicking(&database, panics.clone(), seen.clone()).await;
    let relay = Relay::builder(pool).publisher(broker.clone()).options(quick()).spawn().unwrap();
    database.insert("before");
    orders(&broker, 1).await;
    panics.store(true, Ordering::SeqCst);
    database.cut_relays();
    // The heartbeat panics too.
    eventually(SOON, async || {
        let is_told = matches!(relay.health(), Health::Interrupted { cause } if cause.contains("panicked: no such secret"));
        (is_told && seen.load(Ordering::SeqCst) > 4).then_some(())
    })
    .await;
    let away = seen.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let more = seen.load(Ordering::SeqCst) - away;
    assert!(more < 40, "{more} panics in two seconds: it spins");
    panics.store(false, Ordering::SeqCst);
    database.insert("after");
    assert_eq!(orders(&broker, 2).await, ["before", "after"]);
    // Longer than a lease: the heartbeat goes on as well.
    let until = Instant::now() + outbox_tests::quick_lease() + Duration::from_secs(1);
    eventually(SOON, async || (Instant::now() > until).then_some(())).await;
    assert_eq!(relay.health(), Health::Running);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_is_running_and_ready_only_once_it_leases_shards() {
    let database = TestDatabase::new();
    database.sql(
        "UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = clock_timestamp() + interval '1 minute'",
    );
    let relay = database.relay(RecordingPublisher::default()).await;
    let registered = "SELECT EXISTS (SELECT FROM outbox.relays WHERE seen_at > started_at)";
    eventually(SOON, async || database.value::<bool>(registered).then_some(())).await;
    assert_eq!(relay.health(), Health::Starting);
    assert!(tokio::time::timeout(Duration::from_millis(100), relay.ready()).await.is_err());
    database.sql("UPDATE outbox.cursors SET owner = NULL, leased_until = '-infinity'");
    tokio::time::timeout(SOON, relay.ready()).await.expect("in time").unwrap();
    assert_eq!(relay.health(), Health::Running);
    assert!(database.value::<bool>("SELECT bool_or(owner IS NOT NULL) FROM outbox.cursors"));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_tells_when_all_that_was_committed_is_delivered() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(20));
    broker.reject(|event| (event.aggregate_id() == "bad").then(|| String::from("no")));
    let relay = database.relay_with(broker.clone(), quick().batch_events(10)).await;
    relay.ready().await.unwrap();
    // An open transaction is nobody's to wait for.
    let mut open = database.connect().await;
    open.batch_execute(&format!("BEGIN; {}", insert("open"))).await.unwrap();
    for round in 1..=5 {
        let events: Vec<_> = (0..50).map(|n| insert(&n.to_string())).collect();
        database.sql(&events.join(";"));
        database.insert("bad");
        tokio::time::timeout(SOON, relay.drained()).await.expect("in time").unwrap();
        assert_eq!(broker.delivered().len(), round * 50);
    }
    assert!(database.value::<bool>("SELECT count(*) = 5 FROM outbox.parked"));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stuck_relay_shows_by_the_time_of_its_last_progress() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    relay.ready().await.unwrap();
    let fresh = Duration::from_millis(200);
    eventually(SOON, async || (relay.last_progress().elapsed() < fresh).then_some(())).await;
    broker.hang();
    database.insert("a");
    eventually(SOON, async || {
        (relay.last_progress().elapsed() > Duration::from_secs(2)).then_some(())
    })
    .await;
    broker.come_back();
    eventually(SOON, async || (relay.last_progress().elapsed() < fresh).then_some(())).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_relay_that_has_ended() {
    let database = TestDatabase::new();
    let pool = database.relay_pool().await;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let relay = {
        let _inside = runtime.enter();
        let relay = Relay::builder(pool).publisher(RecordingPublisher::default());
        relay.options(quick()).spawn().unwrap()
    };
    relay.ready().await.unwrap();
    runtime.shutdown_background();
    eventually(SOON, async || (relay.health() == Health::Stopped).then_some(())).await;
    assert!(relay.ready().await.is_err() && relay.drained().await.is_err());
}
