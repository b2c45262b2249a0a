//! The consumer: every event of its streams comes to its handler, in order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::AsyncConnection as _;
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::consumer::{Consumer, ConsumerError, Delivery, HandlerError, Unhandled};
use outbox_diesel::inbox::Inbox;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_tests::{SOON, TestDatabase, TestEvent, TestRedis, TestStream, eventually};
use redis::Client;
use serde::Deserialize;
use uuid::Uuid;

/// What a handler was given: aggregate and payload.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<(String, String)>>>);

impl Seen {
    pub(crate) fn push(&self, delivery: &Delivery) {
        let payload = String::from_utf8_lossy(delivery.payload()).into_owned();
        let mut seen = self.0.lock().expect("no holder panics");
        seen.push((delivery.aggregate_id().to_owned(), payload));
    }

    pub(crate) fn all(&self) -> Vec<(String, String)> {
        self.0.lock().expect("no holder panics").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.all().len()
    }

    pub(crate) async fn reaches(&self, count: usize) {
        eventually(SOON, async || (self.len() >= count).then_some(())).await;
    }
}

/// A consumer of one stream that does everything soon.
pub(crate) fn consumer(url: &str, stream: &TestStream, name: &str) -> Consumer {
    Consumer::builder(Client::open(url).expect("a URL"), "billing", name)
        .streams([stream.key()])
        .block(Duration::from_millis(100))
        .handler_timeout(Duration::from_secs(2))
        .claim_after(Duration::from_secs(3))
        .retry_base(Duration::from_millis(20))
}

pub(crate) async fn stream(redis: &TestRedis) -> TestStream {
    TestStream::new(&redis.url(), format!("{}order", redis.prefix())).await
}

