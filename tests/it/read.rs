//! Read: each committed event is in exactly one diff, however the relay gets from tick to tick.

use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{Crashable, Hooked, SOON, TestDatabase, eventually, insert, orders, quick};

/// So many diffs does a relay walk, tick by tick, before it steps over any.
const WALK: usize = 33;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_ahead_of_a_lost_connection_is_read_again() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    for n in 0..40 {
        database.insert(&n.to_string());
    }
    let cut = database.url();
    let mut batches = 0;
    let hooked = Hooked::new(&broker, move |_| {
        batches += 1;
        if batches == 2 {
            let mut conn = <diesel::PgConnection as diesel::Connection>::establish(&cut).unwrap();
            conn.batch_execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity \
                 WHERE datname = current_database() AND application_name = 'relay'",
            )
            .unwrap();
        }
        None
    });
    let relay = database.relay_with(hooked, quick().batch_events(4)).await;
    database.insert("last");
    eventually(SOON, async || {
        broker.delivered().iter().any(|sent| sent.message.aggregate_id() == "last").then_some(())
    })
    .await;
    let sent = orders(&broker, 41).await;
    assert_eq!(sent.len(), 41);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_tick_is_stepped_over_in_the_middle_of_a_diff() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.ticks(WALK);
    let mut straggler = database.sync();
    straggler.batch_execute("BEGIN").unwrap();
    straggler.batch_execute(&insert("a")).unwrap();
    // One transaction, so that no tick parts them: the diff of the next tick, in two chunks.
    database.sql(&[insert("a"), insert("a"), insert("a")].join(";"));
    database.ticks(2);
    straggler.batch_execute("COMMIT").unwrap();
    database.ticks(1);
    let mut other = Some(database.sync());
    let mut batches = 0;
    let hooked = Hooked::new(&broker, move |_| {
        batches += 1;
        if batches == 2 {
            let mut other = other.take().unwrap();
            // When what follows has been read ahead, a step over all of these becomes worth while.
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(10));
                other.batch_execute(&"BEGIN; SELECT outbox.take_tick(); COMMIT;".repeat(20))
            });
        }
        (2..5).contains(&batches).then(|| String::from("a short outage"))
    });
    let relay = database.relay_with(hooked, quick().batch_events(2)).await;
    let sent = orders(&broker, 4).await;
    assert_eq!(sent, ["a"; 4]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_up_to_a_target_is_only_for_shards_that_have_it_in_their_cursor() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    // Fewer than WALK: nobody else steps over any.
    for n in 0..30 {
        database.insert(&n.to_string());
        let _ = database.tick();
    }
    let newest: i64 = database.value("SELECT max(tick) FROM outbox.ticks");
    // Shards 0 to 7: a predecessor aimed at the newest tick and left. 8 to 15 are another's still.
    database.sql(&format!(
        "UPDATE outbox.cursors SET target = {newest} WHERE shard < 8;
         UPDATE outbox.cursors SET owner = gen_random_uuid(), leased_until = clock_timestamp() + interval '5 s'
         WHERE shard >= 8"
    ));
    let release = database.url();
    let mut first = true;
    let hooked = Hooked::new(&broker, move |_| {
        if std::mem::take(&mut first) {
            let mut conn =
                <diesel::PgConnection as diesel::Connection>::establish(&release).unwrap();
            conn.batch_execute(
                "UPDATE outbox.cursors SET owner = NULL, leased_until = '-infinity' WHERE shard >= 8",
            )
            .unwrap();
            return Some(String::from("a short outage"));
        }
        None
    });
    let relay = database.relay_with(hooked, quick()).await;
    orders(&broker, 30).await;
    relay.shutdown().await;
    let sent = broker.delivered();
    let far = sent.iter().filter(|s| s.message.shard() >= 8 && s.message.tick() == newest).count();
    assert!(far <= 1, "{far} events of the last tick: their shards' diffs end at each tick");
}

#[tokio::test(flavor = "multi_thread")]
async fn ticks_up_to_a_change_of_the_topic_filter_keep_the_old_filter() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut changed = 0;
    for n in 0..60 {
        database.insert(&n.to_string());
        let tick = database.tick();
        if n == 55 {
            changed = tick;
        }
    }
    database.sql(&format!(
        "INSERT INTO outbox.topic_filters (subscription, from_tick, topics)
         VALUES ('default', {changed}, '{{other}}')"
    ));
    let relay = database.relay(broker.clone()).await;
    // The tick that it names still saw the event of its own number.
    let expected: Vec<_> = (0..56).map(|n| n.to_string()).collect();
    assert_eq!(orders(&broker, 56).await, expected);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_topic_filter_between_two_ticks_is_no_target() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut changed = 0;
    for n in 0..60 {
        database.insert(&n.to_string());
        let tick = database.tick();
        if n == 54 {
            changed = tick + 1;
        }
    }
    database.sql(&format!(
        "INSERT INTO outbox.topic_filters (subscription, from_tick, topics)
         VALUES ('default', {changed}, '{{other}}')"
    ));
    let relay = database.relay(broker.clone()).await;
    // It holds from the next tick on.
    let expected: Vec<_> = (0..56).map(|n| n.to_string()).collect();
    assert_eq!(orders(&broker, 56).await, expected);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashed_relays_successor_repeats_its_positions() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    for n in 0..50 {
        database.insert(&n.to_string());
        let _ = database.tick();
    }
    let options = quick().settle_interval(Duration::from_secs(3600));
    let relay = Crashable::start(&database, "default", broker.clone(), options).await;
    orders(&broker, 50).await;
    relay.crash(&database).await;
    let relay = database.relay(broker.clone()).await;
    database.insert("last");
    let sent = orders(&broker, 51).await;
    let mut expected: Vec<_> = (0..50).map(|n| n.to_string()).collect();
    expected.push(String::from("last"));
    assert_eq!(sent, expected);
    relay.shutdown().await;
}
