//! Redis that dies or stands still under load and comes back.

use std::time::Duration;

use outbox_tests::{Scene, TestDatabase, TestRedis, quick_lease};
use xtask::redis::{Options, Persistence, Redis};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

/// Kills Redis under load. The relays meet its absence, each time for longer.
async fn interrupt(scene: &Scene, server: &mut Redis, round: u64) {
    scene.under_way().await;
    server.kill().expect("it is ours");
    tokio::time::sleep(Duration::from_millis(300 * round)).await;
    server.restart().expect("it starts again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_keeps_what_it_acknowledged_may_die_under_load() {
    let mut server = Redis::start(Options::default().persistence(Persistence::Always))
        .expect("a private Redis starts");
    let scene = Scene::on(TestDatabase::new(), TestRedis::on(&server.url()));
    let writing = scene.writers().start().await;
    let relays = [scene.relay(RELAY, "one"), scene.relay(RELAY, "two")];
    for round in 0..3 {
        interrupt(&scene, &mut server, round).await;
    }
    scene.under_way().await;
    let verdict = scene.end(writing, relays).await;
    let parked: i64 = scene.database().value("SELECT count(*) FROM outbox.parked");
    assert_eq!(parked, 0, "an outage is no event's fault");
    println!("redis died three times: {verdict}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_scripts_redis_and_relays_may_die_and_only_repeats_come_of_it() {
    let options = Options::default().persistence(Persistence::Always);
    let mut server =
        Redis::start(options.disabled("EVAL").disabled("EVALSHA")).expect("a private Redis starts");
    let scene = Scene::on(TestDatabase::new(), TestRedis::on(&server.url()));
    let writing = scene.writers().start().await;
    let start = |name| scene.relay_with(RELAY, name, &[("RELAY_SCRIPTS", "none")]);
    let (mut mortal, lasting) = (start("mortal"), start("lasting"));
    for round in 0..3 {
        interrupt(&scene, &mut server, round).await;
        scene.under_way().await;
        mortal.kill();
        mortal = start("mortal");
    }
    scene.under_way().await;
    let verdict = scene.end_at_least_once(writing, [mortal, lasting]).await;
    let parked: i64 = scene.database().value("SELECT count(*) FROM outbox.parked");
    assert_eq!(parked, 0, "an outage is no event's fault");
    println!("without scripts, redis and a relay died three times: {verdict}");
}

/// The epochs in the streams' fences that lie above the database's.
async fn epochs_above_the_databases(scene: &Scene) -> Vec<String> {
    let mut conn = scene.redis().connect().await;
    let pattern = format!("*fence*{}*", scene.redis().prefix());
    let fences: Vec<String> =
        redis::cmd("KEYS").arg(pattern).query_async(&mut conn).await.expect("Redis answers");
    assert!(!fences.is_empty(), "the streams have fences");
    let mut stored = Vec::new();
    for fence in fences {
        let fields: Vec<(String, String)> =
            redis::cmd("HGETALL").arg(&fence).query_async(&mut conn).await.expect("it is a hash");
        stored.extend(fields);
    }
    // Afterwards: they only grow.
    let known: Vec<String> = scene
        .database()
        .value("SELECT ARRAY(SELECT epoch::text FROM outbox.cursors ORDER BY shard)");
    let is_above = |(field, stored): &(String, String)| {
        let shard = field.rsplit(':').next().expect("it has at least one part");
        let epoch = stored.split(':').next().expect("it has at least one part");
        let known = &known[shard.parse::<usize>().expect("the last part is the shard")];
        let number = |epoch: &str| epoch.parse::<i64>().expect("an epoch is a number");
        number(epoch) > number(known)
    };
    stored.into_iter().filter(is_above).map(|(field, stored)| format!("{field} {stored}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_redis_runs_long_after_their_time_do_no_harm() {
    let mut server = Redis::start(Options::default()).expect("a private Redis starts");
    let scene = Scene::on(TestDatabase::new(), TestRedis::on(&server.url()));
    let writing = scene.writers().start().await;
    let relays = [scene.relay(RELAY, "one"), scene.relay(RELAY, "two")];
    for round in 0..3 {
        scene.under_way().await;
        // What is sent now lies in the server's buffers: it runs when the server goes on, whether or
        // not the relay still waits for the answer or holds the lease.
        server.pause().expect("it is ours");
        tokio::time::sleep(quick_lease() / 3 * (1 + round)).await;
        server.resume().expect("it is ours");
        scene.under_way().await;
        let above = epochs_above_the_databases(&scene).await;
        assert!(above.is_empty(), "an epoch is raised in the database before Redis: {above:?}");
    }
    let verdict = scene.end(writing, relays).await;
    let parked: i64 = scene.database().value("SELECT count(*) FROM outbox.parked");
    assert_eq!(parked, 0, "an outage is no event's fault");
    println!("redis stood still three times: {verdict}");
}
