//! Subscriptions: their topics changed, moved forward and back, removed.

use chrono::{TimeDelta, Utc};
use diesel_async::AsyncPgConnection;
use outbox_diesel::admin::{self, AdminError, Events};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::subscription::{self, Start};
use outbox_diesel::{Health, Relay};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually, quick};

use crate::admin::{Rejects, dead, emit, event, gets, got, holds, nothing_parked, strict_relay};
use crate::admin_replay::aged;

/// An event of aggregate `a`.
async fn on(conn: &mut AsyncPgConnection, topic: &str, event_type: &str) {
    emit(conn, event("a", event_type).topic(topic)).await;
}

fn tick(database: &TestDatabase) {
    // NULL: the relay is just taking one.
    while !database.value::<bool>("SELECT outbox.take_tick() IS NOT NULL") {}
}

/// Waits until all cursors have arrived at the newest tick.
async fn settled(database: &TestDatabase) {
    let at_the_end =
        "SELECT bool_and(tick = (SELECT max(tick) FROM outbox.ticks)) FROM outbox.cursors";
    holds(database, at_the_end).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn other_topics_hold_for_what_commits_from_then_on_and_nothing_else() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    assert!(subscription::set_topics(&mut conn, "default", &["t1"]).await.unwrap());
    let relay = strict_relay(&database, &broker).await;
    on(&mut conn, "t1", "1").await;
    on(&mut conn, "t2", "not yet").await;
    gets(&broker, "a", &["1"]).await;
    assert!(subscription::set_topics(&mut conn, "default", &["t2", "t1"]).await.unwrap());
    assert!(!subscription::set_topics(&mut conn, "default", &["t1", "t2", "t1"]).await.unwrap());
    on(&mut conn, "t2", "2").await;
    gets(&broker, "a", &["1", "2"]).await;
    assert!(subscription::set_topics(&mut conn, "default", &[]).await.unwrap());
    on(&mut conn, "t3", "3").await;
    gets(&broker, "a", &["1", "2", "3"]).await;
    let error = subscription::set_topics(&mut conn, "other", &[]).await.unwrap_err();
    assert!(matches!(error, AdminError::NoSubscription(_)), "{error}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_steps_over_ticks_gives_older_events_the_older_topics() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    subscription::set_topics(&mut conn, "default", &["t1", "t2"]).await.unwrap();
    let relay = strict_relay(&database, &broker).await;
    // It may step over ticks once it has walked some diffs one by one.
    for n in 0..40 {
        emit(&mut conn, TestEvent::new("walk").topic("t1")).await;
        eventually(SOON, async || (got(&broker, "walk").len() == n + 1).then_some(())).await;
    }
    broker.go_away("for a backlog");
    let mut expected = Vec::new();
    for n in 0..20 {
        let name = n.to_string();
        on(&mut conn, "t2", &name).await;
        expected.push(name);
        tick(&database);
    }
    subscription::set_topics(&mut conn, "default", &["t1"]).await.unwrap();
    for _ in 0..20 {
        on(&mut conn, "t2", "not any more").await;
        tick(&database);
    }
    subscription::set_topics(&mut conn, "default", &[]).await.unwrap();
    for n in 20..40 {
        let name = n.to_string();
        on(&mut conn, "t2", &name).await;
        expected.push(name);
        tick(&database);
    }
    broker.come_back();
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    gets(&broker, "a", &expected).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_changed_again_and_again_under_load_lose_nothing_and_let_nothing_through() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    let relay = strict_relay(&database, &broker).await;
    let mut expected = Vec::new();
    for round in 0..30 {
        let wants = round % 2 == 0;
        let topics: &[&str] = if wants { &["t1", "t2"] } else { &["t1"] };
        subscription::set_topics(&mut conn, "default", topics).await.unwrap();
        for n in 0..3 {
            let name = format!("{round}.{n}");
            on(&mut conn, "t2", &name).await;
            if wants {
                expected.push(name);
            }
        }
    }
    on(&mut conn, "t1", "last").await;
    expected.push("last".to_owned());
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    gets(&broker, "a", &expected).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skip_is_planned_counted_and_delivers_nothing_of_before() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    subscription::set_topics(&mut conn, "default", &["order"]).await.unwrap();
    let relay = strict_relay(&database, &broker).await;
    emit(&mut conn, event("a", "sent")).await;
    gets(&broker, "a", &["sent"]).await;
    settled(&database).await;
    broker.go_away("for a backlog");
    for n in 0..5 {
        emit(&mut conn, event(&format!("b{n}"), "skipped")).await;
        emit(&mut conn, event("x", "other").topic("t")).await;
    }
    let plan = admin::plan_skip(&mut conn, "default", Start::Now).await.unwrap();
    emit(&mut conn, event("a", "after the plan")).await;
    holds(&database, "SELECT bool_and(owner IS NOT NULL) FROM outbox.cursors").await;
    assert_eq!(plan.events, Events::Exactly(5));
    assert_eq!(admin::skip(&mut conn, &plan).await.unwrap(), Events::Exactly(5));
    assert_eq!(admin::skip(&mut conn, &plan).await.unwrap(), Events::Exactly(0), "twice");
    broker.come_back();
    emit(&mut conn, event("a", "live")).await;
    gets(&broker, "a", &["sent", "after the plan", "live"]).await;
    assert_eq!(broker.delivered().len(), 3);
    let error = admin::plan_skip(&mut conn, "other", Start::Now).await.unwrap_err();
    assert!(matches!(error, AdminError::NoSubscription(_)), "{error}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_that_would_skip_more_than_it_says_is_refused() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    let relay = strict_relay(&database, &broker).await;
    emit(&mut conn, event("a", "1")).await;
    gets(&broker, "a", &["1"]).await;
    relay.shutdown().await;
    let plan = admin::plan_skip(&mut conn, "default", Start::Now).await.unwrap();
    assert_eq!(plan.events, Events::Exactly(0));
    subscription::rewind(&mut conn, "default", Start::Earliest).await.unwrap();
    let error = admin::skip(&mut conn, &plan).await.unwrap_err();
    assert!(matches!(error, AdminError::PlanOutdated(_)), "{error}");
    let plan = admin::plan_skip(&mut conn, "default", Start::Now).await.unwrap();
    assert_eq!(plan.events, Events::Exactly(1));
    database.sql("DELETE FROM outbox.ticks WHERE tick = (SELECT max(tick) FROM outbox.ticks)");
    let error = admin::skip(&mut conn, &plan).await.unwrap_err();
    assert!(matches!(error, AdminError::PlanOutdated(_)), "{error}");
}

#[tokio::test]
async fn a_large_backlog_is_estimated() {
    let database = TestDatabase::new();
    database.sql(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT 't', 'order', '1', 'e', '1' FROM generate_series(1, 10500)",
    );
    let mut conn = database.connect().await;
    let plan = admin::plan_skip(&mut conn, "default", Start::Now).await.unwrap();
    assert!(matches!(plan.events, Events::AtMost(10_500..10_510)), "{:?}", plan.events);
    admin::skip(&mut conn, &plan).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_aims_beyond_the_plan_is_not_moved_into_the_middle_of_its_diff() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    let plan = admin::plan_skip(&mut conn, "default", Start::Now).await.unwrap();
    tick(&database);
    database.sql(
        "UPDATE outbox.cursors SET target = (SELECT max(tick) FROM outbox.ticks) WHERE shard = 7",
    );
    admin::skip(&mut conn, &plan).await.unwrap();
    let left = "SELECT array_agg(shard::text) FROM outbox.cursors WHERE tick = 0";
    assert_eq!(database.value::<Vec<String>>(left), ["7"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewound_subscription_delivers_all_again_through_the_fence_while_its_relay_runs() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let rejects = Rejects::of(&broker, &["bad"]);
    let mut conn = database.connect().await;
    let relay = strict_relay(&database, &broker).await;
    for name in ["1", "2", "bad"] {
        emit(&mut conn, event("a", name)).await;
    }
    dead(&database, 1).await;
    gets(&broker, "a", &["1", "2"]).await;
    let now = Utc::now();
    subscription::rewind(&mut conn, "default", Start::Earliest).await.unwrap();
    gets(&broker, "a", &["1", "2", "1", "2"]).await;
    // What is parked is sent once.
    rejects.set(&[]);
    admin::retry_all(&mut conn, &admin::Filter::default()).await.unwrap();
    emit(&mut conn, event("a", "3")).await;
    gets(&broker, "a", &["1", "2", "1", "2", "bad", "3"]).await;
    nothing_parked(&database).await;
    let to = subscription::rewind(&mut conn, "default", Start::Since(now)).await.unwrap();
    assert!(to <= now && now - to < TimeDelta::seconds(20), "{to} {now}");
    gets(&broker, "a", &["1", "2", "1", "2", "bad", "3", "3"]).await;
    relay.shutdown().await;
}

#[tokio::test]
async fn a_rewind_beyond_what_is_kept_is_refused() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    emit(&mut conn, TestEvent::new(1)).await;
    tick(&database);
    let before = Utc::now() - TimeDelta::days(3);
    // Nothing was dropped yet: all there ever was.
    subscription::rewind(&mut conn, "default", Start::Since(before)).await.unwrap();
    database.sql(
        "SELECT setval('outbox.event_seq', 1500000);
         INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'a', '1', 'e', '1');
         TRUNCATE outbox.events_s1",
    );
    let error = subscription::rewind(&mut conn, "default", Start::Since(before)).await.unwrap_err();
    assert!(matches!(error, AdminError::NotKept { kept_from: 1_000_000, .. }), "{error}");
    subscription::rewind(&mut conn, "default", Start::Earliest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_is_removed_once_its_relays_are_stopped_and_what_was_parked_is_recorded() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let mut conn = database.connect().await;
    let relay = strict_relay(&database, &broker).await;
    emit(&mut conn, event("a", "bad")).await;
    dead(&database, 1).await;
    let error = subscription::remove(&mut conn, "default").await.unwrap_err();
    assert!(matches!(error, AdminError::RelaysLive { relays: 1, .. }), "{error}");
    relay.shutdown().await;
    assert!(subscription::remove(&mut conn, "default").await.unwrap());
    assert!(!subscription::remove(&mut conn, "default").await.unwrap());
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.discarded"), 1);
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.cursors"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_made_anew_under_its_relay_starts_anew() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    let relay = strict_relay(&database, &broker).await;
    emit(&mut conn, event("a", "1").topic("t1")).await;
    emit(&mut conn, event("a", "2").topic("t2")).await;
    gets(&broker, "a", &["1", "2"]).await;
    // By hand, under a running relay.
    database.sql("DELETE FROM outbox.subscriptions");
    eventually(SOON, async || {
        matches!(relay.health(), Health::Interrupted { cause } if cause.contains("no subscription"))
            .then_some(())
    })
    .await;
    subscription::create(&mut conn, "default", Start::Earliest, &["t2"]).await.unwrap();
    gets(&broker, "a", &["1", "2", "2"]).await;
    // At once, so that it never sees it missing.
    database.sql("BEGIN; DELETE FROM outbox.subscriptions;
        INSERT INTO outbox.subscriptions (name, generation) VALUES ('default', 9000000000000000);
        INSERT INTO outbox.topic_filters (subscription, from_tick, topics) VALUES ('default', 0, '{t1}');
        INSERT INTO outbox.cursors (subscription, shard, tick) SELECT 'default', n, 0 FROM generate_series(0, 15) n; COMMIT");
    gets(&broker, "a", &["1", "2", "2", "1"]).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_can_start_at_a_time() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    emit(&mut conn, event("a", "before")).await;
    tick(&database);
    let then = Utc::now();
    emit(&mut conn, event("a", "after")).await;
    tick(&database);
    subscription::create(&mut conn, "late", Start::Since(then), &[]).await.unwrap();
    let relay = Relay::builder(database.pool(1).await)
        .publisher(broker.clone())
        .options(quick())
        .subscription("late")
        .spawn()
        .unwrap();
    gets(&broker, "a", &["after"]).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewind_to_what_inboxes_may_have_forgotten_is_refused() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = aged(&database, &broker).await;
    let mut conn = database.connect().await;
    let random: uuid::Uuid =
        database.value("SELECT id FROM outbox.events WHERE aggregate_id = 'random'");
    let error = subscription::rewind(&mut conn, "default", Start::Earliest).await.unwrap_err();
    assert!(matches!(error, AdminError::MayBeForgotten(id) if id == random), "{error}");
    assert_eq!(broker.delivered().len(), 3);
    // Without it: the inbox tells the time of the one, and remembers the other.
    database.sql("DELETE FROM outbox.events WHERE aggregate_id = 'random'");
    subscription::rewind(&mut conn, "default", Start::Earliest).await.unwrap();
    eventually(SOON, async || (broker.delivered().len() == 5).then_some(())).await;
    // What was never delivered does not come again: it may be as old as it likes.
    relay.shutdown().await;
    database.insert("late");
    database.sql("UPDATE outbox.events SET created_at = created_at - interval '30 days' WHERE aggregate_id = 'late'");
    subscription::rewind(&mut conn, "default", Start::Earliest).await.unwrap();
}
