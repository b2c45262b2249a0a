//! Redis that dies under load and comes back.

use std::time::Duration;

use outbox_tests::{Scene, TestDatabase, TestRedis};
use xtask::redis::{Options, Persistence, Redis};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_keeps_what_it_acknowledged_may_die_under_load() {
    let mut server = Redis::start(Options::default().persistence(Persistence::Always))
        .expect("a private Redis starts");
    let scene = Scene::on(TestDatabase::new(), TestRedis::on(&server.url()));
    let writing = scene.writers().start().await;
    let relays = [scene.relay(RELAY, "one"), scene.relay(RELAY, "two")];
    for round in 0..3 {
        scene.under_way().await;
        server.kill().expect("it is ours");
        // The relays meet its absence, each time for longer.
        tokio::time::sleep(Duration::from_millis(300 * round)).await;
        server.restart().expect("it starts again");
    }
    scene.under_way().await;
    let verdict = scene.end(writing, relays).await;
    let parked: i64 = scene.database().value("SELECT count(*) FROM outbox.parked");
    assert_eq!(parked, 0, "an outage is no event's fault");
    println!("redis died three times: {verdict}");
}
