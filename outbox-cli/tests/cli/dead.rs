//! `outbox dead` and `outbox find`.

use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{RelayHandle, RetryOptions};
use outbox_tests::{TestDatabase, eventually, quick};

use crate::program::{PATIENCE, json, outbox};

/// A relay whose broker refuses order a for good: its first event is dead, and two wait behind it.
pub(crate) async fn refused(database: &TestDatabase) -> (RelayHandle, RecordingPublisher) {
    let broker = RecordingPublisher::default();
    broker.reject(|event| (event.aggregate_id() == "a").then(|| "no such stream".to_owned()));
    let options = quick().retry(RetryOptions::default().attempts(1));
    let relay = database.relay_with(broker.clone(), options).await;
    for order in ["a", "a", "b", "a"] {
        database.insert(order);
    }
    let parked = "SELECT count(*) = 3 AND count(*) FILTER (WHERE dead) = 1 FROM outbox.parked";
    eventually(PATIENCE, async || database.value::<bool>(parked).then_some(())).await;
    (relay, broker)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_listed_shown_and_retried_and_what_waits_follows() {
    let database = TestDatabase::new();
    let (relay, broker) = refused(&database).await;
    let listed =
        json(&database, &["dead", "list", "--subscription", "default", "--error", "no such"]);
    let letter = &listed["dead"][0];
    assert_eq!((&letter["held"], &letter["attempts"]), (&2.into(), &1.into()), "{listed}");
    assert_eq!(
        json(&database, &["dead", "list", "--topic", "else"])["dead"].as_array().unwrap().len(),
        0
    );
    let id = letter["event_id"].as_str().unwrap();
    let shown = json(&database, &["dead", "show", id]);
    assert_eq!(
        (shown["payload"].as_str(), shown["error"].as_str()),
        (Some("{}"), Some("no such stream"))
    );
    let table = outbox(&database, &["dead", "list"]).said();
    assert!(table.contains(id) && !table.contains('\x1b'), "{table}");

    let held: String =
        database.value("SELECT id::text FROM outbox.parked WHERE NOT dead ORDER BY seq LIMIT 1");
    let said = outbox(&database, &["dead", "retry", &held]).failed(1);
    assert!(said.contains(&format!("waits behind event {id}")), "{said}");
    let found = json(&database, &["find", &held]);
    assert_eq!(found["places"][0]["status"], "held", "{found}");

    broker.reject(|_| None);
    assert_eq!(json(&database, &["dead", "retry", id])["retried"], 1);
    eventually(PATIENCE, async || (broker.delivered().len() == 4).then_some(())).await;
    let said = outbox(&database, &["dead", "show", id]).failed(1);
    assert!(said.contains("it is published") && said.contains("outbox find"), "{said}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_discarded_with_a_reason_and_what_waits_goes_on() {
    let database = TestDatabase::new();
    let (relay, broker) = refused(&database).await;
    let id: String = database.value("SELECT id::text FROM outbox.parked WHERE dead");
    outbox(&database, &["dead", "discard", &id]).failed(2);
    outbox(&database, &["dead", "discard", "--all", "--reason", "x"]).failed(2);
    let said = outbox(&database, &["dead", "discard", &id, "--reason", " "]).failed(1);
    assert!(said.contains("a reason is needed"), "{said}");
    broker.reject(|_| None);
    assert_eq!(json(&database, &["dead", "discard", &id, "--reason", "INC-1"])["discarded"], 1);
    eventually(PATIENCE, async || (broker.delivered().len() == 3).then_some(())).await;
    let found = json(&database, &["find", &id]);
    assert_eq!(
        (&found["places"][0]["status"], &found["places"][0]["reason"]),
        (&"discarded".into(), &"INC-1".into())
    );
    assert!(outbox(&database, &["dead", "list"]).said().contains("no dead letters"));
    let said = outbox(&database, &["find", "01a22cb9-f099-75c8-8b5b-92ae72d4ef9f"]).failed(1);
    assert!(said.contains("there is no event"), "{said}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_a_filter_describes_is_retried_or_discarded() {
    let database = TestDatabase::new();
    let (relay, broker) = refused(&database).await;
    assert_eq!(json(&database, &["dead", "retry", "--all", "--error", "else"])["retried"], 0);
    broker.reject(|_| None);
    assert_eq!(json(&database, &["dead", "retry", "--all", "--since", "1h"])["retried"], 1);
    eventually(PATIENCE, async || (broker.delivered().len() == 4).then_some(())).await;
    let none = json(&database, &["dead", "discard", "--all", "--yes", "--reason", "x"]);
    assert_eq!(none["discarded"], 0);
    relay.shutdown().await;
}
