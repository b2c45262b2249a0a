//! What NOTIFY costs those who write, and where it shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use diesel_async::{AsyncConnection as _, SimpleAsyncConnection as _};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{AsyncEmit as _, Wake};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually, quick};
use xtask::postgres::{Options, Postgres};

const WRITERS: usize = 64;

/// Sixty-four writers, each with one event per transaction, for some seconds: how many sessions, at
/// most, were seen waiting for the one lock that commits with notifications take, and how many
/// transactions there were.
async fn rush(database: &TestDatabase) -> (i64, u64) {
    let (stopped, commits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let mut conn = database.connect().await;
        let (stopped, commits) = (stopped.clone(), commits.clone());
        writers.spawn(async move {
            let event = TestEvent::new(writer);
            while !stopped.load(Ordering::Relaxed) {
                conn.transaction(async |conn| conn.emit(&event).await).await.expect("emits");
                commits.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let mut conn = database.sync();
    let mut most = 0;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let waiting: i64 = outbox_tests::Scalar::of(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'object'",
            &mut conn,
        )
        .unwrap();
        most = most.max(waiting);
    }
    stopped.store(true, Ordering::Relaxed);
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }
    (most, commits.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_writers_do_not_wait_for_each_other_at_commit_while_relays_are_awake() {
    // Its commits are flushed: that is when the lock is held.
    let server = Postgres::start(Options::default().setting("max_prepared_transactions", "0"));
    let server = server.unwrap();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), quick().wake(Wake::Listen)).await;
    // Awake, and the trigger is there.
    database.insert("first");
    outbox_tests::orders(&broker, 1).await;
    let (waiting, commits) = rush(&database).await;
    println!("{commits} transactions, at most {waiting} waited for the notification lock");
    assert_eq!(waiting, 0, "{commits} transactions");
    relay.shutdown().await;

    // What the usual trigger does, and that this test would see it.
    database.sql(
        "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_notify('outbox', NEW.id::text); RETURN NULL; END $$;
         CREATE TRIGGER shout AFTER INSERT ON outbox.events FOR EACH ROW EXECUTE FUNCTION shout()",
    );
    let (waiting, slower) = rush(&database).await;
    println!("with a notification per event: {slower} transactions, up to {waiting} waited");
    assert!(waiting > 5, "{waiting}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_notifications_that_somebody_keeps_from_being_emptied_is_named() {
    let server = Postgres::start(Options::default()).unwrap();
    let database = TestDatabase::on(&server.url("postgres"));
    let names = async || {
        let mut conn = database.connect().await;
        let found = outbox_diesel::doctor::examine(&mut conn).await.unwrap();
        found.into_iter().find(|finding| finding.name == "notification-queue")
    };
    assert!(names().await.is_none());
    // Listens, and stays in a transaction.
    let mut stuck = database.connect().await;
    stuck.batch_execute("LISTEN anything").await.unwrap();
    stuck.batch_execute("BEGIN; SELECT 1").await.unwrap();
    // Each fills a page; a hundredth of the queue is 84 MB.
    database.sql(
        "SELECT pg_notify('anything', n || repeat('x', 7900)) FROM generate_series(1, 12000) n",
    );
    let finding = names().await.expect("1 % full");
    assert!(finding.summary.contains(" 1 % full"), "{finding:?}");
    assert!(finding.remedy.contains("pg_terminate_backend"), "{finding:?}");
    drop(stuck);
    // The next one that notifies cleans up.
    eventually(SOON, async || {
        database.sql("LISTEN anything; SELECT pg_notify('anything', ''); UNLISTEN *");
        names().await.is_none().then_some(())
    })
    .await;
}
