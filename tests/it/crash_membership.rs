//! Relays that join and leave share evenly.

use std::time::{Duration, Instant};

use outbox_tests::{RelayProcess, SOON, Scene, eventually, quick_heartbeat};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

#[tokio::test(flavor = "multi_thread")]
async fn relays_that_join_and_leave_share_evenly_within_two_heartbeats() {
    let scene = Scene::new();
    let writing = scene.writers().start().await;
    let mut relays: Vec<RelayProcess> = Vec::new();
    for name in ["one", "two", "three"] {
        relays.push(scene.relay(RELAY, name));
        // It counts from its first heartbeat on.
        let registered = format!("SELECT EXISTS (SELECT FROM outbox.relays WHERE host = '{name}')");
        eventually(SOON, async || scene.database().value::<bool>(&registered).then_some(())).await;
        shared_evenly(&scene, &relays, "joined").await;
    }
    scene.under_way().await;
    for _ in 0..2 {
        relays.remove(0).stop();
        shared_evenly(&scene, &relays, "left").await;
    }
    let verdict = scene.end(writing, relays).await;
    println!("three relays joined, two left: {verdict}");
}

async fn shared_evenly(scene: &Scene, relays: &[RelayProcess], what: &str) {
    let since = Instant::now();
    eventually(SOON, async || {
        let shares: Vec<i64> = relays.iter().map(|relay| scene.owned(relay.name())).collect();
        let all = shares.iter().sum::<i64>() == 16;
        (all && shares.iter().max()? - shares.iter().min()? <= 1).then_some(())
    })
    .await;
    let took = since.elapsed();
    println!("{what}: {} share evenly after {took:?}", relays.len());
    // Two heartbeats; asking and a busy machine take some time, too.
    assert!(took <= quick_heartbeat() * 2 + Duration::from_secs(1), "{what}: {took:?}");
}
