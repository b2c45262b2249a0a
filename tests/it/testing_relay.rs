//! The test kit's relay: everything at once, nothing by the clock, and dying where it is told to.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use diesel::RunQueryDsl as _;
use diesel_async::AsyncConnection as _;
use outbox_diesel::inbox::Inbox;
use outbox_diesel::publish::{OwnedMessage, PublishError, publisher_fn};
use outbox_diesel::testing::{
    CrashPoint, DrainError, RecordingPublisher, TestRelay, assert_delivered,
};
use outbox_diesel::{Emit as _, RelayOptions, RetryOptions};
use outbox_tests::{TestDatabase, TestEvent};

fn emit(database: &TestDatabase, events: &[TestEvent]) {
    let mut conn = database.sync();
    diesel::Connection::transaction(&mut conn, |conn| conn.emit_all(events)).expect("emits");
}

fn count(database: &TestDatabase, table: &str) -> i64 {
    database.value(&format!("SELECT count(*) FROM {table}"))
}

fn unsettled(database: &TestDatabase) -> i64 {
    database.value("SELECT count(*) FROM outbox.event_status WHERE status <> 'published'")
}

#[tokio::test]
async fn everything_that_is_committed_is_delivered_in_one_call_and_settled() {
    let (database, broker) = (TestDatabase::new(), RecordingPublisher::default());
    let mut relay = TestRelay::new(database.pool(2).await, broker.clone());
    assert_eq!(relay.deliver_all().await.expect("delivers"), 0);
    let events: Vec<_> = (0..2500).map(TestEvent::new).collect();
    emit(&database, &events);
    // In flight: not yet, and later.
    let mut open = database.connect().await;
    open.begin_test_transaction().await.expect("begins");
    diesel_async::RunQueryDsl::execute(
        diesel::sql_query("INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'order', '9000', 'order.created', '{}')"),
        &mut open,
    )
    .await
    .expect("inserts");
    assert_eq!(relay.deliver_all().await.expect("delivers"), 2500);
    assert_eq!(unsettled(&database), 0);
    diesel_async::SimpleAsyncConnection::batch_execute(&mut open, "COMMIT").await.expect("commits");
    assert_eq!(relay.deliver_all().await.expect("delivers"), 1, "the straggler");
    assert_eq!(broker.delivered().len(), 2501);
    assert_eq!(broker.repeats(), 0);
}

#[tokio::test]
async fn rejected_events_are_retried_without_a_pause_until_delivered_or_dead() {
    let (database, broker) = (TestDatabase::new(), RecordingPublisher::default());
    let retry = RetryOptions::default().attempts(3).base(Duration::from_secs(3600));
    let options = RelayOptions::default().retry(retry);
    let mut relay = TestRelay::with(database.pool(2).await, broker.clone(), "default", options);
    let tries = Arc::new(Mutex::new(0));
    broker.reject(move |event| {
        let mut tries = tries.lock().expect("no holder panics");
        *tries += u32::from(event.aggregate_id() == "1");
        let poison = event.aggregate_id() == "2" && event.payload() == "{}";
        (poison || (event.aggregate_id() == "1" && *tries < 3)).then(|| "not now".to_owned())
    });
    let behind = TestEvent::new(2).payload("[]");
    let events =
        [TestEvent::new(1), TestEvent::new(1), TestEvent::new(2), behind, TestEvent::new(3)];
    emit(&database, &events);
    let began = Instant::now();
    assert_eq!(relay.deliver_all().await.expect("delivers"), 3);
    assert!(began.elapsed() < Duration::from_secs(1800), "nobody waited for the pause");
    let one: Vec<_> =
        broker.delivered().into_iter().filter(|r| r.message.aggregate_id() == "1").collect();
    assert!(one[0].message.seq() < one[1].message.seq(), "in order");
    assert_eq!(
        (count(&database, "outbox.dead_letters"), count(&database, "outbox.parked")),
        (1, 2)
    );
    // It ends as well when there is nothing but what is dead and what waits behind it.
    assert_eq!(relay.deliver_all().await.expect("delivers"), 0);
}

