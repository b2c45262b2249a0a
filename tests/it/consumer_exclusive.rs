//! One consumer per stream at a time, whoever dies: order per aggregate across consumers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use outbox_diesel::consumer::{Consumer, Delivery, HandlerError};
use outbox_tests::{SOON, TestRedis, eventually};
use tokio_util::sync::CancellationToken;

use crate::consumer::{Seen, consumer, stream};

const LEASE: Duration = Duration::from_millis(600);

fn exclusive(consumer: Consumer, seen: &Seen) -> Consumer {
    let seen = seen.clone();
    consumer.handler_timeout(LEASE / 3).exclusive(LEASE).prefetch(30).on_any(
        async move |delivery: Delivery| {
            let millis = u64::from(delivery.event_id().as_bytes()[15] % 16);
            tokio::time::sleep(Duration::from_millis(millis)).await;
            seen.push(&delivery);
            Ok::<_, HandlerError>(())
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn order_holds_across_consumers_that_die_and_take_over() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..400 {
        stream.add(n % 5, n).await;
    }
    let seen = Seen::default();
    let spawn = |name: &str| {
        let consumer = exclusive(consumer(&redis.url(), &stream, name), &seen);
        tokio::spawn(consumer.run(CancellationToken::new()))
    };
    // Whoever has the lease is among the first: it is killed with much in hand, and so on.
    let mut running = vec![spawn("0"), spawn("1")];
    for round in 1..3 {
        seen.reaches(round * 100).await;
        running.remove(0).abort();
        running.push(spawn(&format!("{}", round + 1)));
    }
    eventually(SOON, async || {
        (stream.pending("billing").await == 0 && seen.len() >= 400).then_some(())
    })
    .await;
    for task in running {
        task.abort();
    }
    let mut by_aggregate: HashMap<String, Vec<u32>> = HashMap::new();
    for (aggregate, payload) in seen.all() {
        by_aggregate.entry(aggregate).or_default().push(payload.parse().expect("a number"));
    }
    for (aggregate, payloads) in by_aggregate {
        // A repeat of what was not acknowledged is all that may come twice; then it goes on in order.
        let mut latest = None;
        for payload in &payloads {
            let next = latest.map_or(payload % 5, |latest: u32| latest + 5);
            assert!(*payload <= next, "{aggregate}: {payload} before {next} in {payloads:?}");
            latest = Some(latest.map_or(*payload, |latest| latest.max(*payload)));
        }
        assert_eq!(latest.map(|latest| latest / 5), Some(79), "{aggregate}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_gives_the_stream_to_the_next_at_once() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    let (one, two) = (Seen::default(), Seen::default());
    let hour = Duration::from_secs(3600);
    let long = |name, seen: &Seen| {
        exclusive(consumer(&redis.url(), &stream, name), seen)
            .exclusive(hour)
            .claim_after(hour / 1000)
            .spawn()
            .expect("good options")
    };
    let first = long("one", &one);
    stream.add(1, 1).await;
    one.reaches(1).await;
    let second = long("two", &two);
    for n in 2..20 {
        stream.add(1, n).await;
    }
    one.reaches(19).await;
    first.shutdown().await.expect("stops");
    stream.add(1, 20).await;
    let asked = Instant::now();
    two.reaches(1).await;
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!((one.len(), two.len()), (19, 1));
    second.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_whose_lease_was_taken_reads_nothing_more_though_it_does_not_know_yet() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    let seen = Seen::default();
    let hour = Duration::from_secs(3600);
    // It renews every quarter of an hour.
    let running = exclusive(consumer(&redis.url(), &stream, "one"), &seen)
        .exclusive(hour)
        .claim_after(hour)
        .spawn()
        .expect("good options");
    stream.add(1, 1).await;
    seen.reaches(1).await;
    let lease = format!("outbox:lease:{{{}}}:billing", stream.key());
    stream.command("SET", &[&lease, "another"]).await;
    stream.add(1, 2).await;
    // It polls every 20 ms.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((seen.len(), stream.pending("billing").await), (1, 0));
    running.shutdown().await.expect("stops");
    stream.command("DEL", &[&lease]).await;
}

#[test]
fn a_lease_within_which_no_handler_could_end_is_refused() {
    let client = redis::Client::open("redis://127.0.0.1:1/").expect("a URL");
    let refused = Consumer::builder(client, "billing", "one")
        .streams(["order"])
        .exclusive(Duration::from_secs(59))
        .spawn()
        .expect_err("refused");
    assert!(refused.to_string().contains("twice as long"), "{refused}");
}
