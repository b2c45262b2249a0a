//! Park: what the broker rejects is put aside before anything behind it goes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection as _;
use outbox_diesel::RetryOptions;
use outbox_diesel::admin::{self, Filter};
use outbox_diesel::publish::{OwnedMessage, RecordingPublisher};
use outbox_tests::{Crashable, Hooked, SOON, TestDatabase, eventually, insert, orders, quick};

/// Orders of the same shard as this one, and of others.
fn orders_beside(database: &TestDatabase, order: &str) -> (Vec<String>, Vec<String>) {
    let shard = |id: &str| format!("hashtextextended({id}, hashtextextended('order', 0)) & 15");
    let same = format!("({} = {})", shard("id::text"), shard(&format!("'{order}'")));
    let select = |condition: &str| {
        database.value::<Vec<String>>(&format!(
            "SELECT array_agg(id::text ORDER BY id) FROM generate_series(1, 200) id WHERE {condition}"
        ))
    };
    (select(&same), select(&format!("NOT {same}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_event_is_parked_before_a_later_one_of_its_shard_goes_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker
        .reject(|event: &OwnedMessage| (event.aggregate_id() == "bad").then(|| String::from("no")));
    let (beside, elsewhere) = orders_beside(&database, "bad");
    let mut conn = database.sync();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (log, later) = (seen.clone(), beside[0].clone());
    let mut is_first = true;
    let hooked = Hooked::new(&broker, move |batch| {
        let has_later = batch.messages().iter().any(|message| message.aggregate_id() == later);
        if has_later && !std::mem::take(&mut is_first) {
            let parked = outbox_tests::Scalar::of("SELECT count(*) FROM outbox.parked", &mut conn);
            let parked: i64 = parked.unwrap();
            log.lock().unwrap().push(parked);
        }
        None
    });
    let events = ["bad", &beside[0], &elsewhere[0], "bad"].map(insert);
    database.sql(&events.join(";"));
    let relay = database.relay_with(hooked, quick()).await;
    // One of another shard need not wait.
    assert_eq!(orders(&broker, 2).await, [elsewhere[0].clone(), beside[0].clone()]);
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 2 FROM outbox.parked").then_some(())
    })
    .await;
    relay.shutdown().await;
    assert_eq!(*seen.lock().unwrap(), [2]);
}

/// Counts the transactions that park, and those that write what became of retries.
fn watch_writes(database: &TestDatabase) {
    database.sql(
        "CREATE TABLE writes (operation text, xid xid8, PRIMARY KEY (operation, xid));
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO writes VALUES (TG_OP, pg_current_xact_id()) ON CONFLICT DO NOTHING;
             RETURN NULL;
         END $$;
         CREATE TRIGGER note AFTER INSERT OR UPDATE ON outbox.parked FOR EACH ROW EXECUTE FUNCTION note()",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_rejected_events_are_parked_and_retried_in_few_flushes() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    broker.reject(move |event| {
        (event.aggregate_id() != "good").then(|| {
            count.fetch_add(1, Ordering::SeqCst);
            String::from("no")
        })
    });
    watch_writes(&database);
    // Each of its own aggregate, one stream: it stops at each of them.
    let many: Vec<_> = (0..1000).map(|n| insert(&n.to_string())).collect();
    database.sql(&[many.join(";"), insert("good"), many[7].clone(), many[7].clone()].join(";"));
    let retry = RetryOptions::default().base(Duration::from_millis(5)).attempts(2);
    let begin = Instant::now();
    let relay = database.relay_with(broker.clone(), quick().retry(retry)).await;
    orders(&broker, 1).await;
    println!("{:?} until what is behind a thousand rejected events went out", begin.elapsed());
    eventually(SOON * 2, async || {
        database
            .value::<bool>("SELECT count(*) = 1000 FROM outbox.dead_letters WHERE attempts = 2")
            .then_some(())
    })
    .await;
    println!("{:?} until all were dead", begin.elapsed());
    assert_eq!(tries.load(Ordering::SeqCst), 2000, "nobody's attempts were lost or made up");
    let writes = |operation: &str| {
        database
            .value::<i64>(&format!("SELECT count(*) FROM writes WHERE operation = '{operation}'"))
    };
    let (parks, retries) = (writes("INSERT"), writes("UPDATE"));
    println!("{parks} transactions parked, {retries} wrote what became of retries");
    // A park for each event of the fullest shard; a hundred retries together.
    let fullest: i64 = database.value(
        "SELECT max(n) FROM (SELECT count(*) AS n FROM outbox.events GROUP BY shard) shards",
    );
    assert!(parks <= fullest + 5, "{parks} parks, {fullest} events in the fullest shard");
    assert!(retries <= 250, "{retries} writes");
    // What is behind a dead one waits, and comes out in order.
    broker.reject(|_| None);
    let mut conn = database.connect().await;
    admin::retry_all(&mut conn, &Filter::default()).await.unwrap();
    let sent = orders(&broker, 1003).await;
    relay.shutdown().await;
    assert_eq!(sent.iter().filter(|id| *id == "7").count(), 3);
    let of_7: Vec<_> = broker
        .delivered()
        .iter()
        .filter(|sent| sent.message.aggregate_id() == "7")
        .map(|sent| sent.message.seq())
        .collect();
    assert!(of_7.is_sorted(), "{of_7:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_a_rejection_and_the_next_event_loses_neither() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker
        .reject(|event: &OwnedMessage| (event.aggregate_id() == "bad").then(|| String::from("no")));
    database.sql(&[insert("bad"), insert("good"), insert("bad")].join(";"));
    let (crash, crashed) = std::sync::mpsc::channel();
    let mut batches = 0;
    let hooked = Hooked::new(&broker, move |_| {
        batches += 1;
        if batches == 2 {
            crash.send(()).ok();
            return Some(String::from("and then it crashed"));
        }
        None
    });
    let relay = Crashable::start(&database, "default", hooked, quick()).await;
    tokio::task::spawn_blocking(move || crashed.recv().unwrap()).await.unwrap();
    relay.crash(&database).await;
    broker.reject(|_| None);
    let relay = database.relay(broker.clone()).await;
    let mut sent = orders(&broker, 3).await;
    sent.sort();
    assert_eq!(sent, ["bad", "bad", "good"]);
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_time_is_none_that_a_calendar_has_is_parked_and_delivered_too() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some(String::from("not yet")));
    let relay = database.relay(broker.clone()).await;
    for time in ["-infinity", "infinity", "4713-01-01 00:00:00 BC", "294276-12-31 00:00:00"] {
        database.sql(&insert(time).replacen("payload)", "payload, created_at)", 1).replacen(
            "'{}')",
            &format!("'{{}}', '{time}')"),
            1,
        ));
    }
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 4 FROM outbox.parked").then_some(())
    })
    .await;
    broker.reject(|_| None);
    orders(&broker, 4).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lost_its_shards_parks_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|_| Some(String::from("no")));
    let mut thief = database.sync();
    let hooked = Hooked::new(&broker, move |_| {
        thief
            .batch_execute(
                "UPDATE outbox.cursors SET owner = gen_random_uuid(), epoch = epoch + 1,
                     leased_until = clock_timestamp() + interval '1 minute'",
            )
            .unwrap();
        None
    });
    let relay = database.relay_with(hooked, quick()).await;
    database.insert("a");
    eventually(SOON, async || {
        database.value::<bool>("SELECT bool_and(epoch = 2) FROM outbox.cursors").then_some(())
    })
    .await;
    relay.shutdown().await;
    assert!(database.value::<bool>("SELECT count(*) = 0 FROM outbox.parked"));
    assert!(database.value::<bool>("SELECT bool_and(tick = 0 AND seq = 0) FROM outbox.cursors"));
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_what_was_delivered_before_a_parked_event_is_not_parked_behind_it() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.reject(|event: &OwnedMessage| (event.seq() == 3).then(|| String::from("not yet")));
    database.sql(&[insert("A"), insert("A"), insert("A")].join(";"));
    let options = quick().settle_interval(std::time::Duration::from_secs(3600));
    let relay = Crashable::start(&database, "default", broker.clone(), options).await;
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 2 FROM outbox.parked").then_some(())
    })
    .await;
    relay.crash(&database).await;
    broker.reject(|_| None);
    let relay = database.relay(broker.clone()).await;
    orders(&broker, 3).await;
    relay.shutdown().await;
    let sequence: Vec<_> = broker.delivered().iter().map(|sent| sent.message.seq()).collect();
    assert_eq!(sequence, [2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_at_which_the_publisher_panics_is_parked_and_the_others_go_out() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    broker.panic_at(|event: &OwnedMessage| event.aggregate_id() == "poison");
    let events: Vec<_> = (0..50).map(|n| n.to_string()).collect();
    database.sql(&events.iter().map(|n| insert(n)).collect::<Vec<_>>().join(";"));
    database.sql(&[insert("poison"), insert("poison"), insert("behind it")].join(";"));
    let relay = database.relay(broker.clone()).await;
    let sent = orders(&broker, 51).await;
    assert_eq!(sent[..50], events);
    assert_eq!(sent[50], "behind it");
    // Its retries panic too, and cost it its attempts.
    eventually(SOON, async || {
        database
            .value::<bool>("SELECT EXISTS (SELECT FROM outbox.parked WHERE attempts > 2)")
            .then_some(())
    })
    .await;
    assert!(database.value::<bool>(
        "SELECT bool_and(aggregate_id = 'poison') AND count(*) = 2 AND count(*) FILTER (WHERE error LIKE '%panicked%') = 1
         FROM outbox.parked"
    ));
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 51);
}
