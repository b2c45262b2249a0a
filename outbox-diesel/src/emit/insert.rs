//! The statements that emit, each prepared once per connection.

use diesel::pg::Pg;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::sql_types::{Array, Json, Nullable, SmallInt, Text, Uuid as SqlUuid};
use uuid::Uuid;

use super::row::Row;
use crate::statement::{RawJson, Statement, Walk, statement};

const INSERT: &str = "\
INSERT INTO outbox.events (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers)
VALUES ($1::uuid, $2::text, $3::text, $4::text, $5::text, $6::smallint, $7::json, $8::json)";

// The key first: whoever has it inserts the event. A second emitter waits here for the first one
// to commit or roll back.
const INSERT_ONCE: &str = "\
WITH input AS (
    SELECT $1::uuid AS id, $2::text AS topic, $3::text AS aggregate_type, $4::text AS aggregate_id,
           $5::text AS event_type, $6::smallint AS event_version, $7::json AS payload, $8::json AS headers,
           $9::text AS dedup_key
), claimed AS (
    INSERT INTO outbox.dedup_keys (dedup_key, event_id)
    SELECT dedup_key, id FROM input
    ON CONFLICT DO NOTHING RETURNING event_id
)
INSERT INTO outbox.events (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers, dedup_key)
SELECT id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers, dedup_key
FROM input JOIN claimed ON claimed.event_id = input.id";

// ORDER BY: the sequence is drawn in slice order.
const INSERT_ALL: &str = "\
INSERT INTO outbox.events (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers)
SELECT id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::json[], $8::json[])
    WITH ORDINALITY AS input (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers, nth)
ORDER BY nth";

// Keys are claimed in key order, so that two callers cannot deadlock; of equal keys in one slice
// the first wins.
const INSERT_ALL_ONCE: &str = "\
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::json[], $8::json[], $9::text[])
        WITH ORDINALITY AS input (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers, dedup_key, nth)
), claimed AS (
    INSERT INTO outbox.dedup_keys (dedup_key, event_id)
    SELECT dedup_key, id FROM input WHERE dedup_key IS NOT NULL ORDER BY dedup_key, nth
    ON CONFLICT DO NOTHING RETURNING event_id
)
INSERT INTO outbox.events (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers, dedup_key)
SELECT id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers, dedup_key
FROM input
WHERE dedup_key IS NULL OR id IN (SELECT event_id FROM claimed)
ORDER BY nth";

const FIND_CLAIMED: &str = "\
SELECT dedup_key, event_id FROM outbox.dedup_keys WHERE dedup_key = ANY ($1::text[])";

/// Inserts one event; affects no row if its dedup key is taken.
pub(super) fn one(row: &Row) -> OneOf<impl Insert + use<'_>, impl Insert + use<'_>> {
    match &row.dedup_key {
        None => OneOf::Plain(values(INSERT, row)),
        Some(key) => OneOf::Once(values(INSERT_ONCE, row).bind::<Text, _>(key.as_str())),
    }
}

/// Inserts events in slice order, but for those whose dedup key is taken.
pub(super) fn all<'a>(
    columns: &'a Columns<'a>,
) -> OneOf<impl Insert + use<'a>, impl Insert + use<'a>> {
    if columns.dedup_key.iter().all(Option::is_none) {
        OneOf::Plain(arrays(INSERT_ALL, columns))
    } else {
        OneOf::Once(
            arrays(INSERT_ALL_ONCE, columns).bind::<Array<Nullable<Text>>, _>(&columns.dedup_key),
        )
    }
}

/// Finds the events that hold these dedup keys.
pub(super) fn find_claimed(
    keys: Vec<&str>,
) -> Statement<(Text, SqlUuid), impl Walk + Send + use<'_>> {
    statement(FIND_CLAIMED).bind::<Array<Text>, _>(keys)
}

/// A statement to execute.
pub(super) trait Insert: QueryFragment<Pg> + QueryId + Send {}
impl<T: QueryFragment<Pg> + QueryId + Send> Insert for T {}

/// With or without dedup keys: two texts.
pub(super) enum OneOf<P, O> {
    Plain(P),
    Once(O),
}

/// Events column by column, for `unnest`.
#[derive(Default)]
pub(super) struct Columns<'a> {
    id: Vec<Uuid>,
    topic: Vec<&'a str>,
    aggregate_type: Vec<&'a str>,
    aggregate_id: Vec<&'a str>,
    event_type: Vec<&'a str>,
    event_version: Vec<i16>,
    payload: Vec<&'a RawJson>,
    headers: Vec<&'a RawJson>,
    dedup_key: Vec<Option<&'a str>>,
}

impl<'a> Columns<'a> {
    pub(super) fn of(rows: &[&'a Row]) -> Self {
        let mut columns = Self::default();
        for row in rows {
            columns.id.push(row.id);
            columns.topic.push(&row.topic);
            columns.aggregate_type.push(&row.aggregate_type);
            columns.aggregate_id.push(&row.aggregate_id);
            columns.event_type.push(&row.event_type);
            columns.event_version.push(row.event_version);
            columns.payload.push(&row.payload);
            columns.headers.push(&row.headers);
            columns.dedup_key.push(row.dedup_key.as_deref());
        }
        columns
    }

    pub(super) fn keys(&self) -> Vec<&'a str> {
        self.dedup_key.iter().flatten().copied().collect()
    }
}

fn values<'a>(text: &'static str, row: &'a Row) -> Statement<(), impl Walk + Send + use<'a>> {
    statement::<()>(text)
        .bind::<SqlUuid, _>(row.id)
        .bind::<Text, _>(row.topic.as_str())
        .bind::<Text, _>(row.aggregate_type.as_str())
        .bind::<Text, _>(row.aggregate_id.as_str())
        .bind::<Text, _>(row.event_type.as_str())
        .bind::<SmallInt, _>(row.event_version)
        .bind::<Json, _>(&row.payload)
        .bind::<Json, _>(&row.headers)
}

fn arrays<'a>(
    text: &'static str,
    columns: &'a Columns<'a>,
) -> Statement<(), impl Walk + Send + use<'a>> {
    statement::<()>(text)
        .bind::<Array<SqlUuid>, _>(&columns.id)
        .bind::<Array<Text>, _>(&columns.topic)
        .bind::<Array<Text>, _>(&columns.aggregate_type)
        .bind::<Array<Text>, _>(&columns.aggregate_id)
        .bind::<Array<Text>, _>(&columns.event_type)
        .bind::<Array<SmallInt>, _>(&columns.event_version)
        .bind::<Array<Json>, _>(&columns.payload)
        .bind::<Array<Json>, _>(&columns.headers)
}
