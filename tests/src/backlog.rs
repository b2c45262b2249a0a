//! [`backlog`]: many events at once.

use crate::TestDatabase;
use crate::oracle::AGGREGATE_TYPE;

/// Emits events by plain SQL, and keeps the ledger that the oracle reads: a payload of at least
/// `bytes` bytes each, spread evenly over the aggregates.
pub fn backlog(database: &TestDatabase, events: u32, aggregates: u32, bytes: u32) {
    database.sql(&format!(
        "CREATE TABLE IF NOT EXISTS ledger (id bigint PRIMARY KEY, version bigint NOT NULL);
         INSERT INTO ledger SELECT id, 0 FROM generate_series(0, {aggregates} - 1) id ON CONFLICT DO NOTHING;
         INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         SELECT 'a', '{AGGREGATE_TYPE}', l.id, 'account.changed',
                format('{{\"v\":%s,\"fill\":\"%s\"}}', l.version + n / {aggregates} + 1,
                       repeat(md5(random()::text || n), {bytes} / 32))::json
         FROM generate_series(0, {events} - 1) n JOIN ledger l ON l.id = n % {aggregates}
         ORDER BY n;
         UPDATE ledger l SET version = version + d.drawn FROM (
             SELECT n % {aggregates} AS id, count(*) AS drawn FROM generate_series(0, {events} - 1) n GROUP BY 1) d
         WHERE d.id = l.id"
    ));
}
