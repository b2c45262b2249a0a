//! Where is event …?

use outbox_diesel::admin::{self, AdminError, Status};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::subscription::{self, Start};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually};
use uuid::Uuid;

use crate::admin::{Rejects, dead, emit, event, holds, strict_relay};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_found_by_its_id_with_its_place_in_each_subscription() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let mut conn = database.connect().await;
    subscription::create(&mut conn, "carts", Start::Earliest, &["cart"]).await.unwrap();
    subscription::create(&mut conn, "idle", Start::Earliest, &[]).await.unwrap();
    let relay = strict_relay(&database, &broker).await;
    let sent = emit(&mut conn, TestEvent::new("b").payload(r#"{"n":  1}"#)).await;
    let first = emit(&mut conn, event("a", "bad")).await;
    let held = emit(&mut conn, event("a", "good")).await;
    dead(&database, 1).await;
    holds(&database, "SELECT count(*) = 2 FROM outbox.parked").await;
    eventually(SOON, async || {
        let found = admin::find(&mut conn, sent).await.unwrap();
        (found.places[1].status == Status::Published).then_some(())
    })
    .await;

    for (id, status) in [(sent, Status::Published), (first, Status::Dead), (held, Status::Held)] {
        let found = admin::find(&mut conn, id).await.unwrap();
        assert_eq!(found.event_id, id);
        let places: Vec<_> =
            found.places.iter().map(|place| (&*place.subscription, place.status)).collect();
        let expected =
            [("carts", Status::Filtered), ("default", status), ("idle", Status::Pending)];
        assert_eq!(places, expected);
    }
    let found = admin::find(&mut conn, sent).await.unwrap();
    assert_eq!((found.payload.as_str(), found.aggregate_id.as_str()), (r#"{"n":  1}"#, "b"));
    let found = admin::find(&mut conn, first).await.unwrap();
    assert_eq!(found.places[1].error.as_deref(), Some("bad is not wanted"));

    admin::discard(&mut conn, "default", first, "beyond help").await.unwrap();
    // Even after its partition has gone.
    relay.shutdown().await;
    database.sql("DELETE FROM outbox.events");
    let found = admin::find(&mut conn, first).await.unwrap();
    assert_eq!(found.places[1].status, Status::Discarded);
    assert_eq!(found.places[1].reason.as_deref(), Some("beyond help"));
    let error = admin::find(&mut conn, sent).await.unwrap_err();
    assert!(matches!(error, AdminError::NoEvent(id) if id == sent), "{error}");
}

#[tokio::test]
async fn an_id_of_another_version_is_found_too() {
    let database = TestDatabase::new();
    database.sql(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload, created_at)
         VALUES ('t', 'order', '1', 'e', '1', 'infinity')",
    );
    let id: Uuid = database.value("SELECT id FROM outbox.events");
    let mut conn = database.connect().await;
    assert_eq!(admin::find(&mut conn, id).await.unwrap().aggregate_id, "1");
}

#[tokio::test]
async fn a_version_7_id_is_looked_for_around_its_time_only() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    let near = emit(&mut conn, TestEvent::new("near")).await;
    let far = emit(&mut conn, TestEvent::new("far")).await;
    database.sql("UPDATE outbox.events SET created_at = created_at + interval '20 hours' WHERE aggregate_id = 'near'");
    database.sql("UPDATE outbox.events SET created_at = created_at + interval '2 days' WHERE aggregate_id = 'far'");
    assert_eq!(admin::find(&mut conn, near).await.unwrap().aggregate_id, "near");
    assert!(matches!(admin::find(&mut conn, far).await, Err(AdminError::NoEvent(_))));
}
