//! The lock on an aggregate that an event type may ask for: `#[outbox(serialize_writers)]`.

use diesel::sql_types::{Array, Text};

use super::row::Row;
use crate::statement::{Statement, Walk, statement};

// 1869968482 is 'outb' in ASCII: locks of two integers are apart from those of one, and other users
// of locks of two integers choose other classes. Two aggregates may have one key; they wait for
// each other, and no more. In key order, so that two callers cannot deadlock.
const LOCK_WRITERS: &str = "\
WITH aggregates AS MATERIALIZED (
    SELECT DISTINCT (hashtextextended(aggregate_id, hashtextextended(aggregate_type, 0)) % 2147483648)::int AS key
    FROM unnest($1::text[], $2::text[]) AS input (aggregate_type, aggregate_id)
    ORDER BY key
)
SELECT pg_advisory_xact_lock(1869968482, key) FROM aggregates";

/// Locks the aggregates of those events that ask for it. `None` if none does: no round trip.
pub(super) fn writers(rows: &[Row]) -> Option<Statement<(), impl Walk + Send + use<'_>>> {
    let serialised = || rows.iter().filter(|row| row.serialize_writers);
    serialised().next()?;
    let types: Vec<&str> = serialised().map(|row| row.aggregate_type.as_str()).collect();
    let ids: Vec<&str> = serialised().map(|row| row.aggregate_id.as_str()).collect();
    Some(statement::<()>(LOCK_WRITERS).bind::<Array<Text>, _>(types).bind::<Array<Text>, _>(ids))
}
