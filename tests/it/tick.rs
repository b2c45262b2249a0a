//! Ticks: each step in its order, and no tick where a diff would not be one.

use diesel::connection::SimpleConnection as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{Health, migrate};
use outbox_tests::{SOON, TestDatabase, eventually, insert, orders};

#[test]
fn nothing_reads_the_sequence_but_by_its_own_function() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut texts: Vec<String> = migrate::MIGRATIONS.iter().map(|m| m.up.to_owned()).collect();
    let mut directories = vec![std::path::PathBuf::from(root).join("outbox-diesel/src")];
    while let Some(directory) = directories.pop() {
        for entry in directory.read_dir().unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else {
                texts.push(std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    for text in &texts {
        for line in text.lines().filter(|line| !line.trim_start().starts_with("--")) {
            let read = line.replace("pg_sequence_last_value", "");
            assert!(!read.contains("last_value"), "{line}");
            assert!(!line.to_lowercase().contains("from outbox.event_seq"), "{line}");
        }
    }
    assert!(texts.len() > 40);
}

#[test]
fn a_transaction_that_emits_cannot_tick_and_neither_can_one_with_an_old_snapshot() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let mut refused = |statements: &str| {
        let error = conn.batch_execute(statements).unwrap_err().to_string();
        conn.batch_execute("ROLLBACK").unwrap();
        error
    };
    let emits = format!("BEGIN; {}; SELECT outbox.take_tick()", insert("a"));
    assert_eq!(refused(&emits), "a tick needs a transaction of its own");
    let old = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT outbox.take_tick()";
    assert_eq!(refused(old), "a tick needs READ COMMITTED, not repeatable read");
    assert!(database.value::<bool>("SELECT count(*) = 1 FROM outbox.ticks"));
}

#[test]
fn of_two_ticks_at_once_one_is_taken() {
    let database = TestDatabase::new();
    let mut first = database.sync();
    first.batch_execute("BEGIN; SELECT outbox.take_tick()").unwrap();
    assert!(database.value::<bool>("SELECT outbox.take_tick() IS NULL"));
    first.batch_execute("COMMIT").unwrap();
    assert!(database.value::<bool>("SELECT outbox.take_tick() > 0"));
}

#[test]
fn a_tick_lies_above_the_one_before_even_if_the_clock_was_set_back() {
    let database = TestDatabase::new();
    let first = database.tick();
    let future = first + 3_600_000_000;
    database.sql(&format!("UPDATE outbox.ticks SET tick = {future} WHERE tick = {first}"));
    assert_eq!(database.tick(), future + 1);
    assert!(database.value::<bool>("SELECT count(DISTINCT mark) = count(*) FROM outbox.ticks"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_whose_default_is_repeatable_read_loses_and_repeats_nothing() {
    let database = TestDatabase::new();
    database.sql(&format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
        database.name()
    ));
    let broker = RecordingPublisher::default();
    let (first, second) =
        (database.relay(broker.clone()).await, database.relay(broker.clone()).await);
    let expected: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    for order in &expected {
        database.insert(order);
    }
    let mut sent = orders(&broker, 100).await;
    sent.sort_by_key(|order| order.parse::<u32>().unwrap());
    assert_eq!(sent, expected);
    first.shutdown().await;
    second.shutdown().await;
    assert_eq!(broker.delivered().len(), 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_between_the_two_looks_of_a_tick_at_the_sequence_is_delivered_when_idle() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut open = database.sync();
    open.batch_execute(&format!("BEGIN; {}", insert("between"))).unwrap();
    let tick = database.tick();
    // As if the event had been drawn between the tick's first look at the sequence and its second.
    database.sql(&format!("UPDATE outbox.ticks SET seq_before = 1, xid = (SELECT ((xmin::text)::bigint - 1)::text::xid8 FROM outbox.ticks WHERE tick = {tick}), \
        snapshot = format('%s:%s:', (xmin::text)::bigint - 1, (xmin::text)::bigint - 1)::pg_snapshot WHERE tick = {tick}"));
    open.batch_execute("COMMIT").unwrap();
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 1).await, ["between"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_in_flight_that_no_list_names_is_delivered_when_idle() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut open = database.sync();
    open.batch_execute(&format!("BEGIN; {}", insert("unlisted"))).unwrap();
    let tick = database.tick();
    // As if nothing else had ended between the beginning of the transaction and the tick.
    let xid: i64 = database.value(
        "SELECT min(backend_xid::text::bigint) FROM pg_stat_activity
         WHERE datname = current_database() AND state = 'idle in transaction'",
    );
    database.sql(&format!(
        "UPDATE outbox.ticks SET snapshot = '{xid}:{xid}:', xid = '{}' WHERE tick = {tick}",
        xid + 1
    ));
    open.batch_execute("COMMIT").unwrap();
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 1).await, ["unlisted"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_in_the_timeline_and_in_the_sequence_stop_nothing() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    database.insert("a");
    let tick = database.tick();
    database.sql(&format!(
        "UPDATE outbox.ticks SET tick = {tick} + 86400000000 WHERE tick = {tick};
         SELECT nextval('outbox.event_seq') FROM generate_series(1, 250000)"
    ));
    database.insert("b");
    let relay = database.relay(broker.clone()).await;
    assert_eq!(orders(&broker, 2).await, ["a", "b"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_set_back_under_a_running_relay_stops_it_before_it_can_lose_an_event() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay(broker.clone()).await;
    for order in ["a", "b", "c"] {
        database.insert(order);
    }
    orders(&broker, 3).await;
    database.sql("TRUNCATE outbox.events; SELECT setval('outbox.event_seq', 2)");
    let cause = eventually(SOON, async || match relay.health() {
        Health::Interrupted { cause } => Some(cause),
        _ => None,
    })
    .await;
    assert!(cause.contains("set back") && cause.contains("outbox rebase"), "{cause}");
    database.sql("SELECT setval('outbox.event_seq', 100)");
    database.insert("d");
    assert_eq!(orders(&broker, 4).await[3], "d");
    relay.shutdown().await;
}

#[test]
fn every_form_of_insert_draws_its_place_in_the_log_after_its_transaction_id() {
    let database = TestDatabase::new();
    // The default as it is, but with a witness where the sequence was.
    database.sql(
        "CREATE FUNCTION drawn() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
             IF pg_current_xact_id_if_assigned() IS NULL THEN RAISE 'drawn without a transaction id'; END IF;
             RETURN nextval('outbox.event_seq');
         END $$;
         DO $$ BEGIN
             EXECUTE (SELECT format('ALTER TABLE outbox.events ALTER seq SET DEFAULT %s',
                          replace(pg_get_expr(d.adbin, d.adrelid), 'nextval(''outbox.event_seq''::regclass)', 'drawn()'))
                      FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
                      WHERE d.adrelid = 'outbox.events'::regclass AND a.attname = 'seq');
         END $$;
         CREATE TABLE source AS SELECT n::text AS id FROM generate_series(1, 2) n",
    );
    let columns = "(topic, aggregate_type, aggregate_id, event_type, payload)";
    let values = "'order', 'order', 'a', 'order.created', '{}'";
    for form in [
        format!("INSERT INTO outbox.events {columns} VALUES ({values}), ({values})"),
        format!(
            "INSERT INTO outbox.events (xid, seq, topic, aggregate_type, aggregate_id, event_type, payload)
             VALUES (DEFAULT, DEFAULT, {values}), (DEFAULT, DEFAULT, {values})"
        ),
        format!("INSERT INTO outbox.events {columns} SELECT 'order', 'order', id, 'x', '{{}}' FROM source"),
        format!(
            "INSERT INTO outbox.events {columns} VALUES ({values}), ({values}) ON CONFLICT DO NOTHING"
        ),
        format!("COPY outbox.events {columns} FROM PROGRAM 'yes \"o,o,a,x,1\" | head -n 2' WITH (FORMAT csv)"),
        format!(
            "MERGE INTO outbox.events e USING source s ON false
             WHEN NOT MATCHED THEN INSERT {columns} VALUES ({values})"
        ),
    ] {
        let before: i64 = database.value("SELECT count(*) FROM outbox.events");
        let version: i64 = database.value("SELECT current_setting('server_version_num')::bigint");
        if form.starts_with("MERGE") && version < 150_000 {
            continue;
        }
        database.sql(&form);
        let after: i64 = database.value("SELECT count(*) FROM outbox.events");
        assert_eq!(after - before, 2, "{form}");
    }
}
