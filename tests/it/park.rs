//! Park: what the broker rejects is put aside before anything behind it goes out.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::{OwnedMessage, RecordingPublisher};
use outbox_tests::{Crashable, Hooked, SOON, TestDatabase, eventually, insert, orders, quick};

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_event_is_parked_before_a_later_one_of_its_shard_goes_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker
        .reject(|event: &OwnedMessage| (event.aggregate_id() == "bad").then(|| String::from("no")));
    let mut conn = database.sync();
    let (seen, mut batches) = (std::sync::Arc::new(std::sync::Mutex::new(Vec::new())), 0);
    let log = seen.clone();
    let hooked = Hooked::new(&broker, move |batch| {
        batches += 1;
        if batches > 1 && !batch.messages().is_empty() {
            let parked = outbox_tests::Scalar::of("SELECT count(*) FROM outbox.parked", &mut conn);
            let parked: i64 = parked.unwrap();
            log.lock().unwrap().push(parked);
        }
        None
    });
    database.sql(&[insert("bad"), insert("good"), insert("bad")].join(";"));
    let relay = database.relay_with(hooked, quick()).await;
    assert_eq!(orders(&broker, 1).await, ["good"]);
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 2 FROM outbox.parked").then_some(())
    })
    .await;
    relay.shutdown().await;
    let parked = seen.lock().unwrap().clone();
    assert!(parked.iter().all(|parked| *parked >= 1), "{parked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_a_rejection_and_the_next_event_loses_neither() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker
        .reject(|event: &OwnedMessage| (event.aggregate_id() == "bad").then(|| String::from("no")));
    database.sql(&[insert("bad"), insert("good"), insert("bad")].join(";"));
    let (crash, crashed) = std::sync::mpsc::channel();
    let mut batches = 0;
    let hooked = Hooked::new(&broker, move |_| {
        batches += 1;
        if batches == 2 {
            crash.send(()).ok();
            return Some(String::from("and then it crashed"));
        }
        None
    });
    let relay = Crashable::start(&database, "default", hooked, quick()).await;
    tokio::task::spawn_blocking(move || crashed.recv().unwrap()).await.unwrap();
    relay.crash(&database).await;
    broker.reject(|_| None);
    let relay = database.relay(broker.clone()).await;
    let mut sent = orders(&broker, 3).await;
    sent.sort();
    assert_eq!(sent, ["bad", "bad", "good"]);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_time_is_none_that_a_calendar_has_is_parked_and_delivered_too() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some(String::from("not yet")));
    let relay = database.relay(broker.clone()).await;
    for time in ["-infinity", "infinity", "4713-01-01 00:00:00 BC", "294276-12-31 00:00:00"] {
        database.sql(&insert(time).replacen("payload)", "payload, created_at)", 1).replacen(
            "'{}')",
            &format!("'{{}}', '{time}')"),
            1,
        ));
    }
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 4 FROM outbox.parked").then_some(())
    })
    .await;
    broker.reject(|_| None);
    orders(&broker, 4).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lost_its_shards_parks_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some(String::from("no")));
    let mut thief = database.sync();
    let hooked = Hooked::new(&broker, move |_| {
        thief
            .batch_execute(
                "UPDATE outbox.cursors SET owner = gen_random_uuid(), epoch = epoch + 1,
                     leased_until = clock_timestamp() + interval '1 minute'",
            )
            .unwrap();
        None
    });
    let relay = database.relay_with(hooked, quick()).await;
    database.insert("a");
    eventually(SOON, async || {
        database.value::<bool>("SELECT bool_and(epoch = 2) FROM outbox.cursors").then_some(())
    })
    .await;
    relay.shutdown().await;
    assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked"));
    assert!(database.value::<bool>("SELECT bool_and(tick = 0 AND seq = 0) FROM outbox.cursors"));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_what_was_delivered_before_a_parked_event_is_not_parked_behind_it() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|event: &OwnedMessage| (event.seq() == 3).then(|| String::from("not yet")));
    database.sql(&[insert("A"), insert("A"), insert("A")].join(";"));
    let options = quick().settle_interval(std::time::Duration::from_secs(3600));
    let relay = Crashable::start(&database, "default", broker.clone(), options).await;
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 2 FROM outbox.parked").then_some(())
    })
    .await;
    relay.crash(&database).await;
    broker.reject(|_| None);
    let relay = database.relay(broker.clone()).await;
    orders(&broker, 3).await;
    relay.shutdown().await;
    let sequence: Vec<_> = broker.delivered().iter().map(|sent| sent.message.seq()).collect();
    assert_eq!(sequence, [2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_at_which_the_publisher_panics_is_parked_and_the_others_go_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.panic_at(|event: &OwnedMessage| event.aggregate_id() == "poison");
    let events: Vec<_> = (0..50).map(|n| n.to_string()).collect();
    database.sql(&events.iter().map(|n| insert(n)).collect::<Vec<_>>().join(";"));
    database.sql(&[insert("poison"), insert("poison"), insert("behind it")].join(";"));
    let relay = database.relay(broker.clone()).await;
    let sent = orders(&broker, 51).await;
    assert_eq!(sent[..50], events);
    assert_eq!(sent[50], "behind it");
    // Its retries panic too, and cost it its attempts.
    eventually(SOON, async || {
        database
            .value::<bool>("SELECT EXISTS (SELECT FROM outbox.parked WHERE attempts > 2)")
            .then_some(())
    })
    .await;
    assert!(database.value::<bool>(
        "SELECT bool_and(aggregate_id = 'poison') AND count(*) = 2 AND count(*) FILTER (WHERE error LIKE '%panicked%') = 1
         FROM outbox.parked"
    ));
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 51);
}
