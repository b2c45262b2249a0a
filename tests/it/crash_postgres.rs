//! PostgreSQL that crashes under load and recovers.

use std::time::{Duration, Instant};

use outbox_tests::{Scene, TestDatabase, TestRedis};
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
