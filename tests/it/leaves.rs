//! The log's leaves: small ones, so that a test can fill them, and what happens to them.

use outbox_tests::TestDatabase;

/// The statement that emits one event of this order, as any language would.
pub(crate) fn insert(order: &str) -> String {
    format!(
        "INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) \
         VALUES ('order', 'order', '{order}', 'order.created', '{{}}')"
    )
}

/// Emits this many events, `1` to `count`, each in a transaction of its own.
pub(crate) fn emit(database: &TestDatabase, count: usize) {
    let emits: Vec<_> =
        (1..=count).map(|n| format!("BEGIN; {}; COMMIT;", insert(&n.to_string()))).collect();
    database.sql(&emits.concat());
}

/// A database whose log has `count` leaves of ten events: `events_s1`, `events_s11`, …
pub(crate) fn with_small_leaves(count: usize) -> TestDatabase {
    let database = TestDatabase::new();
    database.sql(&format!(
        "DROP TABLE outbox.events_s1, outbox.events_s1000000, outbox.events_s2000000;
         SELECT outbox.create_partition(n * 10 + 1, n * 10 + 11) FROM generate_series(0, {count} - 1) n"
    ));
    database
}

/// A tick, and every subscription at it: what is committed was delivered.
pub(crate) fn settle(database: &TestDatabase) {
    database.sql("SELECT outbox.take_tick()");
    database.sql("UPDATE outbox.cursors SET tick = (SELECT max(tick) FROM outbox.ticks)");
}

/// All that was emitted was delivered, and no transaction is left that could emit below. A tick
/// cannot tell those of other databases, and of other tests, from ours: here it says that all ended.
pub(crate) fn pass(database: &TestDatabase) {
    settle(database);
    database.sql(
        "UPDATE outbox.ticks SET snapshot = format('%s:%s:', xid, xid)::pg_snapshot
         WHERE tick = (SELECT max(tick) FROM outbox.ticks)",
    );
}

/// What retention empties when events of any age may go.
pub(crate) fn retire(database: &TestDatabase) -> Option<String> {
    database.value("outbox.retire_partition('0')")
}

/// The names of all leaves but the default one.
pub(crate) fn leaves(database: &TestDatabase) -> Vec<String> {
    database
        .value("ARRAY(SELECT leaf FROM outbox.leaves WHERE from_seq IS NOT NULL ORDER BY from_seq)")
}

/// Where each event lies, in the order of emit.
pub(crate) fn homes(database: &TestDatabase) -> Vec<String> {
    database.value("ARRAY(SELECT tableoid::regclass::text FROM outbox.events ORDER BY seq)")
}

/// One step towards partitions ahead, whenever the next try is due: how many it made, and the
/// trouble it had.
pub(crate) fn keep_ahead(database: &TestDatabase) -> (i64, Option<String>) {
    database.sql("UPDATE outbox.upkeep SET next_try_at = '-infinity'");
    let answer: String = database
        .value("SELECT made || ' ' || coalesce(problem, '') FROM outbox.keep_partitions_ahead()");
    let (made, problem) = answer.split_once(' ').unwrap();
    (made.parse().unwrap(), (!problem.is_empty()).then(|| problem.to_owned()))
}

/// The next event gets this seq.
pub(crate) fn go_to(database: &TestDatabase, seq: i64) {
    database.sql(&format!("SELECT setval('outbox.event_seq', {seq} - 1)"));
}
