//! Relays as processes: killed while they publish, and frozen past their lease.

use std::time::{Duration, Instant};

use outbox_tests::{SOON, Scene, eventually, quick_lease};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_killed_while_it_publishes_is_replaced_within_its_lease_and_a_second() {
    let scene = Scene::new();
    let writing = scene.writers().start().await;
    let survivor = scene.relay(RELAY, "survivor");
    for round in 0..2 {
        let name = format!("victim-{round}");
        let mut victim = scene.relay(RELAY, &name);
        eventually(SOON, async || (scene.owned(&name) == 8).then_some(())).await;
        scene.under_way().await;
        victim.kill();
        let killed = Instant::now();
        eventually(SOON, async || (scene.owned(survivor.name()) == 16).then_some(())).await;
        let took = killed.elapsed();
        println!("take-over of a killed relay's shards: {took:?}, lease {:?}", quick_lease());
        assert!(took <= quick_lease() + Duration::from_secs(1), "{took:?}");
    }
    let verdict = scene.end(writing, [survivor]).await;
    println!("killed twice: {verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_killed_again_and_again_under_load_does_no_harm() {
    let scene = Scene::new();
    let writing = scene.writers().pause(Duration::from_millis(1)).start().await;
    let mut kills = 0;
    let until = Instant::now() + Duration::from_secs(8);
    while Instant::now() < until {
        let mut victim = scene.relay(RELAY, "victim");
        let before = scene.arrived().await;
        // At different points of its loop.
        let more = before + fastrand::usize(1..200);
        eventually(SOON, async || (scene.arrived().await >= more).then_some(())).await;
        victim.kill();
        kills += 1;
        // As if its lease had run out: what matters here is what it left behind.
        scene.database().sql(
            "UPDATE outbox.cursors SET leased_until = clock_timestamp(); DELETE FROM outbox.relays",
        );
    }
    let last = scene.relay(RELAY, "last");
    let verdict = scene.end(writing, [last]).await;
    println!("killed {kills} times: {verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_was_frozen_past_its_lease_is_shut_out() {
    let scene = Scene::new();
    let writing = scene.writers().pause(Duration::from_millis(1)).start().await;
    let zombie = scene.relay(RELAY, "zombie");
    let other = scene.relay(RELAY, "other");
    for _ in 0..2 {
        eventually(SOON, async || (scene.owned("zombie") == 8).then_some(())).await;
        scene.under_way().await;
        zombie.pause();
        eventually(SOON, async || (scene.owned("other") == 16).then_some(())).await;
        scene.under_way().await;
        zombie.resume();
    }
    eventually(SOON, async || (scene.owned("zombie") == 8).then_some(())).await;
    scene.under_way().await;
    let verdict = scene.end(writing, [zombie, other]).await;
    println!("frozen twice: {verdict}");
}
