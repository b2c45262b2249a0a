//! `Wake::Listen` where nobody can be woken: the relay notices, says so, and polls.

use std::time::{Duration, Instant};

use diesel::connection::CacheSize;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use futures_util::FutureExt as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{Relay, doctor};
use outbox_tests::{Proxy, SOON, TestDatabase, eventually, orders};
use xtask::pgbouncer::{PgBouncer, PoolMode};

use crate::doctor::finds;
use crate::log::Log;
use crate::wake::{Spy, asleep, deep, quiet_database, server};

type Manager = AsyncDieselConnectionManager<AsyncPgConnection>;

fn pooler_proof(url: &str) -> Manager {
    let mut config = ManagerConfig::default();
    config.custom_setup = Box::new(|url| {
        async {
            let mut conn = AsyncPgConnection::establish(url).await?;
            conn.set_prepared_statement_cache_size(CacheSize::Disabled);
            Ok(conn)
        }
        .boxed()
    });
    Manager::new_with_config(url, config)
}

#[tokio::test]
async fn behind_a_transaction_pooler_a_relay_polls_until_it_is_given_a_way_past_it() {
    let log = Log::default();
    let _kept = log.keep_warnings();
    let server = server();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction).unwrap();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    let pool =
        bb8::Pool::builder().build(pooler_proof(&pooler.url(database.name()))).await.unwrap();
    let mut spy = Spy::on(&database);
    let relay = Relay::builder(pool.clone()).publisher(broker.clone()).options(deep());
    let relay = relay.spawn().unwrap();
    let is_told = |log: &Log| log.text().contains("hears nothing").then_some(());
    eventually(SOON, async || is_told(&log)).await;
    assert!(log.text().contains("Relay::direct"), "{}", log.text());
    // Whoever asks the database is told too.
    let mut conn = database.connect().await;
    let first =
        eventually(SOON, async || doctor::examine(&mut conn).await.unwrap().into_iter().next());
    let first = first.await;
    assert_eq!(first.name, "listen-not-heard", "{first:?}");
    assert!(first.evidence.concat().contains("hears nothing"), "{first:?}");
    spy.heard();
    database.insert("polled");
    assert_eq!(orders(&broker, 1).await, ["polled"]);
    assert!(!spy.heard().contains(&"event".to_owned()), "nobody sleeps");
    relay.shutdown().await;
    let url = format!("{}?application_name=relay", database.url());
    let relay = Relay::builder(pool).publisher(broker.clone()).options(deep());
    let relay = relay.direct(Manager::new(url)).spawn().unwrap();
    asleep(&database, 1).await;
    assert_eq!(finds(&mut conn, "listen-not-heard").await, None);
    spy.heard();
    database.insert("woken");
    assert_eq!(orders(&broker, 2).await, ["polled", "woken"]);
    assert!(spy.heard().contains(&"event".to_owned()));
    relay.shutdown().await;
}

#[tokio::test]
async fn a_listening_connection_that_falls_silent_is_noticed_and_replaced() {
    let log = Log::default();
    let _kept = log.keep_warnings();
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let (proxy, url) = Proxy::before(&database.url()).await;
    let options = deep().poll_asleep(Duration::from_secs(2));
    let relay = Relay::builder(database.relay_pool().await).publisher(broker.clone());
    let relay = relay.options(options).direct(Manager::new(url)).spawn().unwrap();
    asleep(&database, 1).await;
    proxy.silence();
    let silent = Instant::now();
    database.insert("unheard");
    assert_eq!(orders(&broker, 1).await, ["unheard"]);
    println!("found after {:?}", silent.elapsed());
    let told = "the connection that listens";
    eventually(SOON, async || log.text().contains(told).then_some(())).await;
    println!("noticed after {:?}", silent.elapsed());
    let mut conn = database.connect().await;
    eventually(SOON, async || finds(&mut conn, "listen-not-heard").await).await;
    database.insert("polled");
    let committed = Instant::now();
    assert_eq!(orders(&broker, 2).await, ["unheard", "polled"]);
    println!("polled after {:?}", committed.elapsed());
    proxy.cut();
    proxy.resume();
    asleep(&database, 1).await;
    let is_well = async || finds(&mut conn, "listen-not-heard").await.is_none().then_some(());
    eventually(SOON, is_well).await;
    database.insert("woken");
    assert_eq!(orders(&broker, 3).await, ["unheard", "polled", "woken"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_while_the_listening_connection_is_replaced_is_not_waited_for() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let (proxy, url) = Proxy::before(&database.url()).await;
    let relay = Relay::builder(database.relay_pool().await).publisher(broker.clone());
    let relay = relay.options(deep()).direct(Manager::new(url)).spawn().unwrap();
    let mut expected = Vec::new();
    for n in 0..30 {
        asleep(&database, 1).await;
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..1500))).await;
        database.insert(&n.to_string());
        expected.push(n.to_string());
        assert_eq!(orders(&broker, expected.len()).await, expected);
    }
    relay.shutdown().await;
}

#[tokio::test]
async fn a_role_without_rights_is_told_what_it_lacks_and_polls() {
    let log = Log::default();
    let _kept = log.keep_warnings();
    let database = quiet_database();
    database.sql(include_str!("../../ops/roles.sql"));
    let role = format!("{}_relay", database.name());
    database.sql(&format!("CREATE ROLE {role} LOGIN; GRANT outbox_relay TO {role}"));
    database.sql("REVOKE EXECUTE ON FUNCTION outbox.install_wake() FROM outbox_relay");
    let broker = RecordingPublisher::default();
    let manager = Manager::new(format!("{}?application_name=relay", database.url_as(&role)));
    let pool = bb8::Pool::builder().build(manager).await.unwrap();
    let start = || Relay::builder(pool.clone()).publisher(broker.clone()).options(deep()).spawn();
    let relay = start().unwrap();
    let grant = "GRANT EXECUTE ON FUNCTION outbox.install_wake() TO";
    eventually(SOON, async || log.text().contains(grant).then_some(())).await;
    database.insert("polled");
    assert_eq!(orders(&broker, 1).await, ["polled"]);
    relay.shutdown().await;
    database.sql(include_str!("../../ops/roles.sql"));
    let relay = start().unwrap();
    asleep(&database, 1).await;
    database.insert("woken");
    assert_eq!(orders(&broker, 2).await, ["polled", "woken"]);
    relay.shutdown().await;
    database.sql("SELECT outbox.remove_wake()");
    assert!(!database.value::<bool>("SELECT outbox.wake_is_installed()"));
}
