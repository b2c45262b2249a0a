//! Dead letters: listed, shown, retried, discarded.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use outbox_diesel::admin::{self, AdminError, Filter};
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, TestDatabase, eventually};
use uuid::Uuid;

use crate::admin::{
    Rejects, attempts, dead, emit, event, gets, got, holds, nothing_parked, strict_relay,
};

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_page_by_page_in_the_order_of_emit() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let mut ids = Vec::new();
    for n in 0..7 {
        ids.push(emit(&mut conn, event(&format!("a{n}"), "bad")).await);
    }
    dead(&database, 7).await;

    let mut seen = Vec::new();
    let mut after = None;
    let mut sizes = Vec::new();
    loop {
        let page = admin::list(&mut conn, &Filter::default(), after.as_ref(), 3).await.unwrap();
        sizes.push(page.letters.len());
        seen.extend(page.letters.iter().map(|letter| letter.event_id));
        after = page.next;
        if after.is_none() {
            break;
        }
        // What goes away between two pages moves nothing.
        admin::discard(&mut conn, "default", seen[0], "test").await.unwrap();
    }
    assert_eq!(sizes, [3, 3, 1]);
    assert_eq!(seen, ids);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_chooses_by_each_of_its_settings_and_by_all_together() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad", "worse"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    emit(&mut conn, event("1", "bad").topic("t1")).await;
    emit(&mut conn, event("2", "worse").topic("t1")).await;
    emit(&mut conn, event("3", "worse").topic("t2").aggregate_type("cart")).await;
    dead(&database, 3).await;
    let later = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let all = Filter::default;
    for (filter, expected) in [
        (all(), "1 2 3"),
        (all().subscription("default"), "1 2 3"),
        (all().subscription("other"), ""),
        (all().topic("t1"), "1 2"),
        (all().aggregate_type("cart"), "3"),
        (all().aggregate_id("2"), "2"),
        (all().event_type("worse"), "2 3"),
        (all().error_contains("bad is not"), "1"),
        (all().since(later), ""),
        (all().until(later), "1 2 3"),
        (all().topic("t1").event_type("worse"), "2"),
    ] {
        let page = admin::list(&mut conn, &filter, None, 100).await.unwrap();
        let ids: Vec<_> = page.letters.iter().map(|letter| &*letter.aggregate_id).collect();
        assert_eq!(ids.join(" "), expected, "{filter:?}");
    }
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_shown_with_all_its_parts() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let relay = database.relay_with(broker.clone(), attempts(3)).await;
    let mut conn = database.connect().await;
    let whole = event("a", "bad").payload(r#"{"b":1,  "a":2}"#).header("tenant", "acme");
    let id = emit(&mut conn, whole.dedup_key("k")).await;
    emit(&mut conn, event("a", "behind")).await;
    dead(&database, 1).await;
    holds(&database, "SELECT count(*) = 2 FROM outbox.parked").await;

    let shown = admin::show(&mut conn, "default", id).await.unwrap();
    assert_eq!((shown.letter.event_id, shown.letter.attempts, shown.letter.held), (id, 3, 1));
    assert_eq!(shown.letter.error.as_deref(), Some("bad is not wanted"));
    assert_eq!(shown.payload, r#"{"b":1,  "a":2}"#);
    assert_eq!(shown.headers, r#"{"tenant":"acme"}"#);
    assert_eq!(shown.dedup_key.as_deref(), Some("k"));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_event_gets_all_its_attempts_again_and_its_aggregate_keeps_its_order() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let rejects = Rejects::of(&broker, &["one"]);
    let relay = database.relay_with(broker.clone(), attempts(2)).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "one")).await;
    for behind in ["two", "three"] {
        emit(&mut conn, event("a", behind)).await;
    }
    emit(&mut conn, event("b", "free")).await;
    dead(&database, 1).await;
    gets(&broker, "b", &["free"]).await;
    assert!(got(&broker, "a").is_empty());

    // Still rejected: dead again after two attempts, not after one.
    admin::retry(&mut conn, "default", id).await.unwrap();
    dead(&database, 1).await;
    let tried = "SELECT attempts = 2 FROM outbox.parked WHERE dead";
    holds(&database, tried).await;

    rejects.set(&[]);
    admin::retry(&mut conn, "default", id).await.unwrap();
    emit(&mut conn, event("a", "four")).await;
    gets(&broker, "a", &["one", "two", "three", "four"]).await;
    nothing_parked(&database).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_resets_attempts_error_and_due_time_together() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "bad")).await;
    dead(&database, 1).await;
    relay.shutdown().await;
    for _ in 0..2 {
        admin::retry(&mut conn, "default", id).await.unwrap();
        assert!(database.value::<bool>(
            "SELECT attempts = 0 AND error IS NULL AND NOT dead AND next_attempt_at <= clock_timestamp() FROM outbox.parked"
        ));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_retried_or_discarded_says_why() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let sent = emit(&mut conn, event("b", "good")).await;
    let first = emit(&mut conn, event("a", "bad")).await;
    let held = emit(&mut conn, event("a", "good")).await;
    dead(&database, 1).await;
    gets(&broker, "b", &["good"]).await;
    holds(&database, "SELECT count(*) = 2 FROM outbox.parked").await;

    let error = admin::retry(&mut conn, "default", held).await.unwrap_err();
    assert!(matches!(error, AdminError::Held { behind, .. } if behind == first), "{error}");
    // The cursor may be a moment behind.
    eventually(SOON, async || {
        let error = admin::retry(&mut conn, "default", sent).await.unwrap_err();
        matches!(error, AdminError::NotParked { status: "published", .. }).then_some(())
    })
    .await;
    let unknown = Uuid::now_v7();
    let error = admin::retry(&mut conn, "default", unknown).await.unwrap_err();
    assert!(matches!(error, AdminError::NoEvent(id) if id == unknown), "{error}");
    let error = admin::discard(&mut conn, "defualt", first, "typo").await.unwrap_err();
    assert!(matches!(error, AdminError::NoSubscription(_)), "{error}");
    let error = admin::discard(&mut conn, "default", first, " ").await.unwrap_err();
    assert!(matches!(error, AdminError::NoReason), "{error}");
    admin::discard(&mut conn, "default", first, "beyond help").await.unwrap();
    let error = admin::show(&mut conn, "default", first).await.unwrap_err();
    assert!(matches!(error, AdminError::NotParked { status: "discarded", .. }), "{error}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_behind_a_discarded_event_goes_out_and_the_aggregate_flows_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["one"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "one").payload(r#"{"n": 1}"#)).await;
    emit(&mut conn, event("a", "two")).await;
    dead(&database, 1).await;
    holds(&database, "SELECT count(*) = 2 FROM outbox.parked").await;

    let discarded = Instant::now();
    let record = admin::discard(&mut conn, "default", id, "beyond help").await.unwrap();
    assert_eq!((record.event_id, &*record.reason), (id, "beyond help"));
    gets(&broker, "a", &["two"]).await;
    emit(&mut conn, event("a", "three")).await;
    gets(&broker, "a", &["two", "three"]).await;
    assert!(discarded.elapsed() < Duration::from_secs(5), "{:?}", discarded.elapsed());
    nothing_parked(&database).await;
    assert!(database.value::<bool>(
        r#"SELECT payload::text = '{"n": 1}' AND attempts = 1 AND error = 'one is not wanted' AND discarded_by = 'postgres'
           FROM outbox.discarded"#
    ));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_whose_only_parked_event_was_discarded_flows_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["one"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "one")).await;
    dead(&database, 1).await;
    admin::discard(&mut conn, "default", id, "beyond help").await.unwrap();
    emit(&mut conn, event("a", "two")).await;
    gets(&broker, "a", &["two"]).await;
    nothing_parked(&database).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discard_waits_for_the_cursor_and_gives_up_if_no_relay_moves_it() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "bad")).await;
    dead(&database, 1).await;
    relay.shutdown().await;
    // As after a crash between the park and the settle.
    database.sql("UPDATE outbox.cursors SET tick = 0, target = NULL, seq = 0");
    let error = admin::discard(&mut conn, "default", id, "beyond help").await.unwrap_err();
    assert!(matches!(error, AdminError::NotPassed(_)), "{error}");
    assert_eq!(admin::discard_all(&mut conn, &Filter::default(), "all").await.unwrap(), 0);

    let relay = strict_relay(&database, &broker).await;
    admin::discard(&mut conn, "default", id, "beyond help").await.unwrap();
    emit(&mut conn, event("a", "after")).await;
    gets(&broker, "a", &["after"]).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_operators_at_once_each_event_is_retried_or_discarded_once() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let rejects = Rejects::of(&broker, &["bad"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    for n in 0..40 {
        emit(&mut conn, event(&format!("a{n}"), "bad")).await;
        emit(&mut conn, event(&format!("a{n}"), "behind")).await;
    }
    dead(&database, 40).await;
    rejects.set(&[]);
    let (mut one, mut other) = (database.connect().await, database.connect().await);
    let (mut third, mut fourth) = (database.connect().await, database.connect().await);
    let filter = Filter::default();
    let (retried, discarded, again, more) = tokio::join!(
        admin::retry_all(&mut one, &filter),
        admin::discard_all(&mut other, &filter, "operator 2"),
        admin::discard_all(&mut third, &filter, "operator 3"),
        admin::retry_all(&mut fourth, &filter),
    );
    let discarded = discarded.unwrap() + again.unwrap();
    assert_eq!(retried.unwrap() + more.unwrap() + discarded, 40);
    nothing_parked(&database).await;
    let rows = database.value::<i64>("SELECT count(*) FROM outbox.discarded");
    assert_eq!(u64::try_from(rows).unwrap(), discarded);
    let sent = broker.delivered();
    assert_eq!(sent.len() as u64, 80 - discarded);
    assert_eq!(broker.repeats(), 0);
    for n in 0..40 {
        let sent = got(&broker, &format!("a{n}"));
        assert!(sent == ["bad", "behind"] || sent == ["behind"], "{sent:?}");
    }
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_discard_returns_the_record_of_the_first() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    Rejects::of(&broker, &["bad"]);
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "bad")).await;
    dead(&database, 1).await;
    let first = admin::discard(&mut conn, "default", id, "first").await.unwrap();
    let second = admin::discard(&mut conn, "default", id, "second").await.unwrap();
    assert_eq!(second, first);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_an_operator_asks_for_while_one_is_on_its_way_is_made() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let (asked, requests) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    broker.reject(move |_| {
        asked.send(()).ok();
        wait.recv().ok();
        Some("not wanted".to_owned())
    });
    let relay = database.relay_with(broker.clone(), attempts(2)).await;
    let mut conn = database.connect().await;
    let id = emit(&mut conn, event("a", "bad")).await;
    requests.recv_timeout(SOON).unwrap();
    go.send(()).unwrap();
    // The second attempt, and the last one but for the operator.
    requests.recv_timeout(SOON).unwrap();
    admin::retry(&mut conn, "default", id).await.unwrap();
    for _ in 0..2 {
        go.send(()).unwrap();
        requests.recv_timeout(SOON).unwrap();
    }
    go.send(()).unwrap();
    dead(&database, 1).await;
    assert!(database.value::<bool>("SELECT attempts = 2 FROM outbox.parked"));
    drop(go);
    relay.shutdown().await;
}

#[tokio::test]
async fn an_operation_inside_a_transaction_is_refused() {
    use diesel_async::AsyncConnection as _;
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.begin_test_transaction().await.unwrap();
    let error = admin::retry_all(&mut conn, &Filter::default()).await.unwrap_err();
    assert!(matches!(error, AdminError::InTransaction), "{error}");
}

#[test]
fn every_call_can_be_made_from_a_spawned_task() {
    fn sendable<T: Send>(_: impl Fn(&'static mut diesel_async::AsyncPgConnection) -> T) {}
    sendable(|conn| admin::list(conn, Box::leak(Box::default()), None, 1));
    sendable(|conn| admin::show(conn, "", Uuid::nil()));
    sendable(|conn| admin::retry(conn, "", Uuid::nil()));
    sendable(|conn| admin::retry_all(conn, Box::leak(Box::default())));
    sendable(|conn| admin::discard(conn, "", Uuid::nil(), ""));
    sendable(|conn| admin::discard_all(conn, Box::leak(Box::default()), ""));
    sendable(|conn| admin::find(conn, Uuid::nil()));
}
