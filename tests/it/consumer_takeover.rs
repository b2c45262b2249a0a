//! A consumer ends, one way or another, and nothing of what it had in hand is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outbox_diesel::consumer::{Consumer, Delivery, HandlerError};
use outbox_diesel::inbox::Inbox;
use outbox_tests::{SOON, TestDatabase, TestRedis, eventually};
use tokio_util::sync::CancellationToken;

use crate::consumer::{Seen, consumer, stream};

/// Hangs in its first event for ever.
fn hanging(consumer: Consumer, begun: &Arc<AtomicUsize>) -> Consumer {
    let begun = Arc::clone(begun);
    consumer.on_any(async move |_: Delivery| {
        begun.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<Result<(), HandlerError>>().await
    })
}

fn seeing(consumer: Consumer, seen: &Seen) -> Consumer {
    let seen = seen.clone();
    consumer.on_any(async move |delivery: Delivery| {
        seen.push(&delivery);
        Ok::<_, HandlerError>(())
    })
}

/// Runs a consumer until a handler has begun, and then drops it as a crash would.
async fn crash_in_a_handler(consumer: Consumer) {
    let begun = Arc::new(AtomicUsize::new(0));
    let running = hanging(consumer, &begun).run(CancellationToken::new());
    tokio::select! {
        ended = running => panic!("ended by itself: {ended:?}"),
        () = eventually(SOON, async || (begun.load(Ordering::SeqCst) > 0).then_some(())) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_consumers_events_are_taken_over_in_order_and_have_their_effects_once() {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE effects (payload text NOT NULL, nth serial)");
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..10 {
        stream.add("same", n).await;
    }
    let pool = database.pool(4).await;
    let with_inbox = |consumer: Consumer, hangs: bool| {
        let (pool, inbox) = (pool.clone(), Inbox::new("billing").expect("a good name"));
        consumer.on_any(async move |delivery: Delivery| {
            let mut conn = pool.get().await?;
            let payload = String::from_utf8_lossy(delivery.payload()).into_owned();
            inbox
                .once_async(&mut *conn, delivery.event_id(), async |conn| {
                    let insert = diesel::sql_query("INSERT INTO effects VALUES ($1)")
                        .bind::<diesel::sql_types::Text, _>(&payload);
                    diesel_async::RunQueryDsl::execute(insert, conn).await?;
                    if hangs && payload == "3" {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, diesel::result::Error>(())
                })
                .await?;
            Ok::<_, HandlerError>(())
        })
    };
    let effects = "SELECT count(*) FROM effects";
    let short = Duration::from_millis(1500);
    let dying = with_inbox(
        consumer(&redis.url(), &stream, "one").claim_after(short).handler_timeout(short / 2),
        true,
    );
    let dying = tokio::spawn(dying.run(CancellationToken::new()));
    eventually(SOON, async || (database.value::<i64>(effects) == 3).then_some(())).await;
    dying.abort();
    dying.await.expect_err("killed");

    let successor = with_inbox(
        consumer(&redis.url(), &stream, "two").claim_after(short).handler_timeout(short / 2),
        false,
    )
    .spawn()
    .expect("good options");
    eventually(SOON, async || (stream.pending("billing").await == 0).then_some(())).await;
    successor.shutdown().await.expect("stops");
    let all: Vec<String> = database.value("SELECT ARRAY(SELECT payload FROM effects ORDER BY nth)");
    assert_eq!(all, ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_starts_again_goes_on_at_once_with_what_it_had() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..5 {
        stream.add("same", n).await;
    }
    let forever = Duration::from_secs(3600);
    crash_in_a_handler(consumer(&redis.url(), &stream, "one").claim_after(forever)).await;
    stream.add("same", 5).await;
    let seen = Seen::default();
    let again =
        seeing(consumer(&redis.url(), &stream, "one").claim_after(forever).prefetch(2), &seen)
            .spawn()
            .expect("good options");
    seen.reaches(6).await;
    let payloads: Vec<_> = seen.all().into_iter().map(|(_, payload)| payload).collect();
    assert_eq!(payloads, ["0", "1", "2", "3", "4", "5"]);
    again.shutdown().await.expect("stops");
    assert_eq!(stream.pending("billing").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_ends_its_process_is_buried_and_those_read_with_it_are_not() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    stream.add("bad", "poison").await;
    for n in 0..5 {
        stream.add(n, "innocent").await;
    }
    let name = |consumer: Consumer| consumer.concurrency(1).max_deliveries(3);
    for _ in 0..3 {
        crash_in_a_handler(name(consumer(&redis.url(), &stream, "one"))).await;
    }
    let seen = Seen::default();
    let running =
        seeing(name(consumer(&redis.url(), &stream, "one")), &seen).spawn().expect("good options");
    seen.reaches(5).await;
    running.shutdown().await.expect("stops");
    assert!(seen.all().iter().all(|(_, payload)| payload == "innocent"));
    let dead = stream.dead().await;
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0]["payload"].as_str(), dead[0]["dead_tries"].as_str()), ("poison", "3"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_finishes_and_acknowledges_what_runs_and_leaves_the_rest_to_others_at_once() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..10 {
        stream.add(n, n).await;
    }
    let (seen, begun) = (Seen::default(), Arc::new(AtomicUsize::new(0)));
    let (handler, counter) = (seen.clone(), Arc::clone(&begun));
    let hour = Duration::from_secs(3600);
    let first = consumer(&redis.url(), &stream, "one")
        .concurrency(2)
        .claim_after(hour)
        .on_any(async move |delivery: Delivery| {
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(300)).await;
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    eventually(SOON, async || (begun.load(Ordering::SeqCst) == 2).then_some(())).await;
    let asked = Instant::now();
    first.shutdown().await.expect("stops");
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    assert_eq!((seen.len(), begun.load(Ordering::SeqCst)), (2, 2), "no handler starts after that");
    assert_eq!(stream.pending("billing").await, 8);

    let second = seeing(consumer(&redis.url(), &stream, "two").claim_after(hour), &seen)
        .spawn()
        .expect("good options");
    seen.reaches(10).await;
    second.shutdown().await.expect("stops");
    let distinct: std::collections::HashSet<_> = seen.all().into_iter().collect();
    assert_eq!((distinct.len(), stream.pending("billing").await), (10, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_is_bounded_though_a_handler_hangs_and_its_event_is_delivered_again() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    stream.add(1, "{}").await;
    let begun = Arc::new(AtomicUsize::new(0));
    let hour = Duration::from_secs(3600);
    let options = |name| {
        consumer(&redis.url(), &stream, name)
            .claim_after(hour)
            .handler_timeout(hour / 2)
            .shutdown_timeout(Duration::from_millis(300))
    };
    let hangs = hanging(options("one"), &begun).spawn().expect("good options");
    eventually(SOON, async || (begun.load(Ordering::SeqCst) == 1).then_some(())).await;
    let asked = Instant::now();
    hangs.shutdown().await.expect("stops");
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    let seen = Seen::default();
    let other = seeing(options("two"), &seen).spawn().expect("good options");
    seen.reaches(1).await;
    other.shutdown().await.expect("stops");
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_wait_long_in_a_live_consumer_are_not_taken_from_it() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..4 {
        stream.add("same", n).await;
    }
    let (slow, eager) = (Seen::default(), Seen::default());
    let claim_after = Duration::from_millis(600);
    let options = |name| {
        consumer(&redis.url(), &stream, name)
            .claim_after(claim_after)
            .handler_timeout(Duration::from_millis(500))
    };
    let handler = slow.clone();
    let one = options("one")
        .on_any(async move |delivery: Delivery| {
            tokio::time::sleep(Duration::from_millis(400)).await;
            handler.push(&delivery);
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .expect("good options");
    eventually(SOON, async || (stream.pending("billing").await == 4).then_some(())).await;
    let two = seeing(options("two"), &eager).spawn().expect("good options");
    slow.reaches(4).await;
    one.shutdown().await.expect("stops");
    two.shutdown().await.expect("stops");
    assert_eq!(eager.len(), 0, "{:?}", eager.all());
}

#[tokio::test(flavor = "multi_thread")]
async fn pending_entries_that_were_trimmed_away_are_acknowledged() {
    let redis = TestRedis::new();
    let stream = stream(&redis).await;
    for n in 0..3 {
        stream.add(n, n).await;
    }
    crash_in_a_handler(consumer(&redis.url(), &stream, "one").concurrency(1)).await;
    stream.command("XTRIM", &[stream.key(), "MAXLEN", "1"]).await;
    let seen = Seen::default();
    let again =
        seeing(consumer(&redis.url(), &stream, "one"), &seen).spawn().expect("good options");
    seen.reaches(1).await;
    eventually(SOON, async || (stream.pending("billing").await == 0).then_some(())).await;
    again.shutdown().await.expect("stops");
    assert_eq!(seen.all(), [("2".to_owned(), "2".to_owned())]);
}
