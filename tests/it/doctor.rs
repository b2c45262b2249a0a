//! What the doctor finds where relays tell it, or died and cannot.

use diesel_async::AsyncPgConnection;
use outbox_diesel::doctor::{self, Finding, Severity};
use outbox_diesel::subscription::{self, Start};
use outbox_tests::{RelayProcess, SOON, TestDatabase, TestRedis, eventually};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

/// A finding of this name, if there is one.
pub(crate) async fn finds(conn: &mut AsyncPgConnection, name: &str) -> Option<Finding> {
    let findings = doctor::examine(conn).await.expect("examines");
    findings.into_iter().find(|finding| finding.name == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_ends_its_relays_is_named_after_the_second_one_and_not_after_the_first() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let mut conn = database.connect().await;
    database.insert("poison");
    for crashes in 0..=2 {
        assert_eq!(finds(&mut conn, "relays-crash").await, None, "after {crashes} crashes");
        let dies = [("RELAY_DIES_AT", "poison")];
        let mut relay = RelayProcess::start(RELAY, "mortal", &database, &redis, &dies);
        eventually(SOON, async || relay.has_ended().then_some(())).await;
        // As if the lease had run out.
        database.sql("UPDATE outbox.cursors SET leased_until = clock_timestamp()");
    }
    let finding = finds(&mut conn, "relays-crash").await.expect("the third owner has counted two");
    let id: String = database.value("SELECT id::text FROM outbox.events");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(
        finding.evidence.concat().contains(&format!("order.created {id} of order poison")),
        "{finding:?}"
    );
    assert!(finding.remedy.contains(&format!("outbox find {id}")), "{finding:?}");
}

#[tokio::test]
async fn a_subscription_whose_topics_nobody_emits_to_is_noted() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    let name = "topics-match-nothing";
    subscription::create(&mut conn, "audit", Start::Earliest, &["oder"]).await.expect("creates");
    assert_eq!(finds(&mut conn, name).await, None, "nobody has emitted anything");
    database.insert("a");
    let finding = finds(&mut conn, name).await.expect("a typing error");
    assert!(finding.summary.contains("\"audit\" gets only topic oder"), "{finding:?}");
    assert_eq!(finding.evidence, ["they have topic order"]);
    subscription::set_topics(&mut conn, "audit", &["order"]).await.expect("changes");
    assert_eq!(finds(&mut conn, name).await, None);
}
