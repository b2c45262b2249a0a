//! PostgreSQL that crashes under load and recovers.

use std::time::{Duration, Instant};

use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, Scene, TestDatabase, TestRedis, eventually, orders, quick_lease};
use xtask::postgres::{Durability, Options, Postgres};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_crashes_under_load_is_resumed_without_help() {
    let mut server = Postgres::start(Options::default().durability(Durability::Full))
        .expect("a private PostgreSQL starts");
    let scene = Scene::on(TestDatabase::on(&server.url("postgres")), TestRedis::new());
    let writing = scene.writers().start().await;
    let relays = [scene.relay(RELAY, "one"), scene.relay(RELAY, "two")];
    for round in 0..3 {
        scene.under_way().await;
        server.kill().expect("it is ours");
        tokio::time::sleep(Duration::from_millis(500 * round)).await;
        server.restart().expect("it recovers");
        let started = Instant::now();
        scene.under_way().await;
        println!("publishing again {:?} after the server accepts connections", started.elapsed());
    }
    let verdict = scene.end(writing, relays).await;
    println!("postgresql crashed three times: {verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_down_for_longer_than_a_lease_makes_nobody_suspect_an_event() {
    let options = Options::default().durability(Durability::None);
    let mut server = Postgres::start(options).expect("a private PostgreSQL starts");
    let database = TestDatabase::on(&server.url("postgres"));
    database.sql(
        "CREATE TABLE suspected (shard smallint);
         CREATE FUNCTION suspect() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN INSERT INTO suspected VALUES (NEW.shard); RETURN NULL; END $$;
         CREATE TRIGGER suspect AFTER UPDATE ON outbox.cursors
         FOR EACH ROW WHEN (NEW.crashes > OLD.crashes) EXECUTE FUNCTION suspect()",
    );
    let broker = RecordingPublisher::default();
    let relays = [
        database.relay(broker.clone()).await,
        database.relay(broker.clone()).await,
        database.relay(broker.clone()).await,
    ];
    let shared = "SELECT count(DISTINCT owner) = 3 AND bool_and(leased_until > clock_timestamp()) FROM outbox.cursors";
    for round in 1..=2 {
        eventually(SOON, async || database.value::<bool>(shared).then_some(())).await;
        server.kill().expect("it is ours");
        tokio::time::sleep(quick_lease() + Duration::from_millis(500)).await;
        server.restart().expect("it recovers");
        // Whoever is back first takes what the others had.
        database.insert("after");
        orders(&broker, round).await;
    }
    assert!(database.value::<bool>("SELECT count(*) = 0 FROM suspected"));
    // One that ends while the server is there is suspect.
    eventually(SOON, async || database.value::<bool>(shared).then_some(())).await;
    tokio::time::sleep(quick_lease()).await;
    database.sql(
        "UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = clock_timestamp()",
    );
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) > 0 FROM suspected").then_some(())
    })
    .await;
    for relay in relays {
        relay.shutdown().await;
    }
}
