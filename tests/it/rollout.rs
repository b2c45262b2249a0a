//! Old and new relays side by side: an upgrade while events flow.

use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{Health, RelayHandle};
use outbox_tests::{SOON, TestDatabase, eventually, insert, orders, quick_lease};

async fn interrupted(relay: &RelayHandle) -> String {
    eventually(SOON, async || match relay.health() {
        Health::Interrupted { cause } => Some(cause),
        _ => None,
    })
    .await
}

/// What a later version may do to the tables that relays of this one work with, and how it is undone.
const UPGRADE: &str = "\
ALTER TABLE outbox.events ADD COLUMN later text NOT NULL DEFAULT 'x';
ALTER TABLE outbox.parked ADD COLUMN later text NOT NULL DEFAULT 'x';
ALTER TABLE outbox.cursors ADD COLUMN later text NOT NULL DEFAULT 'x';
ALTER TABLE outbox.ticks ADD COLUMN later text NOT NULL DEFAULT 'x';
ALTER TABLE outbox.relays ADD COLUMN later text NOT NULL DEFAULT 'x';
ALTER TABLE outbox.subscriptions ADD COLUMN later text NOT NULL DEFAULT 'x';
INSERT INTO outbox.migrations (version, name) VALUES ('99991231235959', 'from_the_future')";
const DOWNGRADE: &str = "\
ALTER TABLE outbox.events DROP COLUMN later;
ALTER TABLE outbox.parked DROP COLUMN later;
ALTER TABLE outbox.cursors DROP COLUMN later;
ALTER TABLE outbox.ticks DROP COLUMN later;
ALTER TABLE outbox.relays DROP COLUMN later;
ALTER TABLE outbox.subscriptions DROP COLUMN later;
DELETE FROM outbox.migrations WHERE version = '99991231235959'";

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_works_on_through_an_upgrade_and_stops_with_a_clear_word_when_it_connects_anew() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    database.insert("before");
    orders(&broker, 1).await;

    database.sql(UPGRADE);
    broker.reject(|event| (event.aggregate_id() == "failed").then(|| "not yet".to_owned()));
    // It reads, ticks, parks and settles as before.
    database.sql(&["during", "failed", "failed"].map(insert).join(";"));
    eventually(SOON, async || {
        database.value::<bool>("SELECT count(*) = 2 FROM outbox.parked").then_some(())
    })
    .await;
    broker.reject(|_| None);
    orders(&broker, 4).await;

    database.cut_relays();
    let cause = interrupted(&relay).await;
    assert!(cause.contains("99991231235959, newer than the"), "{cause}");
    assert!(cause.contains("update outbox-diesel"), "{cause}");
    database.insert("after");
    // Nobody who can work is kept waiting: the shards are free once their lease has ended.
    eventually(quick_lease() * 4, async || {
        let owned = "SELECT bool_and(leased_until < clock_timestamp()) FROM outbox.cursors";
        database.value::<bool>(owned).then_some(())
    })
    .await;
    assert_eq!(broker.delivered().len(), 4);

    // The way back.
    database.sql(DOWNGRADE);
    let sent = orders(&broker, 5).await;
    assert_eq!(sent[4], "after");
    relay.shutdown().await;
    assert_eq!(broker.delivered().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_cannot_work_any_more_leaves_its_shards_to_those_that_can() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let role = format!("{}_relay", database.name());
    database.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role};
         GRANT ALL ON ALL TABLES IN SCHEMA outbox TO {role};
         GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO {role};
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO {role}"
    ));
    let unable = database.relay_as(&role, broker.clone()).await;
    let able = database.relay(broker.clone()).await;
    let owned = |halves: &str| {
        format!(
            "SELECT count(DISTINCT owner) = {halves} AND bool_and(owner IS NOT NULL) FROM outbox.cursors"
        )
    };
    eventually(SOON, async || database.value::<bool>(&owned("2")).then_some(())).await;
    // Its heartbeat needs no right on these.
    database.sql(&format!("REVOKE ALL ON outbox.events, outbox.ticks FROM {role}"));
    let events: Vec<_> = (0..64).map(|n| insert(&n.to_string())).collect();
    database.sql(&events.join(";"));
    let cause = interrupted(&unable).await;
    assert!(cause.contains("permission denied"), "{cause}");
    orders(&broker, 64).await;
    assert!(database.value::<bool>(&owned("1")));
    // It gets its share again when it can work.
    database.sql(&format!(
        "GRANT SELECT ON outbox.events TO {role}; GRANT ALL ON outbox.ticks TO {role}"
    ));
    eventually(SOON, async || database.value::<bool>(&owned("2")).then_some(())).await;
    able.shutdown().await;
    unable.shutdown().await;
    assert_eq!(broker.delivered().len(), 64);
}
