//! The publishers that need no Redis.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_diesel::publish::{OwnedMessage, PublishError, RecordingPublisher, publisher_fn};

use crate::events::{Event, epoch, event, events, id, publish, send, stamp, verdicts};

#[tokio::test]
async fn a_closure_gets_every_event_in_order() {
    let seen: Arc<Mutex<Vec<OwnedMessage>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let mut publisher = publisher_fn(move |event: OwnedMessage| {
        let sink = Arc::clone(&sink);
        async move {
            sink.lock().expect("no panic").push(event);
            Ok(())
        }
    });
    let keyed = Event { dedup_key: Some("once".to_owned()), ..event(2).shard(3) };
    let receipt = publish(&mut publisher, &stamp(), &[event(1), keyed]).await;
    assert_eq!(verdicts(&receipt), "dd");
    let seen = seen.lock().expect("no panic");
    let copy = seen[1].clone();
    assert_eq!((copy.id(), copy.topic(), copy.shard()), (id(2), "orders", 3));
    assert_eq!((copy.aggregate_type(), copy.aggregate_id()), ("order", "a"));
    assert_eq!((copy.event_type(), copy.event_version()), ("order.created", 1));
    assert_eq!((copy.dedup_key(), seen[0].dedup_key()), (Some("once"), None));
    assert_eq!((copy.payload(), copy.headers()), ("{\"n\":2}", "{}"));
    assert_eq!((copy.tick(), copy.seq()), (10, 2));
    assert_eq!(copy.created_at().timestamp_micros(), 1_700_000_000_123_456);
    assert!(!format!("{copy:?}").contains("\"n\""), "payloads stay out of Debug");
}

#[tokio::test]
async fn a_closure_that_rejects_goes_on_with_other_aggregates() {
    let mut publisher = publisher_fn(|event: OwnedMessage| async move {
        if event.seq() == 2 { Err(PublishError::Rejected("bad".to_owned())) } else { Ok(()) }
    });
    let batch = [event(1), event(2), event(3).aggregate("b"), event(4)];
    assert_eq!(verdicts(&publish(&mut publisher, &stamp(), &batch).await), "drdu");
}

#[tokio::test]
async fn a_closure_that_fails_with_any_error_is_unavailable() {
    let mut publisher = publisher_fn(|event: OwnedMessage| async move {
        let _: i32 = if event.seq() == 2 { "x" } else { "1" }.parse::<i32>()?;
        Ok(())
    });
    let receipt = publish(&mut publisher, &stamp(), &events([1, 2, 3])).await;
    assert_eq!(verdicts(&receipt), "duu");
    let unavailable = receipt.unavailability().expect("a reason");
    assert_eq!(unavailable.0, "invalid digit found in string");
}

#[tokio::test]
async fn a_recording_says_what_came_under_which_stamp() {
    let broker = RecordingPublisher::default();
    send(&mut broker.clone(), &epoch(3), &events([1, 2])).await;
    send(&mut broker.clone(), &epoch(4), &events([2, 3])).await;
    let seen: Vec<_> =
        broker.delivered().iter().map(|it| (it.message.seq(), it.epoch, it.generation)).collect();
    assert_eq!(seen, [(1, 3, 1), (2, 3, 1), (3, 4, 1)]);
    assert_eq!(broker.repeats(), 1);
}

#[tokio::test]
async fn a_recording_can_be_away() {
    let broker = RecordingPublisher::default();
    let mut publisher = broker.clone();
    send(&mut publisher, &epoch(1), &events([1])).await;
    broker.go_away("maintenance");
    let receipt = publish(&mut publisher, &epoch(1), &events([2])).await;
    assert_eq!(verdicts(&receipt), "u");
    assert_eq!(receipt.unavailability().expect("a reason").0, "maintenance");
    broker.come_back();
    assert_eq!(verdicts(&send(&mut publisher, &epoch(2), &events([2])).await), "d");
}

#[tokio::test]
async fn a_recording_can_lose_answers() {
    let broker = RecordingPublisher::default();
    let mut publisher = broker.clone();
    broker.lose_answers(1);
    let receipt = send(&mut publisher, &epoch(1), &events([1, 2])).await;
    assert_eq!(verdicts(&receipt), "uu");
    assert!(receipt.unavailability().is_some());
    assert_eq!(broker.delivered().len(), 2);
    assert_eq!(verdicts(&send(&mut publisher, &epoch(2), &events([1, 2])).await), "dd");
    assert_eq!((broker.delivered().len(), broker.repeats()), (2, 2));
}

#[tokio::test]
async fn a_recording_can_panic_and_go_on() {
    let broker = RecordingPublisher::default();
    broker.panic_at(|event| event.seq() == 2);
    let mut publisher = broker.clone();
    let call = tokio::spawn(async move { send(&mut publisher, &epoch(1), &events([1, 2])).await });
    assert!(call.await.expect_err("told to panic").is_panic());
    broker.panic_at(|_| false);
    send(&mut broker.clone(), &epoch(2), &events([1, 2])).await;
    assert_eq!(broker.delivered().len(), 2);
}

#[tokio::test]
async fn a_recording_can_be_slow_enough_to_be_overtaken() {
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(300));
    let mut slow = broker.clone();
    crate::events::contact(&mut slow, &epoch(1), &events([1])).await.expect("contact");
    let call = tokio::spawn(async move { publish(&mut slow, &epoch(1), &events([1])).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    broker.delay(Duration::ZERO);
    send(&mut broker.clone(), &epoch(2), &events([1])).await;
    assert_eq!(call.await.expect("no panic").fenced_shards(), [0]);
    assert_eq!(broker.delivered().len(), 1);
}
