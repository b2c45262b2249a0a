//! Retention as relays do it: beside delivery, beside each other.

use std::time::Duration;

use diesel_async::AsyncConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::subscription::{self, Start};
use outbox_diesel::{AsyncEmit as _, Relay, RelayHandle, RetryOptions};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually, quick};

use crate::leaves::{emit, leaves, pass, retire, with_small_leaves};
use crate::log::Log;

/// A relay that keeps nothing longer than it must.
async fn forgetful(database: &TestDatabase, broker: &RecordingPublisher) -> RelayHandle {
    database.relay_with(broker.clone(), quick().retention(Duration::ZERO)).await
}

fn ids(broker: &RecordingPublisher) -> Vec<String> {
    broker.delivered().iter().map(|sent| sent.message.aggregate_id().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_that_retire_at_once_lose_and_repeat_nothing() {
    let database = with_small_leaves(20);
    let broker = RecordingPublisher::default();
    let relays = [forgetful(&database, &broker).await, forgetful(&database, &broker).await];
    let mut conn = database.connect().await;
    let mut emitted = Vec::new();
    for n in 0..150 {
        conn.transaction(async |conn| conn.emit(&TestEvent::new(n)).await).await.unwrap();
        emitted.push(n.to_string());
        if n % 10 == 0 {
            // As both relays do each minute, in between.
            retire(&database);
            database.sql("SELECT outbox.drop_retired_partition()");
        }
    }
    eventually(SOON, async || (broker.delivered().len() == 150).then_some(())).await;
    eventually(SOON, async || {
        emit(&database, 1);
        retire(&database);
        database.sql("SELECT outbox.drop_retired_partition()");
        (!leaves(&database).contains(&"events_s91".to_owned())).then_some(())
    })
    .await;
    for relay in relays {
        relay.shutdown().await;
    }
    let mut delivered = ids(&broker);
    delivered.truncate(150);
    delivered.sort();
    emitted.sort();
    assert_eq!(delivered, emitted);
    assert_eq!(broker.repeats(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_and_dead_events_outlive_their_partition() {
    let database = with_small_leaves(4);
    let broker = RecordingPublisher::default();
    broker.reject(|event| match event.aggregate_id() {
        "2" => Some("never".to_owned()),
        "3" => Some("not yet".to_owned()),
        _ => None,
    });
    let options = quick().retry(RetryOptions::default().attempts(2).base(Duration::from_millis(1)));
    let relay = database.relay_with(broker.clone(), options).await;
    emit(&database, 12);
    database.sql(&crate::leaves::insert("2")); // held behind the dead one
    eventually(SOON, async || {
        (database.value::<i64>("SELECT count(*) FROM outbox.dead_letters") == 2
            && database.value::<i64>("SELECT count(*) FROM outbox.parked") == 3)
            .then_some(())
    })
    .await;
    eventually(SOON, async || {
        emit(&database, 1);
        retire(&database)
    })
    .await;
    let kept: Vec<String> = database.value(
        "ARRAY(SELECT aggregate_id || ' ' || payload::text FROM outbox.parked ORDER BY seq)",
    );
    assert_eq!(kept, ["2 {}", "3 {}", "2 {}"]);
    // And they can still be sent.
    broker.reject(|_| None);
    database.sql(
        "UPDATE outbox.parked SET dead = false, next_attempt_at = clock_timestamp() WHERE dead",
    );
    eventually(SOON, async || {
        (database.value::<i64>("SELECT count(*) FROM outbox.parked") == 0).then_some(())
    })
    .await;
    assert!(ids(&broker).contains(&"3".to_owned()));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_without_a_relay_holds_what_it_has_not_got() {
    let database = with_small_leaves(6);
    let mut conn = database.connect().await;
    subscription::create(&mut conn, "slow", Start::Earliest, &[]).await.unwrap();
    let broker = RecordingPublisher::default();
    emit(&database, 35);
    let relay = forgetful(&database, &broker).await;
    eventually(SOON, async || (broker.delivered().len() == 35).then_some(())).await;
    relay.shutdown().await;
    let relay = forgetful(&database, &broker).await;
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) > 0 FROM outbox.relays").then_some(())
    })
    .await;
    assert_eq!(retire(&database), None);

    let slow = RecordingPublisher::default();
    let late = Relay::builder(database.pool(1).await)
        .publisher(slow.clone())
        .options(quick())
        .subscription("slow")
        .spawn()
        .unwrap();
    eventually(SOON, async || (slow.delivered().len() == 35).then_some(())).await;
    assert_eq!(ids(&slow), ids(&broker));
    late.shutdown().await;
    relay.shutdown().await;
    pass(&database);
    // Transactions of other tests hold it too: snapshots know no databases.
    eventually(SOON, async || retire(&database)).await;
}

#[tokio::test]
async fn a_partition_that_outlives_the_retention_is_named_with_who_holds_it() {
    let log = Log::default();
    let _logging = log.keep_warnings();
    let database = with_small_leaves(4);
    let mut conn = database.connect().await;
    subscription::create(&mut conn, "slow", Start::Earliest, &[]).await.unwrap();
    emit(&database, 12);
    database.sql("SELECT outbox.take_tick()");
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || (broker.delivered().len() == 12).then_some(())).await;
    relay.shutdown().await;
    let relay = forgetful(&database, &broker).await;
    eventually(SOON, async || log.text().contains("outlives the retention").then_some(())).await;
    relay.shutdown().await;
    let text = log.text();
    assert!(text.contains("leaf=\"events_s1\" subscription=\"slow\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_never_moved_or_updated_whatever_becomes_of_it() {
    let database = TestDatabase::new();
    assert_eq!(
        database.value::<String>("pg_get_partkeydef('outbox.events'::regclass)"),
        "RANGE (seq)"
    );
    let place = "SELECT string_agg(concat(tableoid, ctid, xmin, xmax), ' ' ORDER BY seq) FROM outbox.events";
    emit(&database, 3);
    let before: String = database.value(place);
    let broker = RecordingPublisher::default();
    let tries = std::sync::atomic::AtomicU32::new(0);
    broker.reject(move |_| {
        let nth = tries.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (nth < 4).then(|| "not yet".to_owned())
    });
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || (broker.delivered().len() == 3).then_some(())).await;
    relay.shutdown().await;
    assert_eq!(database.value::<String>(place), before);
}
