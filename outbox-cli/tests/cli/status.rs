//! `outbox status` and `outbox partitions`.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{TestDatabase, eventually};

use crate::program::{PATIENCE, json, outbox};

fn insert(database: &TestDatabase, count: u32) {
    database.sql(&format!(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT CASE WHEN n % 2 = 0 THEN 'even' ELSE 'odd' END, 'order', n::text, 'order.placed', '{{}}'
         FROM generate_series(1, {count}) n"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_is_counted_up_to_ten_thousand_and_estimated_above() {
    let database = TestDatabase::new();
    outbox(
        &database,
        &["subscriptions", "create", "even", "--start", "earliest", "--topic", "even"],
    )
    .said();
    let pending = || {
        let status = json(&database, &["status"]);
        let of = |n: usize| status["subscriptions"][n]["pending"].clone();
        (of(0), of(1))
    };
    let exactly = |events: u32| serde_json::json!({ "events": events, "is": "exact" });
    assert_eq!(pending(), (exactly(0), exactly(0)));
    insert(&database, 10_000);
    assert_eq!(pending(), (exactly(10_000), exactly(5_000)));
    insert(&database, 2_000);
    let at_most = serde_json::json!({ "events": 12_001, "is": "at_most" });
    assert_eq!(pending(), (at_most.clone(), at_most));
    assert!(outbox(&database, &["status"]).said().contains("≤ 12001"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_late_is_pending_and_what_was_delivered_before_is_not() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    let mut late = database.sync();
    late.batch_execute(
        "BEGIN; INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('t', 'order', 'late', 'x', '{}')",
    )
    .unwrap();
    insert(&database, 100);
    eventually(PATIENCE, async || (broker.delivered().len() == 100).then_some(())).await;
    eventually(PATIENCE, async || {
        let status = json(&database, &["status"]);
        (status["subscriptions"][0]["pending"]["events"] == 0).then_some(())
    })
    .await;
    relay.shutdown().await;
    late.batch_execute("COMMIT").unwrap();
    let status = json(&database, &["status"]);
    assert_eq!(
        status["subscriptions"][0]["pending"],
        serde_json::json!({ "events": 1, "is": "exact" })
    );
    assert!(status["subscriptions"][0]["oldest_pending_at"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_and_leases_are_shown_as_they_are() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    let status = eventually(PATIENCE, async || {
        let status = json(&database, &["status"]);
        let relay = &status["relays"][0];
        // Its first heartbeat may say what it was before.
        (relay["shards"] == 16 && relay["state"] == "running").then_some(status)
    })
    .await;
    assert_eq!(status["relays"][0]["is_live"], true);
    let owner = &status["relays"][0]["id"];
    let shards = status["subscriptions"][0]["shards"].as_array().unwrap();
    assert!(shards.len() == 16 && shards.iter().all(|shard| shard["owner"] == *owner), "{status}");
    let said = outbox(&database, &["status"]).said();
    assert!(said.contains("every shard has an owner") && said.contains("16/16"), "{said}");
    relay.shutdown().await;
    let said = outbox(&database, &["status"]).said();
    assert!(
        said.contains("default\t0-15\tnobody") && said.contains("none: outbox relay"),
        "{said}"
    );
    let said = outbox(&database, &["status", "--subscription", "else"]).failed(1);
    assert!(said.contains("no subscription \"else\""), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_shows_how_many_events_a_second_it_delivers() {
    let database = TestDatabase::new();
    outbox(&database, &["subscriptions", "create", "idle"]).said();
    insert(&database, 600);
    let relay = database.relay(RecordingPublisher::default()).await;
    let rate_of = |status: &serde_json::Value, nth: usize| {
        status["subscriptions"][nth]["delivered_per_second"].as_f64().unwrap()
    };
    // 600 within at least a second, and seen over at most a minute.
    let status = eventually(PATIENCE, async || {
        let status = json(&database, &["status"]);
        (rate_of(&status, 0) > 0.0).then_some(status)
    })
    .await;
    assert!(rate_of(&status, 0) <= 600.0, "{status}");
    assert!(status["relays"][0]["delivered_per_second"].as_f64().unwrap() > 0.0, "{status}");
    let idle = rate_of(&status, 1);
    assert!(idle.abs() < f64::EPSILON, "{status}");
    let said = outbox(&database, &["status"]).said();
    assert!(said.contains("\tdelivered/s\t"), "{said}");
    relay.shutdown().await;
    let status = json(&database, &["status"]);
    assert!(rate_of(&status, 0).abs() < f64::EPSILON, "nobody delivers any more: {status}");
}

#[test]
fn partitions_are_listed_and_made() {
    let database = TestDatabase::new();
    let states = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|p| p["state"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        states(&json(&database, &["partitions", "list"])),
        ["current", "ahead", "ahead", "default"]
    );
    assert_eq!(json(&database, &["partitions", "extend"])["made"], 0);
    database.sql("DROP TABLE outbox.events_s1000000, outbox.events_s2000000; SELECT setval('outbox.event_seq', 999000)");
    assert_eq!(json(&database, &["partitions", "extend"])["made"], 2);
    assert!(outbox(&database, &["partitions", "list"]).said().contains("events_s1000000\tahead"));
}
