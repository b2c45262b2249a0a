//! Positions do not depend on who reads a diff, nor on what else that relay is just reading.

use std::time::Duration;

use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::oracle::{Arrivals, Committed, Verdict};
use outbox_tests::{RelayThread, SOON, TestDatabase, backlog, eventually, quick};

const FREE: &str =
    "UPDATE outbox.cursors SET owner = NULL, leased_until = '-infinity'; DELETE FROM outbox.relays";
const PASSED: &str = "\
SELECT bool_and(pg_visible_in_snapshot(e.xid, t.snapshot)) FROM outbox.events e
JOIN outbox.cursors c USING (shard) JOIN outbox.ticks t USING (tick)";

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_is_claimed_while_others_step_over_ticks_is_not_dragged_along() {
    let database = TestDatabase::new();
    // An owner walks so many ticks before it steps over any.
    database.sql(&"SELECT outbox.take_tick();".repeat(33).replace(';', ";COMMIT;"));
    let walked: i64 = database.value("SELECT max(tick) FROM outbox.ticks");
    for _ in 0..30 {
        backlog(&database, 40, 40, 0);
        database.sql("SELECT outbox.take_tick()");
    }
    // Another relay has walked, too, and holds half of the shards.
    database.sql(&format!(
        "INSERT INTO outbox.relays (id, subscription, host, version, seen_at)
         VALUES ('00000000-0000-0000-0000-000000000001', 'default', 'other', '', now() + interval '1 hour');
         UPDATE outbox.cursors SET tick = {walked}, leased_until = now() + interval '8 s',
             owner = '00000000-0000-0000-0000-000000000001' WHERE shard < 8"
    ));
    let broker = RecordingPublisher::default();
    broker.delay(Duration::from_millis(40));
    let relay =
        RelayThread::start(&database.url(), "default", broker.clone(), quick().batch_events(20));
    let aimed = "SELECT EXISTS (SELECT FROM outbox.cursors WHERE target IS NOT NULL)";
    eventually(SOON, async || database.value::<bool>(aimed).then_some(())).await;
    database.sql(
        "UPDATE outbox.cursors SET owner = NULL, leased_until = '-infinity' WHERE shard < 8;
         DELETE FROM outbox.relays WHERE host = 'other'",
    );
    let of_the_other = || {
        let delivered = broker.delivered();
        delivered.iter().filter(|recorded| recorded.message.shard() < 8).count()
    };
    eventually(SOON, async || (of_the_other() >= 20).then_some(())).await;
    drop(relay);
    database.sql(FREE);

    broker.delay(Duration::ZERO);
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || database.value::<bool>(PASSED).then_some(())).await;
    relay.shutdown().await;
    let arrivals = Arrivals::recorded(&broker.delivered(), "default");
    Verdict::on(&Committed::read(&mut database.sync()), &arrivals).assert_clean(0);
}
