//! Subscriptions: made, made anew and rewound while relays run.

use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::subscription::{self, Start};
use outbox_tests::{Crashable, SOON, TestDatabase, eventually, insert, orders, quick};

async fn create(database: &TestDatabase, name: &str, start: Start, topics: &[&str]) -> bool {
    let mut conn = database.connect().await;
    subscription::create(&mut conn, name, start, topics).await.expect("creates")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_made_anew_under_a_running_relay_gets_everything_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    assert!(create(&database, "s", Start::Earliest, &[]).await);
    for n in 0..3 {
        database.insert(&n.to_string());
    }
    let relay = Crashable::start(&database, "s", broker.clone(), quick()).await;
    assert_eq!(orders(&broker, 3).await, ["0", "1", "2"]);
    database.sql("DELETE FROM outbox.subscriptions WHERE name = 's'");
    assert!(create(&database, "s", Start::Earliest, &[]).await);
    assert_eq!(orders(&broker, 6).await[3..], ["0", "1", "2"]);
    relay.crash(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_rewound_under_a_running_relay_gets_everything_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    for n in 0..3 {
        database.insert(&n.to_string());
    }
    let relay = database.relay(broker.clone()).await;
    orders(&broker, 3).await;
    database.sql(
        "SELECT pg_advisory_xact_lock(outbox.tick_lock_key());
         UPDATE outbox.subscriptions SET generation = generation + 1;
         UPDATE outbox.cursors SET tick = 0, target = NULL, seq = 0, epoch = epoch + 1, owner = NULL,
             leased_until = '-infinity'",
    );
    assert_eq!(orders(&broker, 6).await[3..], ["0", "1", "2"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_from_now_gets_what_commits_from_now_on() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut open = database.sync();
    open.batch_execute(&format!("BEGIN; {}", insert("open"))).unwrap();
    database.insert("before");
    assert!(create(&database, "late", Start::Now, &[]).await);
    assert!(!create(&database, "late", Start::Earliest, &[]).await, "an existing one stays");
    open.batch_execute("COMMIT").unwrap();
    database.insert("after");
    let relay = Crashable::start(&database, "late", broker.clone(), quick()).await;
    let mut sent = orders(&broker, 2).await;
    sent.sort();
    assert_eq!(sent, ["after", "open"]);
    relay.crash(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_filter_lets_its_topics_through_and_moves_on_over_the_others() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    assert!(create(&database, "some", Start::Earliest, &["wanted"]).await);
    for n in 0..50 {
        database.sql(&insert(&n.to_string()).replacen(
            "'order'",
            if n % 10 == 0 { "'wanted'" } else { "'other'" },
            1,
        ));
    }
    let relay = Crashable::start(&database, "some", broker.clone(), quick().batch_events(1)).await;
    assert_eq!(orders(&broker, 5).await, ["0", "10", "20", "30", "40"]);
    // The cursors pass the others too.
    eventually(SOON, async || {
        database
            .value::<bool>(
                "SELECT bool_and(tick > 0) FROM outbox.cursors WHERE subscription = 'some'",
            )
            .then_some(())
    })
    .await;
    relay.crash(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_subscription_whose_broker_is_away_does_not_hold_another() {
    let database = TestDatabase::new();
    let (away, there) = (RecordingPublisher::default(), RecordingPublisher::default());
    away.go_away("down");
    assert!(create(&database, "other", Start::Earliest, &[]).await);
    let stuck = database.relay(away.clone()).await;
    let relay = Crashable::start(&database, "other", there.clone(), quick()).await;
    for n in 0..5 {
        database.insert(&n.to_string());
    }
    orders(&there, 5).await;
    assert!(away.delivered().is_empty());
    away.come_back();
    orders(&away, 5).await;
    relay.crash(&database).await;
    stuck.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_data_whatever_they_hold() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let name = "x'; DROP TABLE outbox.events; --\" Ünï.code $1";
    assert!(create(&database, name, Start::Earliest, &["a'); --", "$2 \"t\""]).await);
    database.sql(&insert("a").replacen("'order'", "'$2 \"t\"'", 1));
    let relay = Crashable::start(&database, name, broker.clone(), quick()).await;
    assert_eq!(orders(&broker, 1).await, ["a"]);
    relay.crash(&database).await;
    let mut conn = database.connect().await;
    for name in ["", "a:b", &"x".repeat(256)] {
        subscription::create(&mut conn, name, Start::Now, &[]).await.expect_err("refused");
        assert!(create(&database, "good", Start::Now, &[]).await);
        database.sql("DELETE FROM outbox.subscriptions WHERE name = 'good'");
    }
}

#[tokio::test]
async fn creating_one_neither_commits_the_callers_transaction_nor_leaves_one_open() {
    use diesel_async::{AsyncConnection as _, SimpleAsyncConnection as _};
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.transaction::<(), diesel::result::Error, _>(async |conn| {
        conn.batch_execute("CREATE TABLE mine ()").await?;
        subscription::create(conn, "s", Start::Now, &[]).await.expect_err("in a transaction");
        Err(diesel::result::Error::RollbackTransaction)
    })
    .await
    .expect_err("rolled back");
    assert!(!database.value::<bool>("SELECT to_regclass('mine') IS NOT NULL"));
    database.sql("ALTER SEQUENCE outbox.event_seq RESTART WITH 1; INSERT INTO outbox.ticks SELECT 1, 0, '4', '4:4:', 9, 9");
    subscription::create(&mut conn, "s", Start::Now, &[]).await.expect_err("no tick can be taken");
    conn.batch_execute("VACUUM outbox.ticks").await.expect("outside of any transaction");
}

#[tokio::test(flavor = "multi_thread")]
async fn old_ticks_are_not_deleted_under_a_subscription_that_is_being_created() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.insert("a");
    let tick = database.tick();
    // Old enough to be deleted, if no cursor needed it.
    database.sql(&format!(
        "UPDATE outbox.ticks SET tick = 1000 WHERE tick = {tick};
         UPDATE outbox.cursors SET tick = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
         INSERT INTO outbox.ticks SELECT c.tick, 1, k.xid, k.snapshot, k.seq_before, k.seq_after
         FROM (SELECT DISTINCT tick FROM outbox.cursors) c, outbox.ticks k WHERE k.tick = 1000;
         -- The last one before the retention stays in any case: it tells what is older.
         INSERT INTO outbox.ticks SELECT 2000, 2, xid, snapshot, seq_before, seq_after
         FROM outbox.ticks WHERE tick = 1000"
    ));
    let mut creator = database.sync();
    creator.batch_execute(
        "BEGIN; SELECT pg_advisory_xact_lock(outbox.tick_lock_key());
         INSERT INTO outbox.subscriptions (name) VALUES ('old');
         INSERT INTO outbox.cursors (subscription, shard, tick) SELECT 'old', s, 1000 FROM generate_series(0, 15) s",
    )
    .unwrap();
    let relay = database.relay(broker.clone()).await;
    // The first upkeep comes right at the start and waits for the lock, in vain.
    eventually(SOON, async || {
        database
            .value::<bool>("SELECT count(*) = 16 FROM outbox.cursors WHERE owner IS NOT NULL")
            .then_some(())
    })
    .await;
    assert!(database.value::<bool>("SELECT EXISTS (SELECT FROM outbox.ticks WHERE tick = 1000)"));
    creator.batch_execute("COMMIT").unwrap();
    relay.shutdown().await;
    let relay = database.relay(broker.clone()).await;
    eventually(Duration::from_secs(5), async || {
        database
            .value::<bool>("SELECT count(*) = 16 FROM outbox.cursors WHERE owner IS NOT NULL")
            .then_some(())
    })
    .await;
    relay.shutdown().await;
    assert!(database.value::<bool>("SELECT EXISTS (SELECT FROM outbox.ticks WHERE tick = 1000)"));
    database.sql("DELETE FROM outbox.subscriptions WHERE name = 'old'");
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || {
        database
            .value::<bool>("SELECT NOT EXISTS (SELECT FROM outbox.ticks WHERE tick = 1000)")
            .then_some(())
    })
    .await;
    assert!(database.value::<bool>("SELECT EXISTS (SELECT FROM outbox.ticks WHERE tick = 0)"));
    relay.shutdown().await;
}
