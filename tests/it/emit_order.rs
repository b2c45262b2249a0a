//! Events come in the order of emit, whatever the clock says.

use diesel::Connection as _;
use diesel_async::AsyncConnection as _;
use outbox_diesel::{AsyncEmit, Emit, EmitError, OutboxEvent};
use outbox_tests::{TestDatabase, TestEvent};

fn numbers(numbers: std::ops::Range<i32>) -> Vec<String> {
    numbers.map(|n| n.to_string()).collect()
}

#[test]
fn events_of_one_transaction_keep_their_order_in_200_rounds() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    for round in 0..200 {
        conn.transaction::<_, EmitError, _>(|conn| {
            for n in 0..3 {
                conn.emit(&TestEvent::new(round * 6 + n))?;
            }
            conn.emit_all(&[3, 4, 5].map(|n| TestEvent::new(round * 6 + n)))
        })
        .unwrap();
    }
    assert_eq!(database.emitted(), numbers(0..1200));
}

#[tokio::test]
async fn a_slice_keeps_its_order() {
    let database = TestDatabase::new();
    let plain: Vec<_> = (0..500).map(TestEvent::new).collect();
    // Keys in the opposite order: they are claimed in key order, events are inserted in slice order.
    let keyed: Vec<_> =
        (500..1000).map(|n| TestEvent::new(n).dedup_key(format!("{:04}", 1000 - n))).collect();
    let mut conn = database.connect().await;
    conn.transaction::<_, EmitError, _>(async |conn| {
        conn.emit_all(&plain).await?;
        conn.emit_all(&keyed).await
    })
    .await
    .unwrap();
    assert_eq!(database.emitted(), numbers(0..1000));
}

#[test]
fn a_slice_may_hold_several_types_and_be_empty() {
    let database = TestDatabase::new();
    let (plain, with_header) = (TestEvent::new("a"), TestEvent::new("b").with_header("n", "v"));
    let emitted = database
        .sync()
        .transaction::<_, EmitError, _>(|conn| {
            assert_eq!(conn.emit_all::<TestEvent>(&[])?, []);
            conn.emit_all(&[&plain as &dyn OutboxEvent, &with_header])
        })
        .unwrap();
    let ids: Vec<uuid::Uuid> =
        database.value("SELECT ARRAY(SELECT id FROM outbox.events ORDER BY seq)");
    assert_eq!(emitted.iter().map(outbox_diesel::Emitted::id).collect::<Vec<_>>(), ids);
    assert_eq!(database.emitted(), ["a", "b"]);
}

#[test]
fn ids_are_time_ordered() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let events = [TestEvent::new(1), TestEvent::new(2)];
    let emitted = conn.transaction(|conn| conn.emit_all(&events)).unwrap();
    assert!(emitted[0].id() < emitted[1].id());
    assert!(emitted.iter().all(|emitted| emitted.id().get_version_num() == 7));
}
