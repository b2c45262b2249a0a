//! What a main path passes over, and what it asks the broker first.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel::PgConnection;
use outbox_diesel::publish::{Batch, Contact, Publisher, Receipt, RecordingPublisher, Unavailable};
use outbox_diesel::{Order, RetryOptions};
use outbox_tests::{Crashable, SOON, Scalar, TestDatabase, eventually, insert, orders, quick};

fn delivered(broker: &RecordingPublisher) -> Vec<i64> {
    broker.delivered().iter().map(|sent| sent.message.seq()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_passes_over_what_its_predecessor_parked() {
    for order in [Order::Hold, Order::Unordered] {
        let database = TestDatabase::new();
        let broker = RecordingPublisher::default();
        broker.reject(|event| (event.seq() == 2).then(|| String::from("no")));
        database.sql(&[insert("A"), insert("B")].join(";"));
        // The crash comes before any settle, and the retry much later.
        let retry = RetryOptions::default().base(Duration::from_secs(3600)).order(order);
        let options = quick().settle_interval(Duration::from_secs(3600)).retry(retry);
        let first = Crashable::start(&database, "default", broker.clone(), options.clone()).await;
        orders(&broker, 1).await;
        eventually(SOON, async || {
            database.value::<bool>("SELECT count(*) = 1 FROM outbox.parked").then_some(())
        })
        .await;
        database.sql("UPDATE outbox.parked SET next_attempt_at = now() + interval '1 day'");
        first.crash(&database).await;
        broker.reject(|_| None);
        let relay = database.relay_with(broker.clone(), options).await;
        database.insert("end");
        orders(&broker, 2).await;
        relay.shutdown().await;
        assert_eq!(delivered(&broker), [3, 4], "{order:?}");
        assert!(database.value::<bool>("SELECT count(*) = 1 FROM outbox.parked"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_that_stand_at_unlike_places_of_one_diff_go_on_from_their_own() {
    for batch in [1, 7, 1000] {
        let database = TestDatabase::new();
        let broker = RecordingPublisher::default();
        let events: Vec<_> = (0..40).map(|n| insert(&n.to_string())).collect();
        database.sql(&events.join(";"));
        let _ = database.tick();
        // One shard's were all delivered by an owner who did not come to the end of the diff.
        database.sql(
            "UPDATE outbox.cursors SET seq = (SELECT max(seq) FROM outbox.events)
             WHERE shard = (SELECT shard FROM outbox.events ORDER BY seq LIMIT 1)",
        );
        let missing: i64 = database.value(
            "SELECT count(*) FROM outbox.events e JOIN outbox.cursors c USING (shard) WHERE c.seq > 0",
        );
        let relay = database.relay_with(broker.clone(), quick().batch_events(batch)).await;
        database.insert("end");
        eventually(SOON, async || {
            let sent = broker.delivered();
            sent.iter().any(|sent| sent.message.aggregate_id() == "end").then_some(())
        })
        .await;
        relay.shutdown().await;
        let sent = broker.delivered().len();
        assert_eq!(sent, 41 - usize::try_from(missing).unwrap(), "batches of {batch}");
    }
}

/// Notes what is parked at each first contact.
struct Asked {
    broker: RecordingPublisher,
    conn: PgConnection,
    parked: Arc<Mutex<Vec<i64>>>,
}

impl Publisher for Asked {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        let contacts = self.broker.contact(batch).await?;
        if !contacts.is_empty() {
            let parked = Scalar::of("SELECT count(*) FROM outbox.parked", &mut self.conn).unwrap();
            self.parked.lock().unwrap().push(parked);
        }
        Ok(contacts)
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        self.broker.publish(batch).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_held_before_the_first_contact_with_its_stream() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some(String::from("no")));
    let retry = RetryOptions::default().base(Duration::from_secs(3600));
    let options = quick().retry(retry);
    database.insert("A");
    let first = Crashable::start(&database, "default", broker.clone(), options.clone()).await;
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 1 FROM outbox.parked").then_some(())
    })
    .await;
    database.sql("UPDATE outbox.parked SET next_attempt_at = now() + interval '1 day'");
    first.crash(&database).await;
    database.sql(&[insert("A"), insert("A")].join(";"));
    let parked = Arc::new(Mutex::new(Vec::new()));
    let asked = Asked { broker: broker.clone(), conn: database.sync(), parked: parked.clone() };
    let relay = database.relay_with(asked, options).await;
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 3 FROM outbox.parked").then_some(())
    })
    .await;
    relay.shutdown().await;
    assert_eq!(parked.lock().unwrap().first(), Some(&1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_relay_takes_over_a_raised_generation() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    database.insert("before");
    orders(&broker, 1).await;
    // As another relay does that finds the broker ahead.
    database.sql("UPDATE outbox.subscriptions SET generation = generation + 1");
    eventually(SOON, async || {
        database.insert("after");
        let last = broker.delivered().pop()?;
        (last.generation == 2).then_some(())
    })
    .await;
    relay.shutdown().await;
}