#[tokio::test]
async fn a_broker_that_is_away_or_hangs_is_an_error_and_loses_nothing() {
    let (database, broker) = (TestDatabase::new(), RecordingPublisher::default());
    let options = RelayOptions::default().publish_timeout(Duration::from_millis(50));
    let mut relay = TestRelay::with(database.pool(2).await, broker.clone(), "default", options);
    emit(&database, &[TestEvent::new(1)]);
    broker.go_away("closed");
    let error = relay.deliver_all().await.expect_err("it is away");
    assert!(matches!(&error, DrainError::Unavailable(reason) if reason == "closed"), "{error}");
    broker.come_back();
    broker.hang();
    let error = relay.deliver_all().await.expect_err("it hangs");
    assert!(matches!(&error, DrainError::Unavailable(_)), "{error}");
    broker.come_back();
    broker.lose_answers(1);
    relay.deliver_all().await.expect_err("nobody knows");
    assert_eq!(relay.deliver_all().await.expect("delivers"), 1);
    assert_delivered(&broker, &[&TestEvent::new(1)]);
    assert_eq!((broker.repeats(), count(&database, "outbox.parked")), (1, 0));
}

#[tokio::test]
async fn a_relay_dies_where_it_is_told_and_a_broker_with_a_fence_shows_no_trace() {
    for point in CrashPoint::ALL {
        let (database, broker) = (TestDatabase::new(), RecordingPublisher::default());
        let mut relay = TestRelay::new(database.pool(2).await, broker.clone());
        emit(&database, &[TestEvent::new(1), TestEvent::new(2)]);
        let published = relay.crash_at(point).await.expect("dies");
        let repeats = if point == CrashPoint::AfterClaim { 0 } else { 2 };
        assert_eq!((published, unsettled(&database)), (repeats, 2), "{point:?}");
        assert_eq!(relay.deliver_all().await.expect("delivers"), 2);
        assert_delivered(&broker, &[&TestEvent::new(1), &TestEvent::new(2)]);
        assert_eq!((broker.repeats() as u64, unsettled(&database)), (repeats, 0), "{point:?}");
    }
}

#[tokio::test]
async fn a_crash_at_a_publish_with_nothing_to_publish_is_an_error() {
    let database = TestDatabase::new();
    let mut relay = TestRelay::new(database.pool(2).await, RecordingPublisher::default());
    let error = relay.crash_at(CrashPoint::AfterPublish).await.expect_err("nobody can die");
    assert!(matches!(error, DrainError::NothingToPublish), "{error}");
}

/// A consumer, called once per event by a publisher that remembers nothing.
async fn effects_of(idempotent: bool) -> i64 {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE effects (event_id uuid NOT NULL)");
    let url = database.url();
    let inbox = Inbox::new("billing").expect("a good name");
    let publisher = publisher_fn(move |event: OwnedMessage| {
        let (url, inbox) = (url.clone(), inbox.clone());
        async move {
            let mut conn = <diesel::PgConnection as diesel::Connection>::establish(&url)?;
            let effect = |conn: &mut diesel::PgConnection| {
                diesel::sql_query("INSERT INTO effects VALUES ($1)")
                    .bind::<diesel::sql_types::Uuid, _>(event.id())
                    .execute(conn)
            };
            if idempotent {
                inbox.once(&mut conn, event.id(), effect)?;
            } else {
                effect(&mut conn)?;
            }
            Ok::<_, PublishError>(())
        }
    });
    let mut relay = TestRelay::new(database.pool(2).await, publisher);
    for point in CrashPoint::ALL {
        emit(&database, &[TestEvent::new(1)]);
        relay.crash_at(point).await.expect("dies");
        relay.deliver_all().await.expect("delivers");
    }
    count(&database, "effects")
}

#[tokio::test]
async fn crash_points_prove_that_a_consumer_is_idempotent_and_find_one_that_is_not() {
    assert_eq!(effects_of(true).await, 3);
    assert_eq!(effects_of(false).await, 5);
}

#[tokio::test]
async fn a_difference_in_what_was_delivered_is_told_part_by_part() {
    let (database, broker) = (TestDatabase::new(), RecordingPublisher::default());
    let mut relay = TestRelay::new(database.pool(2).await, broker.clone());
    emit(&database, &[TestEvent::new(1).payload(r#"{"a":{"b":1,"c":[1]},"d":2}"#)]);
    relay.deliver_all().await.expect("delivers");
    let expected = TestEvent::new(1).payload(r#"{"a":{"b":1,"c":[2]},"e":2}"#);
    let told = std::panic::catch_unwind(|| assert_delivered(&broker, &[&expected]));
    let told = *told.expect_err("they differ").downcast::<String>().expect("a message");
    for part in ["a.c: [2] expected, not [1]", "d: 2 not expected", "e: 2 expected, is missing"] {
        assert!(told.contains(&format!("\n    payload.{part}")), "{told}");
    }
}
