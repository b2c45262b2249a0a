//! Poison that takes the process along: an event that ends every relay that sends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_diesel::admin::{self, Filter, Replay};
use outbox_diesel::publish::{Batch, Contact, Publisher, Receipt, RecordingPublisher, Unavailable};
use outbox_tests::{RelayProcess, RelayThread, SOON, TestDatabase, TestRedis, eventually, insert};
use redis::AsyncCommands as _;

use crate::admin::{attempts, dead, holds};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

/// One relay after another: each ends at an event of the aggregate `poison`.
struct Mortals<'a> {
    database: &'a TestDatabase,
    redis: &'a TestRedis,
    relay: RelayProcess,
    starts: usize,
}

impl<'a> Mortals<'a> {
    fn start(database: &'a TestDatabase, redis: &'a TestRedis) -> Self {
        let relay = Self::spawn(database, redis, 1);
        Self { database, redis, relay, starts: 1 }
    }

    fn spawn(database: &TestDatabase, redis: &TestRedis, nth: usize) -> RelayProcess {
        let dies = [("RELAY_DIES_AT", "poison")];
        RelayProcess::start(RELAY, &format!("mortal-{nth}"), database, redis, &dies)
    }

    /// Starts the next one if the last one has ended.
    fn revive(&mut self) {
        if self.relay.has_ended() {
            // As if the lease had run out.
            self.database.sql(
                "UPDATE outbox.cursors SET leased_until = clock_timestamp(); DELETE FROM outbox.relays",
            );
            self.starts += 1;
            self.relay = Self::spawn(self.database, self.redis, self.starts);
        }
    }

    /// Revives them until the query returns true.
    async fn until(&mut self, query: &str) {
        eventually(SOON * 4, async || {
            self.revive();
            self.database.value::<bool>(query).then_some(())
        })
        .await;
    }

    /// Revives them until so many entries have arrived, and returns their aggregates.
    async fn arrived(&mut self, count: usize) -> Vec<String> {
        let stream = format!("{}order", self.redis.prefix());
        let mut ids = eventually(SOON, async || {
            self.revive();
            let entries: redis::streams::StreamRangeReply =
                self.redis.connect().await.xrange_all(&stream).await.unwrap_or_default();
            let ids: Vec<String> =
                entries.ids.iter().filter_map(|entry| entry.get("aggregate_id")).collect();
            (ids.len() >= count).then_some(ids)
        })
        .await;
        ids.sort();
        ids
    }
}

/// The aggregates of so many events, sorted.
fn some(count: usize) -> Vec<String> {
    let mut ids: Vec<_> = (0..count).map(|n| n.to_string()).collect();
    ids.sort();
    ids
}

