//! A tick, step by step.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::{SOON, TestDatabase, eventually};

const EMIT: &str = "\
INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
VALUES ('a', 'account', '1', 'account.changed', '{}')";

/// Each wrong order loses events, but only when another transaction comes into the microseconds
/// between two steps: no test can rely on that, so this one reads the function.
#[test]
fn a_tick_takes_its_steps_in_the_only_order_that_loses_nothing() {
    let database = TestDatabase::new();
    let text: String =
        database.value("SELECT prosrc FROM pg_proc WHERE oid = 'outbox.take_tick()'::regprocedure");
    let code: String = text
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    let steps = [
        "IF current_setting('transaction_isolation') <> 'read committed'",
        "IF pg_current_xact_id_if_assigned() IS NOT NULL",
        "pg_try_advisory_xact_lock(outbox.tick_lock_key())",
        "FROM outbox.ticks t ORDER BY t.tick DESC LIMIT 1;",
        "before := pg_sequence_last_value('outbox.event_seq');",
        "own_xid := pg_current_xact_id();",
        "SELECT pg_current_snapshot() INTO seen;",
        "after := pg_sequence_last_value('outbox.event_seq');",
        "INSERT INTO outbox.ticks",
    ];
    let mut rest = code.as_str();
    for step in steps {
        let Some((_, behind)) = rest.split_once(step) else { panic!("{step} is not in order") };
        rest = behind;
    }
    assert!(!code.contains("FROM outbox.event_seq"), "a sequence read as a table tells the future");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_drawn_while_a_tick_was_taken_is_delivered_though_nothing_follows() {
    let database = TestDatabase::new();
    database.sql("SELECT outbox.take_tick()");
    let mut emits = database.sync();
    emits.batch_execute(&format!("BEGIN; {EMIT}")).expect("emits");
    // As if it had been drawn after the tick's xid, and before its last look at the sequence.
    database.sql(
        "UPDATE outbox.ticks SET seq_after = pg_sequence_last_value('outbox.event_seq')
         WHERE tick = (SELECT max(tick) FROM outbox.ticks)",
    );
    emits.batch_execute("COMMIT").expect("commits");
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    eventually(SOON, async || (broker.delivered().len() == 1).then_some(())).await;
    relay.shutdown().await;
}
