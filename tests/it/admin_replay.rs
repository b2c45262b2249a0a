//! Replay: delivered events sent once more.

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use outbox_diesel::RelayHandle;
use outbox_diesel::admin::{self, AdminError, Filter, Progress, Replay};
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::publish::{Recorded, RecordingPublisher};
use outbox_diesel::replay::REPLAY_HEADER;
use outbox_diesel::subscription::{self, Start};
use outbox_tests::{SOON, TestDatabase, TestRedis, eventually};
use uuid::Uuid;

use crate::admin::{Rejects, dead, emit, event, gets, holds, nothing_parked, strict_relay};

/// Waits until the replay has ended.
async fn ended(database: &TestDatabase, id: Uuid) -> Progress {
    let mut conn = database.connect().await;
    eventually(SOON, async || {
        let progress = admin::replay_progress(&mut conn, id).await.unwrap();
        progress.finished_at.is_some().then_some(progress)
    })
    .await
}

/// Waits until all cursors have arrived at the newest tick.
async fn settled(database: &TestDatabase) {
    let at_the_end = "SELECT bool_and(tick = (SELECT max(tick) FROM outbox.ticks)) FROM outbox.cursors WHERE subscription = 'default'";
    holds(database, at_the_end).await;
}

/// The event types that came marked with this replay, in the order in which they came.
fn marked(broker: &RecordingPublisher, id: Uuid) -> Vec<String> {
    let mark = format!("\"{REPLAY_HEADER}\":\"{id}\"");
    let delivered = broker.delivered();
    let is_marked = |got: &&Recorded| got.message.headers().contains(&mark);
    delivered.iter().filter(is_marked).map(|got| got.message.event_type().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_events_come_once_more_marked_in_order_and_as_often_as_they_are_replayed() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    let mut ids = Vec::new();
    for name in ["1", "2", "3"] {
        ids.push(emit(&mut conn, event("a", name).header("tenant", "acme")).await);
        emit(&mut conn, event("b", name)).await;
    }
    gets(&broker, "b", &["1", "2", "3"]).await;
    settled(&database).await;

    let of_a = Replay::of("default").aggregate_id("a");
    for round in 1..=2_usize {
        let id = admin::replay(&mut conn, &of_a).await.unwrap();
        let progress = ended(&database, id).await;
        assert_eq!((progress.sent, progress.refused, progress.left), (3, 0, 0));
        assert_eq!(marked(&broker, id), ["1", "2", "3"]);
        assert_eq!(broker.delivered().len(), 6 + 3 * round);
    }
    let last = broker.delivered().pop().unwrap().message;
    assert_eq!(last.id(), ids[2]);
    assert!(last.headers().ends_with(r#","tenant":"acme"}"#), "{}", last.headers());
    nothing_parked(&database).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_chooses_by_each_of_its_settings() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    emit(&mut conn, event("a", "1").topic("t1")).await;
    emit(&mut conn, event("a", "2").topic("t2")).await;
    emit(&mut conn, event("b", "3").topic("t2").aggregate_type("cart")).await;
    settled(&database).await;
    let middle = Utc::now();
    emit(&mut conn, event("b", "4").topic("t3")).await;
    gets(&broker, "b", &["3", "4"]).await;
    settled(&database).await;
    let all = || Replay::of("default").per_second(10_000);
    for (replay, expected) in [
        (all(), "1 2 3 4"),
        (all().topic("t2"), "2 3"),
        (all().aggregate_type("cart"), "3"),
        (all().aggregate_id("b"), "3 4"),
        (all().event_type("4"), "4"),
        (all().since(middle), "4"),
        (all().until(middle), "1 2 3"),
        (all().until(middle).topic("t3"), ""),
    ] {
        let id = admin::replay(&mut conn, &replay).await.unwrap();
        ended(&database, id).await;
        assert_eq!(marked(&broker, id).join(" "), expected, "{replay:?}");
    }
    // Of the topics that the subscription gets now.
    subscription::set_topics(&mut conn, "default", &["t1"]).await.unwrap();
    let id = admin::replay(&mut conn, &all()).await.unwrap();
    ended(&database, id).await;
    assert_eq!(marked(&broker, id), ["1"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_discarded_and_undelivered_events_are_left_out_and_live_ones_do_not_wait() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let rejects = Rejects::of(&broker, &["bad", "worse"]);
    let mut conn = database.connect().await;
    subscription::create(&mut conn, "idle", Start::Earliest, &[]).await.unwrap();
    let relay = strict_relay(&database, &broker).await;
    let worse = emit(&mut conn, event("b", "worse")).await;
    for name in ["1", "bad", "held"] {
        emit(&mut conn, event("a", name)).await;
    }
    dead(&database, 2).await;
    admin::discard(&mut conn, "default", worse, "beyond help").await.unwrap();
    gets(&broker, "a", &["1"]).await;
    settled(&database).await;
    // It is refused this time, which blocks nobody.
    rejects.set(&["1", "bad"]);
    let id = admin::replay(&mut conn, &Replay::of("default")).await.unwrap();
    emit(&mut conn, event("c", "live")).await;
    let progress = ended(&database, id).await;
    assert_eq!((progress.sent, progress.refused), (0, 1));
    assert_eq!(progress.error.as_deref(), Some("1 is not wanted"));
    gets(&broker, "c", &["live"]).await;
    assert_eq!(database.value::<i64>("SELECT count(*) FROM outbox.parked"), 2);
    rejects.set(&[]);
    admin::retry_all(&mut conn, &Filter::default()).await.unwrap();
    gets(&broker, "a", &["1", "bad", "held"]).await;
    relay.shutdown().await;

    // Nothing was delivered to this one: its replay has nothing to send.
    let id = admin::replay(&mut conn, &Replay::of("idle")).await.unwrap();
    let other = RecordingPublisher::default();
    other.go_away("so that its cursors stay where they are");
    let relay = outbox_diesel::Relay::builder(database.pool(1).await)
        .publisher(other.clone())
        .options(outbox_tests::quick())
        .subscription("idle")
        .spawn()
        .unwrap();
    // Before the broker comes back, and while it tries again and again.
    eventually(SOON, async || {
        (admin::replay_progress(&mut conn, id).await.unwrap().finished_at.is_some()).then_some(())
    })
    .await;
    other.come_back();
    gets(&other, "a", &["1", "bad", "held"]).await;
    assert!(marked(&other, id).is_empty());
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_operators_at_once_one_starts_the_replay_and_it_keeps_to_its_rate_until_cancelled() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    for n in 0..60 {
        emit(&mut conn, event(&format!("a{n}"), "e")).await;
    }
    eventually(SOON, async || (broker.delivered().len() == 60).then_some(())).await;
    settled(&database).await;
    let mut second = database.connect().await;
    let slow = Replay::of("default").per_second(20);
    let (one, two) =
        tokio::join!(admin::replay(&mut conn, &slow), admin::replay(&mut second, &slow));
    let (started, refused) = if one.is_ok() { (one, two) } else { (two, one) };
    let id = started.unwrap();
    let refused = refused.unwrap_err();
    assert!(matches!(refused, AdminError::ReplayRunning(running) if running == id), "{refused}");

    eventually(SOON, async || (broker.delivered().len() > 60).then_some(())).await;
    let (begin, before) = (Instant::now(), broker.delivered().len());
    eventually(SOON, async || (broker.delivered().len() >= before + 20).then_some(())).await;
    assert!(begin.elapsed() > Duration::from_millis(700), "{:?}", begin.elapsed());

    let progress = admin::cancel_replay(&mut conn, id).await.unwrap();
    assert!(progress.cancelled && progress.finished_at.is_some() && progress.left > 0);
    assert_eq!(
        admin::cancel_replay(&mut second, id).await.unwrap().finished_at,
        progress.finished_at
    );
    let unknown = admin::cancel_replay(&mut conn, Uuid::nil()).await.unwrap_err();
    assert!(matches!(unknown, AdminError::NoReplay(_)), "{unknown}");
    // Another one can start, and what is sent under it is not what was sent before.
    let id = admin::replay(&mut conn, &Replay::of("default").per_second(9999)).await.unwrap();
    assert_eq!(ended(&database, id).await.sent, 60);
    assert_eq!(marked(&broker, id).len(), 60);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_is_replayed_once_whatever_is_lost_and_whoever_goes_on() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = strict_relay(&database, &broker).await;
    let mut conn = database.connect().await;
    for n in 0..300 {
        emit(&mut conn, event(&format!("a{}", n % 20), "e")).await;
    }
    eventually(SOON, async || (broker.delivered().len() == 300).then_some(())).await;
    settled(&database).await;
    let id = admin::replay(&mut conn, &Replay::of("default").per_second(100)).await.unwrap();
    for at in [330, 360, 400, 430] {
        eventually(SOON, async || (broker.delivered().len() >= at).then_some(())).await;
        broker.lose_answers(1);
    }
    // As after a crash.
    database.sql(
        "UPDATE outbox.cursors SET epoch = epoch + 1, owner = NULL, leased_until = '-infinity'",
    );
    let other = strict_relay(&database, &broker).await;
    relay.shutdown().await;
    ended(&database, id).await;
    assert_eq!(marked(&broker, id).len(), 300);
    assert_eq!(broker.delivered().len(), 600);
    assert!(broker.repeats() > 0, "no answer was lost");
    other.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_takes_each_event_once_per_replay_and_live_ones_go_on() {
    use redis::AsyncCommands as _;
    let database = TestDatabase::new();
    let redis = TestRedis::new();
    let publisher =
        RedisPublisher::connect_lazily(redis.url()).unwrap().stream_prefix(redis.prefix());
    let relay = database.relay(publisher).await;
    let (mut conn, mut broker) = (database.connect().await, redis.connect().await);
    for name in ["1", "2", "3"] {
        emit(&mut conn, event("a", name)).await;
    }
    let stream = format!("{}order", redis.prefix());
    let arrived = async |broker: &mut redis::aio::MultiplexedConnection, events: usize| {
        let mut broker = broker.clone();
        eventually(SOON, async || {
            (broker.xlen::<_, usize>(&stream).await.unwrap() >= events).then_some(())
        })
        .await;
        assert_eq!(broker.xlen::<_, usize>(&stream).await.unwrap(), events);
    };
    arrived(&mut broker, 3).await;
    settled(&database).await;
    let id = admin::replay(&mut conn, &Replay::of("default")).await.unwrap();
    assert_eq!(ended(&database, id).await.sent, 3);
    arrived(&mut broker, 6).await;
    // As if its progress had been lost: Redis knows them.
    database.sql(
        "UPDATE outbox.replay_cursors SET seq = 0; UPDATE outbox.replays SET finished_at = NULL;
         INSERT INTO outbox.revisions VALUES ('default', 99) ON CONFLICT (subscription) DO UPDATE SET revision = 99",
    );
    assert_eq!(ended(&database, id).await.sent, 6);
    arrived(&mut broker, 6).await;
    emit(&mut conn, event("a", "live")).await;
    arrived(&mut broker, 7).await;
    relay.shutdown().await;
}

/// Delivers three events and makes them 15, 15 and 13 days old; the first and the last have random
/// ids.
pub(crate) async fn aged(database: &TestDatabase, broker: &RecordingPublisher) -> RelayHandle {
    let relay = strict_relay(database, broker).await;
    let mut conn = database.connect().await;
    database.insert("random");
    emit(&mut conn, event("timed", "e")).await;
    database.insert("young");
    eventually(SOON, async || (broker.delivered().len() == 3).then_some(())).await;
    settled(database).await;
    database.sql(
        "UPDATE outbox.events SET created_at = created_at - CASE aggregate_id WHEN 'young' THEN interval '13 days' ELSE interval '15 days' END",
    );
    relay
}

#[tokio::test(flavor = "multi_thread")]
async fn what_inboxes_may_have_forgotten_is_refused_in_a_replay_unless_it_is_asked_for() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = aged(&database, &broker).await;
    let mut conn = database.connect().await;
    let of_all = Replay::of("default");
    let id = admin::replay(&mut conn, &of_all).await.unwrap();
    let progress = ended(&database, id).await;
    assert_eq!((progress.sent, progress.refused), (2, 1), "{progress:?}");
    assert!(progress.error.unwrap().contains("no UUIDv7"));
    let came: Vec<_> =
        broker.delivered()[3..].iter().map(|got| got.message.aggregate_id().to_owned()).collect();
    assert_eq!(came, ["timed", "young"]);
    let id = admin::replay(&mut conn, &of_all.forgotten_too()).await.unwrap();
    let progress = ended(&database, id).await;
    assert_eq!((progress.sent, progress.refused, progress.error), (3, 0, None));
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_replay_refuses_is_counted_once_though_the_broker_is_away() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = aged(&database, &broker).await;
    let mut conn = database.connect().await;
    broker.lose_answers(2);
    let id = admin::replay(&mut conn, &Replay::of("default").per_second(1000)).await.unwrap();
    let progress = ended(&database, id).await;
    assert_eq!((progress.sent, progress.refused), (2, 1), "{progress:?}");
    relay.shutdown().await;
}

#[tokio::test]
async fn a_replay_of_more_than_is_kept_is_refused() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    emit(&mut conn, event("a", "1")).await;
    database.sql("SELECT outbox.take_tick(); UPDATE outbox.ticks SET ticked_at = clock_timestamp() - interval '1 hour'");
    database.sql(
        "SELECT setval('outbox.event_seq', 1500000);
         INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) VALUES ('t', 'a', '1', 'e', '1');
         TRUNCATE outbox.events_s1",
    );
    database.sql("SELECT outbox.take_tick()");
    let replay = Replay::of("default");
    let asked = replay.clone().since(Utc::now() - TimeDelta::minutes(30));
    let error = admin::replay(&mut conn, &asked).await.unwrap_err();
    assert!(matches!(error, AdminError::NotKept { kept_from: 1_000_000, .. }), "{error}");
    let error = admin::replay(&mut conn, &Replay::of("other")).await.unwrap_err();
    assert!(matches!(error, AdminError::NoSubscription(_)), "{error}");
    admin::replay(&mut conn, &replay).await.unwrap();
}