fn emit(database: &TestDatabase, ids: &[&str]) {
    let statements: Vec<_> = ids.iter().map(|id| insert(id)).collect();
    database.sql(&statements.join(";"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_ends_every_process_that_tries_it_ends_up_dead_and_the_rest_flows() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let good = some(30);
    let mut events: Vec<&str> = good.iter().map(String::as_str).collect();
    events.insert(20, "poison");
    events.push("poison");
    emit(&database, &events);
    let mut relays = Mortals::start(&database, &redis);
    // The options of that program allow ten attempts.
    let dead =
        "SELECT count(*) = 1 FROM outbox.dead_letters WHERE attempts = 10 AND error LIKE '%ended%'";
    relays.until(dead).await;
    // The rest, and what comes later, goes out; what is behind the dead one waits.
    database.insert("later");
    let mut expected = good.clone();
    expected.push("later".to_owned());
    assert_eq!(relays.arrived(31).await, expected, "once each");
    relays
        .until("SELECT count(*) = 2 AND bool_and(aggregate_id = 'poison') FROM outbox.parked")
        .await;
    println!("{} starts until the event was dead", relays.starts);
    assert!(relays.starts <= 16, "{} starts", relays.starts);
    relays.relay.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_ends_every_process_that_replays_it_is_left_out_and_the_rest_is_replayed() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let good = some(30);
    let mut events: Vec<&str> = good.iter().map(String::as_str).collect();
    events.insert(20, "poison");
    emit(&database, &events);
    // The first time it did no harm.
    let mut immortal = RelayProcess::start(RELAY, "immortal", &database, &redis, &[]);
    let settled =
        "SELECT bool_and(tick = (SELECT max(tick) FROM outbox.ticks)) FROM outbox.cursors";
    eventually(SOON, async || {
        let stream = format!("{}order", redis.prefix());
        let has_all = redis.connect().await.xlen::<_, usize>(&stream).await.unwrap() == 31;
        (has_all && database.value::<bool>(settled)).then_some(())
    })
    .await;
    immortal.stop();
    let mut conn = database.connect().await;
    let fast = Replay::of("default").per_second(1000);
    let id = admin::replay(&mut conn, &fast).await.unwrap();
    let mut relays = Mortals::start(&database, &redis);
    relays
        .until(&format!("SELECT finished_at IS NOT NULL FROM outbox.replays WHERE id = '{id}'"))
        .await;
    let progress = admin::replay_progress(&mut conn, id).await.unwrap();
    assert_eq!((progress.sent, progress.refused), (30, 1));
    assert!(progress.error.is_some_and(|error| error.contains("ended")));
    println!("{} starts until the replay was over", relays.starts);
    assert_eq!(relays.starts, 4, "one ends in the batch, two at the event alone");
    // New events go out, and each was replayed once.
    database.insert("later");
    let mut expected = [good.clone(), good, vec!["later".to_owned(), "poison".to_owned()]].concat();
    expected.sort();
    assert_eq!(relays.arrived(62).await, expected, "once each");
    relays.relay.stop();
}

/// A broker at whose first sight of the event the relay falls.
struct Fatal {
    broker: RecordingPublisher,
    has_fallen: Arc<AtomicBool>,
}

impl Publisher for Fatal {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        self.broker.contact(batch).await
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        if batch.messages().iter().any(|message| message.aggregate_id() == "poison") {
            self.has_fallen.store(true, Ordering::SeqCst);
            // Until the test ends it, which is sooner than the timeout.
            std::future::pending::<()>().await;
        }
        self.broker.publish(batch).await
    }
}

/// A relay and whether it has fallen.
type Faller = (RelayThread, Arc<AtomicBool>);

fn faller(database: &TestDatabase, broker: &RecordingPublisher) -> Faller {
    let has_fallen = Arc::new(AtomicBool::new(false));
    let publisher = Fatal { broker: broker.clone(), has_fallen: has_fallen.clone() };
    let options = attempts(3)
        .publish_timeout(Duration::from_secs(2))
        .settle_interval(Duration::from_millis(1));
    (RelayThread::start(&database.url(), "default", publisher, options), has_fallen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_ends_every_relay_ends_up_dead_though_others_were_at_rest_in_between() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some("not yet".to_owned()));
    // Every shard has something parked, so that nobody looks at once after a take-over.
    let others = some(100);
    let mut events: Vec<&str> = others.iter().map(String::as_str).collect();
    events.push("poison");
    emit(&database, &events);
    let relay = database.relay_with(broker.clone(), attempts(1)).await;
    dead(&database, 101).await;
    relay.shutdown().await;
    let mut conn = database.connect().await;
    admin::retry_all(&mut conn, &Filter::default().aggregate_id("poison")).await.unwrap();

    let mut relays = [0, 1, 2].map(|_| faller(&database, &broker));
    let mut deaths = 0;
    let is_dead = "SELECT dead AND attempts = 3 FROM outbox.parked WHERE aggregate_id = 'poison'";
    eventually(SOON * 3, async || {
        let fallen = relays.iter().position(|relay| relay.1.load(Ordering::SeqCst));
        let Some(fallen) = fallen else {
            return database.value::<bool>(is_dead).then_some(());
        };
        relays[fallen].0.crash();
        deaths += 1;
        // As if its lease had run out, once the other two have shards of their own and are at rest.
        let owner: String = database.value(
            "SELECT c.owner::text FROM outbox.cursors c JOIN outbox.parked p USING (shard)
             WHERE p.aggregate_id = 'poison'",
        );
        holds(
            &database,
            &format!(
                "SELECT count(DISTINCT owner) >= 2 FROM outbox.cursors WHERE owner <> '{owner}'"
            ),
        )
        .await;
        database.sql(&format!(
            "UPDATE outbox.cursors SET leased_until = clock_timestamp() WHERE owner = '{owner}';
             DELETE FROM outbox.relays WHERE id = '{owner}'"
        ));
        holds(&database, "SELECT bool_and(leased_until > clock_timestamp()) FROM outbox.cursors")
            .await;
        relays[fallen] = faller(&database, &broker);
        None
    })
    .await;
    println!("{deaths} deaths until the event was dead");
    assert!(deaths <= 7, "{deaths} deaths");
}
