//! Emits that commit while relays fall asleep: not one of them is slept through.

use std::time::{Duration, Instant};

use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use futures_util::future::join_all;
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{TestDatabase, TestEvent, eventually};

use crate::wake::{deep, server};

/// On a machine that many share. Relays look by themselves after a minute.
const PROMPT: Duration = Duration::from_secs(10);
const TIME: Duration = Duration::from_secs(25);

/// Transactions that take their time, some of which roll back, at moments that have nothing to do
/// with each other; each waits for its own event before it goes on.
async fn write(url: String, nth: usize, broker: RecordingPublisher, until: Instant) -> Duration {
    let mut conn = AsyncPgConnection::establish(&url).await.unwrap();
    let mut slowest = Duration::ZERO;
    for n in 0.. {
        if Instant::now() >= until {
            break;
        }
        // Around the time that a relay takes to fall asleep.
        tokio::time::sleep(Duration::from_millis(fastrand::u64(150..450))).await;
        let order = format!("{nth}/{n}");
        let event = TestEvent::new(&order);
        let rolls_back = n % 5 == 4;
        let ended = conn
            .transaction(async |conn| {
                conn.emit(&event).await?;
                tokio::time::sleep(Duration::from_millis(fastrand::u64(..300))).await;
                if rolls_back { Err(diesel::result::Error::RollbackTransaction) } else { Ok(()) }
            })
            .await;
        if rolls_back {
            continue;
        }
        ended.unwrap();
        let committed = Instant::now();
        eventually(PROMPT, async || {
            let sent = broker.delivered();
            sent.iter().any(|sent| sent.message.aggregate_id() == order).then_some(())
        })
        .await;
        slowest = slowest.max(committed.elapsed());
    }
    slowest
}

async fn sleeps_through_none(relays: usize, writers: usize) {
    let server = server();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    let mut running = Vec::new();
    for _ in 0..relays {
        running.push(database.relay_with(broker.clone(), deep()).await);
    }
    let until = Instant::now() + TIME;
    let writers = (0..writers).map(|nth| write(database.url(), nth, broker.clone(), until));
    let slowest = join_all(writers).await.into_iter().max().unwrap();
    println!("{} events, the slowest after {slowest:?}", broker.delivered().len());
    for relay in running {
        relay.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_emit_is_slept_through_by_one_relay() {
    sleeps_through_none(1, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_emit_is_slept_through_by_relays_that_fall_asleep_one_after_another() {
    sleeps_through_none(3, 3).await;
}
