//! `outbox subscriptions`, `outbox replay` and `outbox rebase`.

use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{TestDatabase, eventually};

use crate::program::{PATIENCE, json, outbox};

#[test]
fn a_subscription_is_created_changed_and_removed() {
    let database = TestDatabase::new();
    assert_eq!(
        json(&database, &["subscriptions", "create", "audit", "--topic", "order"])["created"],
        true
    );
    assert_eq!(json(&database, &["subscriptions", "create", "audit"])["created"], false);
    assert_eq!(
        json(&database, &["subscriptions", "topics", "audit", "order", "cart"])["changed"],
        true
    );
    let listed = json(&database, &["subscriptions", "list"]);
    assert_eq!(listed[0]["topics"], serde_json::json!(["cart", "order"]), "{listed}");
    assert_eq!(json(&database, &["subscriptions", "topics", "audit", "--all"])["changed"], true);
    let said = outbox(&database, &["subscriptions", "remove", "audit"]).failed(2);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(json(&database, &["subscriptions", "remove", "audit", "--yes"])["removed"], true);
    let said = outbox(&database, &["subscriptions", "remove", "audit", "--yes"]).failed(1);
    assert!(
        said.contains("no subscription \"audit\"") && said.contains("subscriptions list"),
        "{said}"
    );
}

#[test]
fn a_backlog_is_skipped_only_with_yes() {
    let database = TestDatabase::new();
    database.insert("a");
    database.insert("b");
    let plan = json(&database, &["subscriptions", "skip", "default"]);
    assert_eq!((&plan["events"]["events"], &plan["done"]), (&2.into(), &false.into()));
    let pending = || json(&database, &["status"])["subscriptions"][0]["pending"]["events"].clone();
    assert_eq!(pending(), 2);
    assert_eq!(json(&database, &["subscriptions", "skip", "default", "--yes"])["done"], true);
    assert_eq!(pending(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_delivered_is_replayed_and_rewound() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    database.insert("a");
    database.insert("b");
    eventually(PATIENCE, async || (broker.delivered().len() == 2).then_some(())).await;
    // A replay leaves out what no cursor in the database has passed yet.
    let passed = "SELECT bool_and(t.seq_after >= (SELECT max(seq) FROM outbox.events)) FROM outbox.cursors c JOIN outbox.ticks t ON t.tick = c.tick";
    eventually(PATIENCE, async || database.value::<bool>(passed).then_some(())).await;
    let done = json(&database, &["replay", "start", "--aggregate-id", "a", "--wait"]);
    assert_eq!((&done["sent"], &done["left"]), (&1.into(), &0.into()), "{done}");
    let id = done["id"].as_str().unwrap();
    assert!(outbox(&database, &["replay", "status", id]).said().contains("done, 1 events sent"));
    assert_eq!(json(&database, &["replay", "cancel", id])["cancelled"], false);
    assert_eq!(broker.delivered().len(), 3);
    outbox(&database, &["subscriptions", "rewind", "default", "--to", "earliest"]).failed(2);
    json(&database, &["subscriptions", "rewind", "default", "--to", "earliest", "--yes"]);
    eventually(PATIENCE, async || (broker.delivered().len() == 5).then_some(())).await;
    relay.shutdown().await;
}

#[test]
fn a_rebase_is_planned_and_done_only_with_yes() {
    let database = TestDatabase::new();
    assert!(outbox(&database, &["rebase"]).said().contains("nothing to rebase"));
    database.insert("a");
    database.sql("UPDATE outbox.meta SET database_oid = 1");
    let plan = json(&database, &["rebase"]);
    assert_eq!((&plan["is_foreign"], &plan["done"]), (&true.into(), &false.into()));
    assert!(outbox(&database, &["rebase"]).said().contains("give --yes"));
    let done = json(&database, &["rebase", "--yes"]);
    assert_eq!(
        (&done["done"], &done["subscriptions"][0]["undelivered"]),
        (&true.into(), &1.into())
    );
    assert_eq!(json(&database, &["rebase"])["is_needed"], false);
}
