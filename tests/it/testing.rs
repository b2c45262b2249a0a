//! The test kit sees exactly what was emitted and says what differs.

use std::panic::{AssertUnwindSafe, catch_unwind};

use diesel::connection::SimpleConnection as _;
use diesel::{Connection as _, PgConnection};
use diesel_async::AsyncConnection as _;
use outbox_diesel::testing::{
    assert_emitted, assert_emitted_async, assert_no_events, assert_no_events_async, emitted,
    emitted_async,
};
use outbox_diesel::{AsyncEmit, Emit, EmitError, OutboxEvent};
use outbox_tests::{TestDatabase, TestEvent};

/// The message of the panic that the assertion ends with.
fn failure(conn: &mut PgConnection, expected: &[&dyn OutboxEvent]) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| assert_emitted(conn, expected))).unwrap_err();
    *panic.downcast().expect("a formatted panic has a String")
}

#[test]
fn in_a_test_transaction_its_own_events_are_seen_and_no_others() {
    let database = TestDatabase::new();
    let (mut conn, mut other) = (database.sync(), database.sync());
    conn.transaction(|conn| conn.emit(&TestEvent::new("committed before"))).unwrap();
    conn.begin_test_transaction().unwrap();
    assert_no_events(&mut conn);
    let event = TestEvent::new("a").dedup_key("k").header("tenant", "acme").payload(r#"{"n": 1}"#);
    let id = conn.emit(&event).unwrap().id();
    other.transaction(|conn| conn.emit(&TestEvent::new("committed meanwhile"))).unwrap();
    conn.transaction(|conn| conn.emit(&TestEvent::new("b"))).unwrap();
    conn.transaction::<(), EmitError, _>(|conn| {
        conn.emit(&TestEvent::new("rolled back"))?;
        Err(EmitError::NotInTransaction)
    })
    .unwrap_err();

    assert_emitted(&mut conn, &[&event, &TestEvent::new("b")]);
    let events = emitted(&mut conn).unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].id, id);
    assert_eq!(events[0].dedup_key.as_deref(), Some("k"));
    assert_eq!(events[0].headers["tenant"], "acme");
    assert_eq!(events[0].payload["n"], 1);
    assert_eq!(events[0].payload_text, r#"{"n": 1}"#);
    assert!(events[0].seq < events[1].seq);
}

#[test]
fn outside_of_a_transaction_all_committed_events_are_seen() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    assert_no_events(&mut conn);
    for id in ["a", "b"] {
        conn.transaction(|conn| conn.emit(&TestEvent::new(id))).unwrap();
    }
    assert_emitted(&mut conn, &[&TestEvent::new("a"), &TestEvent::new("b")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn asynchronous_test_transactions_are_seen_too() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.transaction(async |conn| conn.emit(&TestEvent::new("before")).await).await.unwrap();
    assert_emitted_async(&mut conn, &[&TestEvent::new("before")]).await;
    tokio::spawn(async move {
        conn.begin_test_transaction().await.unwrap();
        assert_no_events_async(&mut conn).await;
        let event = TestEvent::new("a").payload("[1]");
        conn.emit(&event).await.unwrap();
        assert_emitted_async(&mut conn, &[&event]).await;
        let events = emitted_async(&mut conn).await.unwrap();
        assert_eq!(events[0].payload_as::<Vec<u8>>().unwrap(), [1]);
    })
    .await
    .unwrap();
}

#[test]
fn a_payload_is_read_as_a_consumer_would() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let large = TestEvent::new(1).payload(i128::MIN.to_string());
    conn.transaction(|conn| conn.emit(&large)).unwrap();
    let event = emitted(&mut conn).unwrap().remove(0);
    assert_eq!(event.payload_as::<i128>().unwrap(), i128::MIN);
    assert!(event.payload_as::<String>().is_err());
}

#[test]
fn payloads_are_compared_as_json_values() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    conn.begin_test_transaction().unwrap();
    conn.emit(&TestEvent::new(1).payload(r#"{"a":1,"b":[2]}"#)).unwrap();
    assert_emitted(&mut conn, &[&TestEvent::new(1).payload(r#"{ "b": [2], "a": 1 }"#)]);
}

#[test]
fn each_part_of_an_event_is_compared() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    conn.begin_test_transaction().unwrap();
    let event = || TestEvent::new(1);
    conn.emit(&event()).unwrap();
    assert_emitted(&mut conn, &[&event()]);
    for (other, part) in [
        (TestEvent::new(2), r#""aggregate_id":"2""#),
        (event().aggregate_type("invoice").topic("order"), r#""aggregate_type":"invoice""#),
        (event().event_type("order.paid"), r#""event_type":"order.paid""#),
        (event().event_version(2), r#""event_version":2"#),
        (event().topic("orders"), r#""topic":"orders""#),
        (event().dedup_key("k"), r#""dedup_key":"k""#),
        (event().header("n", "v"), r#""headers":{"n":"v"}"#),
        (event().payload("null"), r#""payload":null"#),
    ] {
        let message = failure(&mut conn, &[&other]);
        assert!(message.contains("event 1 differs"), "{message}");
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_failure_shows_each_event_that_differs_is_missing_or_was_not_expected() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    conn.begin_test_transaction().unwrap();
    conn.emit_all(&[TestEvent::new(1), TestEvent::new(2)]).unwrap();
    let paid = TestEvent::new(2).event_type("order.paid").payload(r#"{"total":7}"#);
    assert_eq!(
        failure(&mut conn, &[&TestEvent::new(1), &paid, &TestEvent::new(3)]),
        r#"the emitted events are not the expected ones (3 expected, 2 emitted)
  event 2 differs
    expected {"event_type":"order.paid","event_version":1,"aggregate_type":"order","aggregate_id":"2","topic":"order","payload":{"total":7}}
    emitted  {"event_type":"order.created","event_version":1,"aggregate_type":"order","aggregate_id":"2","topic":"order","payload":{}}
    event_type: "order.paid" expected, not "order.created"
    payload.total: 7 expected, is missing
  event 3 is missing
    expected {"event_type":"order.created","event_version":1,"aggregate_type":"order","aggregate_id":"3","topic":"order","payload":{}}"#
    );
    assert_eq!(
        failure(&mut conn, &[&TestEvent::new(1)]),
        r#"the emitted events are not the expected ones (1 expected, 2 emitted)
  event 2 was not expected
    emitted  {"event_type":"order.created","event_version":1,"aggregate_type":"order","aggregate_id":"2","topic":"order","payload":{}}"#
    );
}

#[test]
fn an_expected_event_that_no_emit_would_take_is_named() {
    let database = TestDatabase::new();
    let message = failure(&mut database.sync(), &[&TestEvent::new(1), &TestEvent::new("")]);
    assert_eq!(message, "expected event 2 could not be emitted: the aggregate id is empty");
}

#[test]
fn a_missing_schema_is_named() {
    let database = TestDatabase::empty();
    let message = failure(&mut database.sync(), &[]);
    assert!(message.starts_with("outbox.events could not be read: "), "{message}");
}

#[tokio::test]
#[should_panic(expected = "it/testing.rs")]
async fn a_failed_asynchronous_assertion_names_the_line_that_called_it() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    assert_emitted_async(&mut conn, &[&TestEvent::new(1)]).await;
}

#[test]
fn in_a_read_only_transaction_nothing_was_emitted() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    conn.begin_test_transaction().unwrap();
    conn.batch_execute("SET TRANSACTION READ ONLY").unwrap();
    assert_no_events(&mut conn);
}
