//! Poison: events that hang or panic, and brokers that only seem to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_diesel::publish::{OwnedMessage, Publisher, RecordingPublisher, publisher_fn};
use outbox_diesel::{Health, RelayOptions, RetryOptions};
use outbox_tests::{SOON, TestDatabase, eventually, insert, orders, quick};

/// Short timeouts, and three attempts.
fn hasty() -> RelayOptions {
    let retry = RetryOptions::default().base(Duration::from_millis(5)).attempts(3);
    quick().publish_timeout(Duration::from_millis(200)).retry(retry)
}

fn some(count: usize) -> Vec<String> {
    (0..count).map(|n| n.to_string()).collect()
}

fn emit(database: &TestDatabase, ids: &[String]) {
    let statements: Vec<_> = ids.iter().map(|id| insert(id)).collect();
    database.sql(&statements.join(";"));
}

/// Remembers the most attempts that any event ever had.
fn watch_attempts(database: &TestDatabase) {
    database.sql(
        "CREATE TABLE burnt (seq bigint, attempts integer);
         CREATE FUNCTION burn() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO burnt VALUES (NEW.seq, NEW.attempts); RETURN NULL; END $$;
         CREATE TRIGGER burn AFTER INSERT OR UPDATE ON outbox.parked
         FOR EACH ROW WHEN (NEW.attempts > 0) EXECUTE FUNCTION burn()",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_hangs_the_publisher_every_time_ends_up_dead_and_the_others_go_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.hang_at(|event: &OwnedMessage| event.aggregate_id() == "poison");
    let mut events = some(100);
    events.insert(70, "poison".to_owned());
    events.push("poison".to_owned());
    emit(&database, &events);
    let relay = database.relay_with(broker.clone(), hasty()).await;
    assert_eq!(orders(&broker, 100).await, some(100));
    eventually(SOON, async || {
        database
            .value::<bool>(
                "SELECT count(*) = 1 AND bool_and(attempts = 3) FROM outbox.dead_letters",
            )
            .then_some(())
    })
    .await;
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 100);
    assert!(database.value::<bool>(
        "SELECT count(*) = 2 AND bool_and(aggregate_id = 'poison') AND count(error) = 1 FROM outbox.parked"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_hang_side_by_side_end_up_parked_and_the_others_go_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.hang_at(|event: &OwnedMessage| event.aggregate_id().starts_with("poison"));
    let mut events = some(10);
    events.splice(4..4, ["poison 1", "poison 2", "poison 3"].map(str::to_owned));
    emit(&database, &events);
    let relay = database.relay_with(broker.clone(), hasty()).await;
    assert_eq!(orders(&broker, 10).await, some(10));
    relay.shutdown().await;
    assert!(database.value::<bool>(
        "SELECT count(*) = 3 AND bool_and(aggregate_id LIKE 'poison%') FROM outbox.parked"
    ));
}

/// Brokers without a fence, which do not even answer a first contact.
fn closure(
    database: &TestDatabase,
    broken: impl Fn(&str) -> bool + Clone + Send + Sync + 'static,
    fail: Failing,
) -> (impl Publisher, Arc<std::sync::Mutex<Vec<String>>>) {
    let _ = database;
    let sent = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = sent.clone();
    let publisher = publisher_fn(move |event: OwnedMessage| {
        let (log, broken) = (log.clone(), broken.clone());
        async move {
            if broken(event.aggregate_id()) {
                match fail {
                    Failing::Hangs => std::future::pending::<()>().await,
                    Failing::Panics => panic!("no connection"),
                }
            }
            log.lock().unwrap().push(event.aggregate_id().to_owned());
            Ok(())
        }
    });
    (publisher, sent)
}

#[derive(Clone, Copy)]
enum Failing {
    Hangs,
    Panics,
}

async fn costs_no_attempt(fail: Failing) {
    let database = TestDatabase::new();
    watch_attempts(&database);
    let away = Arc::new(AtomicBool::new(false));
    let is_away = away.clone();
    let (publisher, sent) = closure(&database, move |_| is_away.load(Ordering::SeqCst), fail);
    let relay = database.relay_with(publisher, hasty()).await;
    emit(&database, &some(20));
    let all = async |count| {
        eventually(SOON, async || {
            let mut sent = sent.lock().unwrap().clone();
            sent.sort();
            sent.dedup();
            (sent.len() >= count).then_some(())
        })
        .await;
    };
    all(20).await;
    away.store(true, Ordering::SeqCst);
    emit(&database, &(20..60).map(|n| n.to_string()).collect::<Vec<_>>());
    eventually(SOON, async || {
        matches!(relay.health(), Health::BrokerUnavailable { .. }).then_some(())
    })
    .await;
    // Long enough for more than one event to be put aside.
    tokio::time::sleep(Duration::from_secs(3)).await;
    away.store(false, Ordering::SeqCst);
    all(60).await;
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked").then_some(())
    })
    .await;
    relay.shutdown().await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM burnt"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_hangs_for_a_while_costs_no_event_an_attempt() {
    costs_no_attempt(Failing::Hangs).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_panics_for_a_while_costs_no_event_an_attempt() {
    costs_no_attempt(Failing::Panics).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_hangs_a_publisher_without_a_fence_ends_up_dead_while_others_go_out() {
    let database = TestDatabase::new();
    let (publisher, sent) = closure(&database, |id| id == "poison", Failing::Hangs);
    let relay = database.relay_with(publisher, hasty()).await;
    emit(&database, &["1", "poison", "2"].map(str::to_owned));
    let mut n = 3;
    eventually(SOON * 2, async || {
        // Others pass it all the time.
        database.insert(&n.to_string());
        n += 1;
        database.value::<bool>("SELECT count(*) = 1 FROM outbox.dead_letters").then_some(())
    })
    .await;
    relay.shutdown().await;
    assert!(!sent.lock().unwrap().contains(&"poison".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_that_no_event_is_to_blame_for_cost_nothing() {
    let database = TestDatabase::new();
    watch_attempts(&database);
    let broker = RecordingPublisher::default();
    emit(&database, &some(40));
    // Owners that ended at the same place, again and again.
    database.sql("UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = '-infinity', crashes = 3");
    let relay = database.relay_with(broker.clone(), quick()).await;
    let mut sent = orders(&broker, 40).await;
    eventually(SOON, async || {
        database
            .value::<bool>(
                "SELECT NOT EXISTS (SELECT FROM outbox.parked) AND bool_and(crashes = 0) FROM outbox.cursors",
            )
            .then_some(())
    })
    .await;
    relay.shutdown().await;
    sent.sort_by_key(|id| id.parse::<u32>().unwrap());
    assert_eq!(sent, some(40));
    assert_eq!(broker.delivered().len(), 40);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM burnt WHERE attempts > 1"), 0);
}
