//! Redis in every state that it can be in but the right one: nobody's fault, and waited for.

use std::time::{Duration, Instant};

use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::{Health, RelayHandle};
use outbox_tests::{SOON, TestDatabase, TestRedis, eventually, insert, quick};
use redis::AsyncCommands as _;
use xtask::redis::{Options, Persistence, Redis};

/// A relay before a Redis of its own.
struct Scene {
    database: TestDatabase,
    redis: TestRedis,
    relay: RelayHandle,
    emitted: usize,
}

impl Scene {
    async fn before(server: &Redis) -> Self {
        let (database, redis) = (TestDatabase::new(), TestRedis::on(&server.url()));
        let publisher =
            RedisPublisher::connect_lazily(redis.url()).unwrap().stream_prefix(redis.prefix());
        let relay = database.relay_with(publisher, quick()).await;
        Self { database, redis, relay, emitted: 0 }
    }

    fn emit(&mut self, count: usize) {
        self.emit_to("order", count);
    }

    fn emit_to(&mut self, topic: &str, count: usize) {
        let event = |n: usize| insert(&n.to_string()).replacen("'order'", &format!("'{topic}'"), 1);
        let events: Vec<_> = (0..count).map(event).collect();
        self.database.sql(&events.join(";"));
        self.emitted += count;
    }

    async fn run(&self, command: &[&str]) {
        let mut conn = self.redis.connect().await;
        let ran: redis::RedisResult<redis::Value> =
            redis::cmd(command[0]).arg(&command[1..]).query_async(&mut conn).await;
        ran.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    }

    /// Waits until the relay says that the broker is away, for a reason with this word.
    async fn is_away(&self, word: &str) {
        eventually(SOON, async || match self.relay.health() {
            Health::BrokerUnavailable { reason } => {
                reason.to_uppercase().contains(word).then_some(())
            }
            _ => None,
        })
        .await;
    }

    /// Waits until everything has arrived, once each, and at nobody's expense.
    async fn all_arrived(&self) {
        let arrived = async || {
            let mut conn = self.redis.connect().await;
            let mut arrived = 0;
            for topic in ["order", "moved"] {
                let stream = format!("{}{topic}", self.redis.prefix());
                arrived += conn.xlen::<_, usize>(&stream).await.ok()?;
            }
            Some(arrived)
        };
        eventually(SOON, async || (arrived().await? >= self.emitted).then_some(())).await;
        assert_eq!(arrived().await, Some(self.emitted));
        assert_eq!(self.relay.health(), Health::Running);
        assert!(self.database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_full_read_only_or_has_forgotten_its_scripts_costs_no_attempt() {
    let server = Redis::start(Options::default()).unwrap();
    let mut scene = Scene::before(&server).await;
    scene.emit(20);
    scene.all_arrived().await;
    let broken: [(&str, &[&str], &[&str]); 3] = [
        ("OOM", &["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
        // The primary has become the replica of another one.
        ("READONLY", &["REPLICAOF", "127.0.0.1", "1"], &["REPLICAOF", "NO", "ONE"]),
        ("OOM", &["CONFIG", "SET", "maxmemory", "1"], &["CONFIG", "SET", "maxmemory", "0"]),
    ];
    for (word, spoil, mend) in broken {
        scene.run(spoil).await;
        scene.emit(20);
        scene.is_away(word).await;
        scene.run(mend).await;
        scene.run(&["SCRIPT", "FLUSH"]).await;
        scene.all_arrived().await;
    }
    scene.relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_loads_its_data_costs_no_attempt() {
    // It answers each 1,024 commands while it loads, and takes its time for each of them.
    let options = Options::default().persistence(Persistence::Always);
    let mut server = Redis::start(options.setting("key-load-delay", "100")).unwrap();
    let mut scene = Scene::before(&server).await;
    scene.emit(20);
    scene.all_arrived().await;
    let mut fill = redis::pipe();
    for n in 0..20_000 {
        fill.cmd("SET").arg(format!("{}{n}", scene.redis.prefix())).arg(n);
    }
    let () = fill.query_async(&mut scene.redis.connect().await).await.unwrap();
    let restart = tokio::task::spawn_blocking(move || {
        server.restart().unwrap();
        server
    });
    scene.emit(20);
    scene.is_away("LOADING").await;
    let _server = restart.await.unwrap();
    scene.all_arrived().await;
    scene.relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_whose_slots_are_elsewhere_or_nowhere_costs_no_attempt() {
    let cluster = || {
        let options = Options::default().setting("cluster-enabled", "yes");
        Redis::start(options.setting("cluster-require-full-coverage", "no")).unwrap()
    };
    let (server, other) = (cluster(), cluster());
    let mut scene = Scene::before(&server).await;
    scene.emit(10);
    // No node serves the slot.
    scene.is_away("CLUSTERDOWN").await;
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    let assign = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
    scene.run(&assign.collect::<Vec<_>>()).await;
    scene.all_arrived().await;

    // The slot moves to another node, and back.
    let port = other.port().to_string();
    scene.run(&["CLUSTER", "MEET", "127.0.0.1", &port]).await;
    let mut conn = scene.redis.connect().await;
    let own: String = redis::cmd("CLUSTER").arg("MYID").query_async(&mut conn).await.unwrap();
    let client = redis::Client::open(other.url()).unwrap();
    let mut there = client.get_multiplexed_async_connection().await.unwrap();
    let foreign: String = redis::cmd("CLUSTER").arg("MYID").query_async(&mut there).await.unwrap();
    let stream = format!("{}moved", scene.redis.prefix());
    let slot: i64 =
        redis::cmd("CLUSTER").arg("KEYSLOT").arg(&stream).query_async(&mut conn).await.unwrap();
    let slot = slot.to_string();
    // They have to get to know each other first.
    eventually(SOON, async || {
        let mut conn = scene.redis.connect().await;
        let nodes: String = redis::cmd("CLUSTER").arg("NODES").query_async(&mut conn).await.ok()?;
        (nodes.contains(&foreign) && !nodes.contains("handshake")).then_some(())
    })
    .await;
    scene.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &foreign]).await;
    scene.emit_to("moved", 10);
    scene.is_away("MOVED").await;
    scene.run(&["CLUSTER", "SETSLOT", &slot, "NODE", &own]).await;
    scene.all_arrived().await;
    scene.relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_outage_the_next_one_is_waited_for_with_short_pauses_again() {
    let mut server = Redis::start(Options::default().persistence(Persistence::Always)).unwrap();
    let mut scene = Scene::before(&server).await;
    scene.emit(1);
    scene.all_arrived().await;
    // Long enough for the longest pauses.
    server.stop().unwrap();
    scene.emit(1);
    scene.is_away("").await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    server.restart().unwrap();
    scene.all_arrived().await;
    // A short one costs no more than it lasts, and a little.
    server.stop().unwrap();
    scene.emit(1);
    scene.is_away("").await;
    server.restart().unwrap();
    let back = Instant::now();
    scene.all_arrived().await;
    println!("{:?} after the return", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(2), "{:?}", back.elapsed());
    scene.relay.shutdown().await;
}
