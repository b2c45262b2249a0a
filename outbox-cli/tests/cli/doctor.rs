//! `outbox doctor`: who should deliver, and does not.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{TestDatabase, TestRedis, eventually};
use serde_json::Value;

use crate::program::{PATIENCE, Ran, Running, command, outbox, run};

/// What it finds first, once that has this name.
pub(crate) async fn first(database: &TestDatabase, name: &str, code: i32) -> Value {
    let mut last = String::new();
    let found = eventually(PATIENCE, async || {
        let ran = outbox(database, &["doctor", "--json"]);
        let value = ran.value();
        last = format!("{ran:?}");
        let found = &value["findings"][0];
        (found["name"] == name).then(|| (found.clone(), ran.code))
    });
    let (finding, exit_code) = found.await;
    assert_eq!(exit_code, Some(code), "{last}");
    assert!(!finding["remedy"].as_str().unwrap().is_empty());
    finding
}

/// All that it says of a finding, as one text.
pub(crate) fn told(finding: &Value) -> String {
    format!("{} {} {}", finding["summary"], finding["evidence"], finding["remedy"])
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_is_well_nothing_is_found() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    database.insert("a");
    let ran = eventually(PATIENCE, async || {
        Some(outbox(&database, &["doctor"])).filter(|ran| ran.code == Some(0))
    })
    .await;
    assert!(ran.out.contains("all is well"), "{ran:?}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_without_a_relay_is_named_with_its_backlog() {
    let database = TestDatabase::new();
    database.insert("a");
    let finding = first(&database, "no-relay", 20).await;
    let told = told(&finding);
    assert!(
        told.contains("1 events are pending")
            && told.contains("outbox relay --subscription default"),
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_away_is_named_since_when_and_why() {
    let database = TestDatabase::new();
    let _relay = Running::relay(&database.url(), "redis://127.0.0.1:1/", "x", &[]);
    database.insert("a");
    let finding = first(&database, "publisher-unavailable", 20).await;
    let told = told(&finding);
    assert!(told.contains("box since") && told.to_lowercase().contains("refused"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_cursors_that_keeps_a_shard_without_owner_is_named_by_its_process() {
    let database = TestDatabase::new();
    let mut locker = database.sync();
    locker.batch_execute("BEGIN; SELECT FROM outbox.cursors WHERE shard = 3 FOR UPDATE").unwrap();
    let relay = database.relay(RecordingPublisher::default()).await;
    let finding = first(&database, "cursors-locked", 20).await;
    assert!(told(&finding).contains("pg_terminate_backend"), "{finding}");
    // Which is what comes of it, once the relay has had its time.
    let second = eventually(PATIENCE, async || {
        let all = outbox(&database, &["doctor", "--json"]).value();
        let second = all["findings"][1].clone();
        (second["name"] == "shard-without-owner").then_some(second)
    })
    .await;
    assert!(second["summary"].as_str().unwrap().contains("shard 3 of"), "{second}");
    locker.batch_execute("ROLLBACK").unwrap();
    eventually(PATIENCE, async || (outbox(&database, &["doctor"]).code == Some(0)).then_some(()))
        .await;
    relay.shutdown().await;
}

/// A relay's role without one of its rights.
fn role_without(database: &TestDatabase, statement: &str) -> String {
    let role = format!("{}_relay", database.name());
    database.sql(include_str!("../../../ops/roles.sql"));
    // Rights of its own, so that one can be taken away without touching other tests.
    database.sql(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA outbox TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA outbox TO {role};
         GRANT SELECT ON SEQUENCE outbox.event_seq TO {role};
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO {role};
         REVOKE {statement} FROM {role}"
    ));
    role
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_a_relay_lacks_are_named_one_by_one() {
    let database = TestDatabase::new();
    let role = role_without(&database, "UPDATE ON outbox.cursors");
    let relay = database.relay_as(&role, RecordingPublisher::default()).await;
    // Its heartbeat cannot renew leases either: nothing of it is in the database. So the doctor is
    // asked as the role that the relay works as.
    let asked = |database: &TestDatabase| -> Ran {
        let mut command = command(&database.url_as(&role));
        command.args(["doctor", "--json"]);
        run(command)
    };
    let ran = asked(&database);
    let finding = &ran.value()["findings"][0];
    assert_eq!((finding["name"].as_str(), ran.code), (Some("missing-rights"), Some(20)), "{ran:?}");
    assert!(told(finding).contains("lacks UPDATE ON outbox.cursors"), "{finding}");
    relay.shutdown().await;
    database.sql(&format!("DROP OWNED BY {role}"));

    let database = TestDatabase::new();
    let role = role_without(&database, "EXECUTE ON FUNCTION outbox.keep_partitions_ahead()");
    let relay = database.relay_as(&role, RecordingPublisher::default()).await;
    let finding = first(&database, "missing-rights", 10).await;
    assert!(told(&finding).contains("keep_partitions_ahead"), "{finding}");
    relay.shutdown().await;
    database.sql(&format!("DROP OWNED BY {role}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_is_told_what_is_wrong_and_not_that_he_is_no_relay() {
    let database = TestDatabase::new();
    database.sql(include_str!("../../../ops/roles.sql"));
    let role = format!("{}_operator", database.name());
    database.sql(&format!("CREATE ROLE {role} LOGIN; GRANT outbox_operator TO {role}"));
    let mut command = command(&database.url_as(&role));
    command.args(["doctor", "--json"]);
    let found = run(command).value();
    let names: Vec<_> =
        found["findings"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    // He does not see the transactions of others.
    assert_eq!(names, ["no-relay", "not-examined"], "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_cannot_work_is_named_with_its_reason() {
    let database = TestDatabase::new();
    let relay = database.relay(RecordingPublisher::default()).await;
    eventually(PATIENCE, async || (outbox(&database, &["doctor"]).code == Some(0)).then_some(()))
        .await;
    database.sql("ALTER TABLE outbox.events RENAME COLUMN payload TO body");
    database.sql("INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, body) VALUES ('t', 'order', 'a', 'x', '{}')");
    let finding = first(&database, "relay-interrupted", 20).await;
    assert!(told(&finding).contains("payload"), "{finding}");
    database.sql("ALTER TABLE outbox.events RENAME COLUMN body TO payload");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_nobody_reads_is_named() {
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let _relay = Running::relay(&database.url(), &redis.url(), redis.prefix(), &[]);
    for order in 0..12 {
        database.insert(&order.to_string());
    }
    let ask = |length: &str, url: &str| {
        let mut command = command(&database.url());
        command.args([
            "doctor",
            "--json",
            "--stream-length",
            length,
            "--stream-prefix",
            redis.prefix(),
        ]);
        run({
            command.env("REDIS_URL", url);
            command
        })
    };
    let ran = eventually(PATIENCE, async || {
        Some(ask("10", &redis.url()))
            .filter(|ran| ran.value()["findings"][0]["name"] == "stream-grows")
    })
    .await;
    assert_eq!(ran.code, Some(10));
    assert!(told(&ran.value()["findings"][0]).contains("no consumer group"), "{ran:?}");
    let mut conn = redis.connect().await;
    let _: () = redis::cmd("XGROUP")
        .arg(&["CREATE", &format!("{}order", redis.prefix()), "billing", "0"])
        .query_async(&mut conn)
        .await
        .unwrap();
    let ran = ask("10", &redis.url());
    assert!(told(&ran.value()["findings"][0]).contains("group billing"), "{ran:?}");
    assert_eq!(ask("100", &redis.url()).code, Some(0));
    let ran = ask("100", "redis://127.0.0.1:1/");
    assert_eq!(
        (ran.value()["findings"][0]["name"].as_str(), ran.code),
        (Some("broker-unreachable"), Some(20))
    );
}
