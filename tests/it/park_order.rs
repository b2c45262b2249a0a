//! What the followers of a failed event do, and retries of one event type.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_diesel::publish::{OwnedMessage, RecordingPublisher};
use outbox_diesel::{Order, RelayOptions, RetryOptions, admin};
use outbox_tests::{Crashable, SOON, TestDatabase, eventually, insert, orders, quick};
use uuid::Uuid;

fn soon() -> RetryOptions {
    RetryOptions::default().base(Duration::from_millis(5))
}

/// Rejects the event with this seq.
fn reject(broker: &RecordingPublisher, seq: i64) {
    broker.reject(move |event: &OwnedMessage| (event.seq() == seq).then(|| String::from("no")));
}

fn delivered(broker: &RecordingPublisher) -> Vec<i64> {
    broker.delivered().iter().map(|sent| sent.message.seq()).collect()
}

fn typed(order: &str, event_type: &str) -> String {
    insert(order).replace("order.created", event_type)
}

async fn becomes(database: &TestDatabase, condition: &str) {
    let holds = format!("SELECT {condition}");
    eventually(SOON, async || database.value::<bool>(&holds).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_pass_a_dead_event_where_they_are_to_skip_it() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    reject(&broker, 2);
    let options = quick().retry(soon().attempts(2).order(Order::Skip));
    let relay = database.relay_with(broker.clone(), options).await;
    database.sql(&[insert("A"), insert("A"), insert("A")].join(";"));
    orders(&broker, 2).await;
    database.insert("A");
    orders(&broker, 3).await;
    assert_eq!(delivered(&broker), [3, 4, 5]);
    assert!(database.value::<bool>(
        "SELECT count(*) = 1 AND bool_and(seq = 2 AND attempts = 2) FROM outbox.dead_letters"
    ));
    // It can still be retried, and holds nobody then either.
    let id: Uuid = database.value("SELECT event_id FROM outbox.dead_letters");
    admin::retry(&mut database.connect().await, "default", id).await.unwrap();
    database.insert("A");
    orders(&broker, 4).await;
    broker.reject(|_| None);
    admin::retry(&mut database.connect().await, "default", id).await.ok();
    becomes(&database, "count(*) = 0 FROM outbox.parked").await;
    relay.shutdown().await;
    assert_eq!(delivered(&broker), [3, 4, 5, 6, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_of_an_event_that_dies_at_once_go_out_where_they_are_to_skip_it() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    reject(&broker, 2);
    database.sql(&[insert("A"), insert("A"), insert("A")].join(";"));
    let options = quick().retry(soon().attempts(1).order(Order::Skip));
    let relay = database.relay_with(broker.clone(), options).await;
    orders(&broker, 2).await;
    relay.shutdown().await;
    assert_eq!(delivered(&broker), [3, 4]);
    assert!(database.value::<bool>("SELECT count(*) = 1 AND bool_and(dead) FROM outbox.parked"));
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_stay_held_behind_a_dead_event_by_default_and_go_out_in_order_once_it_is_retried()
{
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    reject(&broker, 2);
    let relay = database.relay_with(broker.clone(), quick().retry(soon().attempts(2))).await;
    database.sql(&[insert("A"), insert("A")].join(";"));
    becomes(&database, "count(*) = 1 FROM outbox.dead_letters").await;
    database.sql(&[insert("A"), insert("B")].join(";"));
    assert_eq!(orders(&broker, 1).await, ["B"]);
    becomes(
        &database,
        "count(*) FILTER (WHERE status = 'held') = 2 AND count(*) FILTER (WHERE status = 'dead') = 1
         FROM outbox.event_status WHERE aggregate_id = 'A'",
    )
    .await;
    broker.reject(|_| None);
    let id: Uuid = database.value("SELECT event_id FROM outbox.dead_letters");
    admin::retry(&mut database.connect().await, "default", id).await.unwrap();
    orders(&broker, 4).await;
    relay.shutdown().await;
    assert_eq!(delivered(&broker), [5, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unordered_events_are_neither_held_nor_hold_others() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|event| (event.seq() == 2 || event.seq() == 5).then(|| String::from("no")));
    database.sql(
        &[
            typed("A", "order.viewed"), // 2: fails and holds nobody
            typed("A", "order.viewed"),
            typed("A", "order.paid"),
            typed("A", "order.paid"), // 5: fails and holds the next paid one
            typed("A", "order.viewed"),
            typed("A", "order.paid"),
        ]
        .join(";"),
    );
    let options = quick()
        .retry(soon().attempts(u16::MAX))
        .retry_for("order.viewed", soon().attempts(u16::MAX).order(Order::Unordered));
    let relay = database.relay_with(broker.clone(), options).await;
    orders(&broker, 3).await;
    assert_eq!(delivered(&broker), [3, 4, 6]);
    becomes(
        &database,
        "string_agg(seq || status, ' ' ORDER BY seq) = '2retrying 5retrying 7held'
         FROM outbox.event_status WHERE status <> 'published'",
    )
    .await;
    broker.reject(|_| None);
    orders(&broker, 6).await;
    relay.shutdown().await;
    let sent = delivered(&broker);
    let place = |seq| sent.iter().position(|sent| *sent == seq).unwrap();
    assert!(place(5) < place(7), "{sent:?}");
    assert_eq!(sent.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_other_settings_abides_by_how_an_event_was_parked() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    reject(&broker, 2);
    database.sql(&[insert("A"), insert("A")].join(";"));
    let later = RetryOptions::default().base(Duration::from_secs(3600));
    let options = quick().retry(later.order(Order::Unordered));
    let first = Crashable::start(&database, "default", broker.clone(), options).await;
    orders(&broker, 1).await;
    becomes(&database, "count(*) = 1 FROM outbox.parked").await;
    first.crash(&database).await;
    let relay = database.relay(broker.clone()).await;
    database.insert("A");
    orders(&broker, 2).await;
    relay.shutdown().await;
    assert_eq!(delivered(&broker), [3, 4]);
    assert_eq!(broker.delivered().len(), 2);
}

/// How often an event was tried until it was dead.
async fn tries(options: RelayOptions, event_type: &str) -> usize {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    broker.reject(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Some(String::from("no"))
    });
    let relay = database.relay_with(broker.clone(), options).await;
    database.sql(&typed("A", event_type));
    becomes(
        &database,
        "count(*) = 1 AND bool_and(error = 'no' AND died_at >= parked_at) FROM outbox.dead_letters",
    )
    .await;
    let attempts: i64 = database.value("SELECT attempts::bigint FROM outbox.dead_letters");
    relay.shutdown().await;
    assert_eq!(usize::try_from(attempts).unwrap(), tries.load(Ordering::SeqCst));
    tries.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_tried_exactly_as_often_as_allowed() {
    for allowed in [1, 2, 5] {
        let options = quick().retry(soon().attempts(allowed));
        assert_eq!(tries(options, "order.paid").await, usize::from(allowed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_type_may_have_retries_of_its_own() {
    let options = quick().retry(soon().attempts(4)).retry_for("order.paid", soon().attempts(2));
    assert_eq!(tries(options.clone(), "order.paid").await, 2);
    assert_eq!(tries(options, "order.created").await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_publisher_says_of_a_failure_is_stored_without_its_secrets() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|event| {
        Some(match event.aggregate_id() {
            "nul" => "a\0b".to_owned(),
            "bytes" => String::from_utf8_lossy(b"\xff\xfe").into_owned(),
            "long" => "\u{1f600}".repeat(1_500_000),
            _ => "at redis://app:hunter2@host: refused".to_owned(),
        })
    });
    database.sql(&["nul", "bytes", "long", "secret"].map(insert).join(";"));
    let relay = database.relay_with(broker.clone(), quick().retry(soon().attempts(3))).await;
    becomes(&database, "count(*) = 4 FROM outbox.dead_letters WHERE attempts = 3").await;
    relay.shutdown().await;
    let stored: String = database.value(
        "SELECT string_agg(left(error, 40) || length(error), '; ' ORDER BY seq) FROM outbox.parked",
    );
    let long = "\u{1f600}".repeat(40);
    assert_eq!(
        stored,
        format!("a\u{fffd}b3; \u{fffd}\u{fffd}2; {long}4000; at redis://app:***@host: refused32")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_fail_together_do_not_come_back_together() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some(String::from("no")));
    let many: Vec<_> = (0..200).map(|n| insert(&n.to_string())).collect();
    database.sql(&many.join(";"));
    let retry =
        RetryOptions::default().base(Duration::from_secs(1000)).cap(Duration::from_secs(1000));
    let relay = database.relay_with(broker.clone(), quick().retry(retry)).await;
    becomes(&database, "count(*) = 200 FROM outbox.parked").await;
    relay.shutdown().await;
    // In ten slots of 100 s each there are about 20.
    let fewest: i64 = database.value(
        "SELECT min(n) FROM (SELECT count(p.seq) AS n FROM generate_series(0, 9) slot
         LEFT JOIN outbox.parked p
           ON floor(extract(epoch FROM p.next_attempt_at - p.updated_at) / 100) = slot GROUP BY slot) counts",
    );
    assert!(fewest > 3, "{fewest}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_events_at_the_head_of_every_batch_do_not_keep_a_good_one() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|event| (event.aggregate_id() != "good").then(|| String::from("no")));
    let relay = database.relay_with(broker.clone(), quick().batch_events(10)).await;
    // Twice as many aggregates as a batch holds, and more events of one than many batches.
    let mut events: Vec<_> = (0..20).map(|n| insert(&n.to_string())).collect();
    events.extend(std::iter::repeat_n(insert("A"), 100));
    events.push(insert("good"));
    database.sql(&events.join(";"));
    assert_eq!(orders(&broker, 1).await, ["good"]);
    broker.reject(|_| None);
    orders(&broker, 121).await;
    relay.shutdown().await;
    let of_a: Vec<_> =
        delivered(&broker).into_iter().filter(|seq| (22..122).contains(seq)).collect();
    assert!(of_a.is_sorted() && of_a.len() == 100);
}
