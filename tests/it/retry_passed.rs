//! A parked event is tried again only once the cursor has passed it: else a crash before the
//! settle would send it again.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::oracle::{Arrivals, Committed, Verdict};
use outbox_tests::{RelayThread, SOON, TestDatabase, backlog, eventually, quick};

/// One aggregate, one shard.
const EMIT: &str = "\
INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a', 'account', '1', 'account.changed', '{\"v\":1}')";

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_of_a_later_diff_is_not_passed_by_its_seq() {
    let database = TestDatabase::new();
    database.sql("CREATE TABLE ledger (id bigint PRIMARY KEY, version bigint); INSERT INTO ledger VALUES (1, 1)");
    // Drawn before the first tick, committed after the second.
    let mut late = database.sync();
    late.batch_execute(&format!("BEGIN; {EMIT}")).expect("emits");
    for _ in 0..2 {
        database.sql("SELECT outbox.take_tick()");
    }
    late.batch_execute("COMMIT").expect("commits");
    database.sql("SELECT outbox.take_tick()");

    let broker = RecordingPublisher::default();
    broker.reject(|_| Some("not now".to_owned()));
    let relay = RelayThread::start(&database.url(), "default", broker.clone(), quick());
    let parked = "SELECT EXISTS (SELECT FROM outbox.parked)";
    eventually(SOON, async || database.value::<bool>(parked).then_some(())).await;
    drop(relay);
    // The crash forgot the last settles: the cursors stand in the first tick's diff, behind its
    // stragglers.
    database.sql(
        "UPDATE outbox.cursors c SET target = NULL, tick = t.tick, seq = t.seq_before, owner = NULL,
             leased_until = '-infinity'
         FROM (SELECT * FROM outbox.ticks WHERE tick > 0 ORDER BY tick LIMIT 1) t;
         UPDATE outbox.parked SET next_attempt_at = now();
         DELETE FROM outbox.relays",
    );

    broker.reject(|_| None);
    let relay = database.relay(broker.clone()).await;
    let passed = "SELECT bool_and(c.tick >= t.tick) FROM outbox.cursors c,
                  (SELECT max(tick) AS tick FROM outbox.ticks) t WHERE NOT EXISTS (SELECT FROM outbox.parked)";
    eventually(SOON, async || database.value::<Option<bool>>(passed)?.then_some(())).await;
    relay.shutdown().await;
    let arrivals = Arrivals::recorded(&broker.delivered(), "default");
    Verdict::on(&Committed::read(&mut database.sync()), &arrivals).assert_clean(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_went_out_before_a_parked_event_of_its_aggregate_is_not_held_behind_it() {
    let database = TestDatabase::new();
    backlog(&database, 2, 1, 0);
    let broker = RecordingPublisher::default();
    broker.reject(|event| event.payload().contains("\"v\":2").then(|| "not now".to_owned()));
    let relay = RelayThread::start(&database.url(), "default", broker.clone(), quick());
    let parked = "SELECT EXISTS (SELECT FROM outbox.parked)";
    eventually(SOON, async || database.value::<bool>(parked).then_some(())).await;
    drop(relay);
    // The crash came before the settle.
    database.sql(
        "UPDATE outbox.cursors SET target = NULL, tick = 0, seq = 0, owner = NULL, leased_until = '-infinity';
         DELETE FROM outbox.relays",
    );

    broker.reject(|_| None);
    let relay = database.relay(broker.clone()).await;
    let none_parked = "SELECT NOT EXISTS (SELECT FROM outbox.parked)";
    eventually(SOON, async || database.value::<bool>(none_parked).then_some(())).await;
    relay.shutdown().await;
    let arrivals = Arrivals::recorded(&broker.delivered(), "default");
    Verdict::on(&Committed::read(&mut database.sync()), &arrivals).assert_clean(0);
}