#[tokio::test]
async fn what_was_published_before_the_group_existed_is_handled_and_acknowledged() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..3 {
        stream.add(n, "{}").await;
    }
    let seen = Seen::default();
    let handler = seen.clone();
    let running = consumer(&redis.url(), &stream, "one")
        .on_any(async move |delivery: Delivery| {
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    seen.reaches(3).await;
    stream.add(3, "{}").await;
    seen.reaches(4).await;
    running.shutdown().await.expect("stops");
    assert_eq!(stream.pending("billing").await, 0);
    assert_eq!(seen.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn from_emit_to_handler_an_event_has_its_effect_once() {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE effects (order_id text NOT NULL)");
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    let publisher = RedisPublisher::connect_lazily(redis.url()).expect("a URL");
    let relay = database.relay(publisher.stream_prefix(redis.prefix())).await;
    let mut conn = database.connect().await;
    let event = TestEvent::new(7).header("tenant", "acme").payload(r#"{"cents":5}"#);
    let emitted = conn.transaction(async |conn| conn.emit(&event).await).await.expect("emits");
    // Its entry comes a second time, under another entry id.
    stream.add_again(emitted.id(), 7, r#"{"cents":5}"#).await;

    let (pool, inbox) = (database.pool(2).await, Inbox::new("billing").expect("a good name"));
    let seen = Seen::default();
    let handler = seen.clone();
    let running = consumer(&redis.url(), &stream, "one")
        .on_any(async move |delivery: Delivery| {
            assert_eq!(delivery.header("tenant"), Some("acme"));
            assert_eq!((delivery.topic(), delivery.event_version()), ("order", 1));
            assert!(delivery.created_at().is_some() && delivery.dedup_key().is_none());
            let mut conn = pool.get().await?;
            let id = delivery.aggregate_id().to_owned();
            inbox
                .once_async(&mut *conn, delivery.event_id(), async |conn| {
                    let insert = diesel::sql_query("INSERT INTO effects VALUES ($1)")
                        .bind::<diesel::sql_types::Text, _>(id);
                    diesel_async::RunQueryDsl::execute(insert, conn).await
                })
                .await?;
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    seen.reaches(2).await;
    running.shutdown().await.expect("stops");
    relay.shutdown().await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM effects"), 1);
    assert_eq!(stream.pending("billing").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_aggregates_events_come_in_order_and_different_aggregates_side_by_side() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..200 {
        stream.add(n % 10, n).await;
    }
    let seen = Seen::default();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (handler, now, peak) = (seen.clone(), Arc::clone(&running), Arc::clone(&most));
    let consumer = consumer(&redis.url(), &stream, "one")
        .concurrency(4)
        .prefetch(50)
        .on_any(async move |delivery: Delivery| {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let millis = u64::from(delivery.event_id().as_bytes()[15] % 8);
            tokio::time::sleep(Duration::from_millis(millis)).await;
            handler.push(&delivery);
            now.fetch_sub(1, Ordering::SeqCst);
            // Some fail now and then: their followers wait.
            if millis == 0 && delivery.attempt() == 1 {
                return Err::<(), HandlerError>("not now".into());
            }
            Ok(())
        })
        .spawn()
        .expect("good options");
    eventually(SOON, async || {
        let done: std::collections::HashSet<_> = seen.all().into_iter().collect();
        (done.len() == 200 && stream.pending("billing").await == 0).then_some(())
    })
    .await;
    consumer.shutdown().await.expect("stops");
    let mut by_aggregate: HashMap<String, Vec<u32>> = HashMap::new();
    for (aggregate, payload) in seen.all() {
        by_aggregate.entry(aggregate).or_default().push(payload.parse().expect("a number"));
    }
    for (aggregate, payloads) in by_aggregate {
        assert!(payloads.is_sorted(), "{aggregate}: {payloads:?}");
    }
    assert_eq!(most.load(Ordering::SeqCst), 4, "as many at once as allowed, and no more");
}

#[derive(Deserialize)]
struct OrderCreated {
    cents: i64,
}

#[derive(Deserialize)]
struct OrderCreatedV2 {
    euros: i64,
}

#[tokio::test]
async fn events_go_to_the_handler_of_their_type_and_version() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    stream.add_event(Uuid::now_v7(), 1, r#"{"cents":1}"#, "order.created", 1).await;
    stream.add_event(Uuid::now_v7(), 2, r#"{"euros":2}"#, "order.created", 2).await;
    stream.add_event(Uuid::now_v7(), 3, r#"{"cents":3}"#, "order.created", 3).await;
    stream.add_event(Uuid::now_v7(), 4, "{}", "order.paid", 1).await;
    let (sent, mut got) = tokio::sync::mpsc::unbounded_channel();
    let (any, two, rest) = (sent.clone(), sent.clone(), sent);
    let running = consumer(&redis.url(), &stream, "one")
        .concurrency(1)
        .on_type("order.created", async move |event: OrderCreated, _: Delivery| {
            Ok(any.send(format!("any {}", event.cents))?)
        })
        .on_version("order.created", 2, async move |event: OrderCreatedV2, _: Delivery| {
            Ok(two.send(format!("two {}", event.euros))?)
        })
        .on_any(async move |delivery: Delivery| Ok(rest.send(delivery.event_type().to_owned())?))
        .spawn()
        .expect("good options");
    let mut all = Vec::new();
    for _ in 0..4 {
        let next = tokio::time::timeout(SOON, got.recv()).await;
        all.push(next.expect("soon").expect("comes"));
    }
    assert_eq!(all, ["any 1", "two 2", "any 3", "order.paid"]);
    running.shutdown().await.expect("stops");
}

#[tokio::test]
async fn events_of_unknown_types_become_dead_letters_or_are_skipped_or_stop_the_consumer() {
    for policy in [Unhandled::DeadLetter, Unhandled::Skip, Unhandled::Stop] {
        let redis = TestRedis::new();
        let stream = stream(&redis).await;
        let unknown = Uuid::now_v7();
        stream.add_event(unknown, 1, r#"{"cents":1}"#, "order.renamed", 9).await;
        stream.add(1, r#"{"cents":2}"#).await;
        let seen = Seen::default();
        let handler = seen.clone();
        let mut running = consumer(&redis.url(), &stream, "one")
            .unknown(policy)
            .on_type("order.created", async move |_: OrderCreated, delivery: Delivery| {
                handler.push(&delivery);
                Ok::<_, HandlerError>(())
            })
            .spawn()
            .expect("good options");
        if policy == Unhandled::Stop {
            let stopped = tokio::time::timeout(SOON, running.stopped()).await.expect("soon");
            let stopped = stopped.expect_err("stops");
            assert!(
                matches!(&stopped, ConsumerError::UnknownEvent(unknown) if (unknown.event_type.as_str(), unknown.event_version) == ("order.renamed", 9)),
                "{stopped:?}"
            );
            assert_eq!((seen.len(), stream.pending("billing").await), (0, 2), "nothing is lost");
            continue;
        }
        seen.reaches(1).await;
        running.shutdown().await.expect("stops");
        assert_eq!(stream.pending("billing").await, 0);
        let dead = stream.dead().await;
        assert_eq!(dead.len(), usize::from(policy == Unhandled::DeadLetter));
        for letter in dead {
            assert_eq!(letter["event_id"], unknown.to_string());
            assert_eq!(letter["payload"], r#"{"cents":1}"#);
            assert_eq!(letter["dead_group"], "billing");
        }
    }
}

#[tokio::test]
async fn entries_that_are_no_events_are_reported_and_stepped_over() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    let id = Uuid::now_v7().to_string();
    stream.add_fields(&[("hello", "world")]).await;
    stream.add_fields(&[("event_id", "not-an-id"), ("payload", "{}")]).await;
    let whole = [
        ("event_id", id.as_str()),
        ("aggregate_type", "order"),
        ("aggregate_id", "1"),
        ("event_type", "order.created"),
        ("payload", "{}"),
    ];
    stream.add_fields(&[&whole[..], &[("headers", "[1]")]].concat()).await;
    stream.add_fields(&[&whole[..], &[("event_version", "two")]].concat()).await;
    stream.add_fields(&whole[..4]).await;
    // What other producers leave out is not missed.
    stream.add_fields(&whole).await;
    let (seen, problems) = (Seen::default(), Arc::new(Mutex::new(Vec::new())));
    let (handler, report) = (seen.clone(), Arc::clone(&problems));
    let running = consumer(&redis.url(), &stream, "one")
        .on_malformed(move |entry| {
            report.lock().expect("no holder panics").push(entry.problem.to_string());
        })
        .on_any(async move |delivery: Delivery| {
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    seen.reaches(1).await;
    running.shutdown().await.expect("stops");
    assert_eq!(
        *problems.lock().expect("no holder panics"),
        [
            "the field event_id is missing",
            "the field event_id cannot be read",
            "the field headers cannot be read",
            "the field event_version cannot be read",
            "the field payload is missing",
        ]
    );
    assert_eq!(seen.len(), 1);
    assert_eq!((stream.pending("billing").await, stream.dead().await.len()), (0, 5));
}

#[test]
fn settings_that_cannot_work_are_refused_before_anything_runs() {
    let builder = || {
        let client = Client::open("redis://:s3cret@127.0.0.1:1/").expect("a URL");
        Consumer::builder(client, "billing", "one").streams(["order"])
    };
    let refused = |consumer: Consumer| consumer.spawn().expect_err("refused").to_string();
    assert!(refused(builder().streams(Vec::<String>::new())).contains("one stream"));
    assert!(refused(builder().concurrency(0)).contains("at least 1"));
    let soon = builder().claim_after(Duration::from_secs(30));
    let text = refused(soon);
    assert!(text.contains("claimed later (30s) than a handler may take (30s)"), "{text}");
    assert!(!format!("{:?}", builder()).contains("s3cret"));
}
