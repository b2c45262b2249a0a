//! What a handler or Redis does wrong holds up no more than it must, and loses nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_diesel::consumer::{Delivery, HandlerError, Reject};
use outbox_tests::{SOON, TestRedis, TestStream, eventually};
use serde::Deserialize;
use xtask::redis::{Options, Persistence, Redis};

use crate::consumer::{Seen, consumer, stream};

#[tokio::test(flavor = "multi_thread")]
async fn a_poisonous_event_is_tried_and_buried_and_holds_up_only_its_aggregate() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    let poison = stream.add("bad", r#"{"poison":true}"#).await;
    stream.add("bad", "behind").await;
    for n in 0..20 {
        stream.add(n, "fine").await;
    }
    let (seen, tries) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let (handler, counter, others) = (seen.clone(), Arc::clone(&tries), seen.clone());
    let seen_before = Arc::new(AtomicUsize::new(0));
    let before = Arc::clone(&seen_before);
    let running = consumer(&redis.url(), &stream, "one")
        .concurrency(1)
        .max_deliveries(4)
        .on_any(async move |delivery: Delivery| {
            if delivery.payload() != br#"{"poison":true}"# {
                handler.push(&delivery);
                return Ok::<_, HandlerError>(());
            }
            let nth = counter.fetch_add(1, Ordering::SeqCst) + 1;
            assert_eq!(delivery.attempt() as usize, nth);
            if nth == 4 {
                before.store(others.len(), Ordering::SeqCst);
            }
            match nth {
                1 => panic!("as the test wants it"),
                2 => std::future::pending().await,
                _ => Err("the bank is closed".into()),
            }
        })
        .handler_timeout(Duration::from_millis(200))
        .retry_base(Duration::from_millis(400))
        .spawn()
        .expect("good options");
    seen.reaches(21).await;
    running.shutdown().await.expect("stops");
    assert_eq!(tries.load(Ordering::SeqCst), 4);
    // One handler at a time, and all other aggregates went before its last try.
    assert_eq!(seen_before.load(Ordering::SeqCst), 20);
    assert_eq!(seen.all().last().expect("one").1, "behind");
    assert_eq!(stream.pending("billing").await, 0);
    let dead = stream.dead().await;
    assert_eq!(dead.len(), 1);
    let field = |name: &str| dead[0][name].as_str();
    assert_eq!(field("event_id"), poison.to_string());
    assert_eq!(field("payload"), r#"{"poison":true}"#);
    assert_eq!(field("dead_error"), "the bank is closed");
    assert_eq!((field("dead_tries"), field("dead_stream")), ("4", stream.key()));
}

#[derive(Debug, Deserialize)]
struct OrderCreated {
    #[expect(dead_code, reason = "only its type counts")]
    cents: i64,
}

#[tokio::test]
async fn what_trying_again_cannot_help_is_buried_at_once_and_no_payload_is_told() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    stream.add(1, r#"{"cents":"jane@example.org"}"#).await;
    stream.add(2, "jane@example.org").await;
    stream.add(3, r#"{"cents":1}"#).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&tries);
    let running = consumer(&redis.url(), &stream, "one")
        .retry_base(Duration::from_secs(60))
        .on_type("order.created", async move |_: OrderCreated, delivery: Delivery| {
            counter.fetch_add(1, Ordering::SeqCst);
            assert!(!format!("{delivery:?}").contains("cents"));
            Err::<(), HandlerError>(Reject::because("no such account").into())
        })
        .spawn()
        .expect("good options");
    eventually(SOON, async || (stream.dead().await.len() == 3).then_some(())).await;
    running.shutdown().await.expect("stops");
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    let dead = stream.dead().await;
    let errors: Vec<_> = dead.iter().map(|letter| letter["dead_error"].as_str()).collect();
    assert!(errors[0].contains("another shape") && errors[0].contains("column"), "{errors:?}");
    assert!(errors[1].contains("is not JSON"), "{errors:?}");
    assert_eq!(errors[2], "the event was rejected: no such account");
    assert!(errors.iter().all(|error| !error.contains("jane")), "{errors:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_gone_is_created_again_at_the_beginning() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    let seen = Seen::default();
    let handler = seen.clone();
    let running = consumer(&redis.url(), &stream, "one")
        .on_any(async move |delivery: Delivery| {
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    stream.add(1, "before").await;
    seen.reaches(1).await;
    // As FLUSHALL would, for this stream.
    stream.command("DEL", &[stream.key()]).await;
    stream.add(1, "after").await;
    seen.reaches(2).await;
    assert_eq!(seen.all()[1].1, "after");
    running.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_redis_loses_nothing_and_repeats_only_what_was_not_acknowledged() {
    let mut server =
        Redis::start(Options::default().persistence(Persistence::Always)).expect("starts");
    let url = server.url();
    let stream = TestStream::new(&url, "order").await;
    for n in 0..300 {
        stream.add(n % 7, n).await;
    }
    let seen = Seen::default();
    let handler = seen.clone();
    let running = consumer(&url, &stream, "one")
        .concurrency(3)
        .prefetch(20)
        .on_any(async move |delivery: Delivery| {
            tokio::time::sleep(Duration::from_millis(3)).await;
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    seen.reaches(50).await;
    server.kill().expect("kills");
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().expect("restarts");
    let stream = TestStream::new(&url, "order").await;
    seen.reaches(300).await;
    eventually(SOON, async || (stream.pending("billing").await == 0).then_some(())).await;
    running.shutdown().await.expect("stops");
    let all: Vec<u32> =
        seen.all().into_iter().map(|(_, payload)| payload.parse().expect("a number")).collect();
    let distinct: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), 300);
    // What was in hand while Redis was away was acknowledged later, not handled again.
    assert_eq!(all.len(), 300);
}

#[tokio::test]
async fn a_consumer_starts_before_redis_does() {
    let mut server = Redis::start(Options::default()).expect("starts");
    let url = server.url();
    server.stop().expect("stops");
    let seen = Seen::default();
    let handler = seen.clone();
    let running = outbox_diesel::consumer::Consumer::builder(
        redis::Client::open(url.as_str()).expect("a URL"),
        "billing",
        "one",
    )
    .streams(["order"])
    .on_any(async move |delivery: Delivery| {
        handler.push(&delivery);
        Ok::<_, HandlerError>(())
    })
    .spawn()
    .expect("good options");
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.restart().expect("restarts");
    TestStream::new(&url, "order").await.add(1, "{}").await;
    seen.reaches(1).await;
    running.shutdown().await.expect("stops");
}
