//! Finds an event by its id, and says where it stands in each subscription.

use chrono::{DateTime, TimeDelta, Utc};
use diesel::Queryable;
use diesel::sql_types::{
    BigInt, Integer, Json, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection as _};
use uuid::Uuid;

use super::status::Status;
use crate::operation::{AdminError, begin, end, load};
use crate::snapshot::Xid;
use crate::snapshot::sql_types::Xid8;
use crate::statement::{RawJson, statement};

/// An event, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Its id.
    pub event_id: Uuid,
    /// Its place in the log.
    pub seq: i64,
    /// 0 to 15.
    pub shard: i16,
    /// The topic.
    pub topic: String,
    /// The aggregate's type.
    pub aggregate_type: String,
    /// The aggregate's id.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// Version of the payload's shape.
    pub event_version: i16,
    /// The producer's dedup key.
    pub dedup_key: Option<String>,
    /// The payload's JSON text.
    pub payload: String,
    /// The headers' JSON text.
    pub headers: String,
    /// When it was emitted.
    pub created_at: DateTime<Utc>,
    /// Where it stands, one per subscription, by name.
    pub places: Vec<Place>,
}

/// Where an event stands in one subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place {
    /// The subscription.
    pub subscription: String,
    /// Where it stands there.
    pub status: Status,
    /// How often it was rejected.
    pub attempts: i32,
    /// When it is tried next.
    pub next_attempt_at: Option<DateTime<Utc>>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// Why an operator discarded it.
    pub reason: Option<String>,
}

/// Finds an event by its id.
///
/// A UUIDv7, which emit gives, tells its time, so that only the part of the log around that time is
/// read: an hour, and if it is not there, a day to each side (an application's clock that is off by
/// more than a day hides its events). **Any other id has the whole log read**: seconds to minutes.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection, id: uuid::Uuid) -> Result<(), outbox_diesel::admin::AdminError> {
/// let event = outbox_diesel::admin::find(conn, id).await?;
/// for place in &event.places {
///     println!("{}: {}", place.subscription, place.status);
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NoEvent`](AdminError::NoEvent), or what the database says.
pub async fn find(conn: &mut AsyncPgConnection, event_id: Uuid) -> Result<Found, AdminError> {
    begin(conn).await?;
    let found = find_in(conn, event_id).await;
    end(conn, found).await
}

/// Why an event that is not parked as expected is not.
pub(super) async fn why_not(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    event_id: Uuid,
) -> Result<AdminError, AdminError> {
    const EXISTS: &str = "SELECT name FROM outbox.subscriptions WHERE name = $1";
    let exists = statement::<Text>(EXISTS).bind::<Text, _>(subscription.to_owned());
    let known: Vec<String> = load(conn, exists).await?;
    if known.is_empty() {
        return Ok(AdminError::NoSubscription(subscription.to_owned()));
    }
    let found = match find(conn, event_id).await {
        Err(AdminError::NoEvent(id)) => return Ok(AdminError::NoEvent(id)),
        found => found?,
    };
    let place = found.places.iter().find(|place| place.subscription == subscription);
    Ok(AdminError::NotParked {
        event_id,
        subscription: subscription.to_owned(),
        status: place.map_or("unknown", |place| place.status.as_str()),
    })
}

const BESIDE_THE_LOG: &str = "\
SELECT seq FROM outbox.parked WHERE id = $1
UNION SELECT seq FROM outbox.discarded WHERE id = $2
ORDER BY seq LIMIT 1";

const IN_THE_LOG: &str = "\
SELECT e.seq FROM outbox.events e
WHERE e.id = $1 AND e.created_at >= coalesce($2::timestamptz, '-infinity') AND e.created_at <= coalesce($3::timestamptz, 'infinity')
ORDER BY e.seq LIMIT 1";

async fn find_in(conn: &mut AsyncPgConnection, event_id: Uuid) -> Result<Found, AdminError> {
    let beside = statement::<BigInt>(BESIDE_THE_LOG)
        .bind::<SqlUuid, _>(event_id)
        .bind::<SqlUuid, _>(event_id);
    let mut seqs: Vec<i64> = load(conn, beside).await?;
    for (from, to) in windows(event_id) {
        if !seqs.is_empty() {
            break;
        }
        if from.is_some() {
            // By the BRIN index, whatever the planner thinks of it.
            conn.batch_execute("SET LOCAL enable_seqscan = off").await?;
        }
        let within = statement::<BigInt>(IN_THE_LOG)
            .bind::<SqlUuid, _>(event_id)
            .bind::<Nullable<Timestamptz>, _>(from)
            .bind::<Nullable<Timestamptz>, _>(to);
        seqs = load(conn, within).await?;
    }
    let seq = seqs.into_iter().next().ok_or(AdminError::NoEvent(event_id))?;
    let read = statement::<EventColumns>(READ)
        .bind::<BigInt, _>(seq)
        .bind::<BigInt, _>(seq)
        .bind::<BigInt, _>(seq);
    let rows: Vec<EventRow> = load(conn, read).await?;
    let event = rows.into_iter().next().ok_or(AdminError::NoEvent(event_id))?;
    let places = places(conn, &event).await?;
    let text = |json: RawJson| String::from_utf8_lossy(&json.0).into_owned();
    Ok(Found {
        event_id: event.id,
        seq: event.seq,
        shard: event.shard,
        topic: event.topic,
        aggregate_type: event.aggregate_type,
        aggregate_id: event.aggregate_id,
        event_type: event.event_type,
        event_version: event.event_version,
        dedup_key: event.dedup_key,
        payload: text(event.payload),
        headers: text(event.headers),
        created_at: event.created_at,
        places,
    })
}

type Window = (Option<DateTime<Utc>>, Option<DateTime<Utc>>);

/// When an event of this id can have been emitted, likelier times first.
fn windows(event_id: Uuid) -> Vec<Window> {
    let version_7 = (event_id.get_version_num() == 7).then(|| event_id.get_timestamp()).flatten();
    let at = version_7.and_then(|timestamp| {
        let (seconds, nanos) = timestamp.to_unix();
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
    });
    match at {
        None => vec![(None, None)],
        Some(at) => [TimeDelta::hours(1), TimeDelta::days(1)]
            .map(|span| (at.checked_sub_signed(span), at.checked_add_signed(span)))
            .into(),
    }
}

type EventColumns = (
    BigInt,
    Nullable<Xid8>,
    SmallInt,
    SqlUuid,
    Text,
    Text,
    Text,
    Text,
    SmallInt,
    Nullable<Text>,
    Json,
    Json,
    Timestamptz,
);

#[derive(Queryable)]
struct EventRow {
    seq: i64,
    /// None: the log does not hold it any more.
    xid: Option<Xid>,
    shard: i16,
    id: Uuid,
    topic: String,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    event_version: i16,
    dedup_key: Option<String>,
    payload: RawJson,
    headers: RawJson,
    created_at: DateTime<Utc>,
}

// Plain SQL can emit at a time that no calendar has.
const READ: &str = "\
SELECT seq, xid, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers,
       CASE WHEN isfinite(created_at) THEN created_at ELSE 'epoch' END
FROM (
    SELECT seq, xid, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at, 1
    FROM outbox.events WHERE seq = $1
    UNION ALL
    SELECT seq, NULL, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at, 2
    FROM outbox.parked WHERE seq = $2
    UNION ALL
    SELECT seq, NULL, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at, 3
    FROM outbox.discarded WHERE seq = $3
) AS copies (seq, xid, shard, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at, nth)
ORDER BY nth LIMIT 1";

// A filter applies to what its tick did not see yet. An event that has left the log was passed by
// every cursor.
const PLACES: &str = "\
SELECT s.name,
       CASE WHEN p.dead THEN 'dead'
            WHEN p.holds AND EXISTS (
                SELECT FROM outbox.parked earlier
                WHERE earlier.subscription = p.subscription AND earlier.shard = p.shard
                  AND earlier.aggregate_type = p.aggregate_type AND earlier.aggregate_id = p.aggregate_id
                  AND earlier.holds AND (earlier.tick, earlier.seq) < (p.tick, p.seq)) THEN 'held'
            WHEN p.seq IS NOT NULL THEN 'retrying'
            WHEN d.seq IS NOT NULL THEN 'discarded'
            WHEN NOT coalesce(e.topic = ANY (f.topics), true) THEN 'filtered'
            WHEN e.xid IS NULL OR e.seq <= m.seq_floor OR pg_visible_in_snapshot(e.xid, t.snapshot)
                 OR (e.seq <= c.seq AND pg_visible_in_snapshot(e.xid, n.snapshot)) THEN 'published'
            ELSE 'pending' END,
       coalesce(p.attempts, d.attempts, 0), p.next_attempt_at, coalesce(p.error, d.error), d.reason
FROM (VALUES ($1::bigint, $2::xid8, $3::smallint, $4::text)) AS e (seq, xid, shard, topic)
CROSS JOIN outbox.meta m
CROSS JOIN outbox.subscriptions s
JOIN outbox.cursors c ON c.subscription = s.name AND c.shard = e.shard
JOIN outbox.ticks t ON t.tick = c.tick
LEFT JOIN outbox.ticks n ON n.tick = coalesce(c.target, (SELECT min(k.tick) FROM outbox.ticks k WHERE k.tick > c.tick))
LEFT JOIN outbox.parked p ON p.subscription = s.name AND p.seq = e.seq
LEFT JOIN outbox.discarded d ON d.subscription = s.name AND d.seq = e.seq
LEFT JOIN LATERAL (
    SELECT f.topics FROM outbox.topic_filters f LEFT JOIN outbox.ticks k ON k.tick = f.from_tick
    WHERE f.subscription = s.name
      AND (f.from_tick = 0 OR NOT coalesce(pg_visible_in_snapshot(e.xid, k.snapshot), false))
    ORDER BY f.from_tick DESC LIMIT 1) f ON true
ORDER BY s.name";

type PlaceColumns = (Text, Text, Integer, Nullable<Timestamptz>, Nullable<Text>, Nullable<Text>);
type PlaceRow = (String, String, i32, Option<DateTime<Utc>>, Option<String>, Option<String>);

async fn places(conn: &mut AsyncPgConnection, event: &EventRow) -> Result<Vec<Place>, AdminError> {
    let places = statement::<PlaceColumns>(PLACES)
        .bind::<BigInt, _>(event.seq)
        .bind::<Nullable<Xid8>, _>(event.xid)
        .bind::<SmallInt, _>(event.shard)
        .bind::<Text, _>(event.topic.clone());
    let rows: Vec<PlaceRow> = load(conn, places).await?;
    let place =
        |(subscription, status, attempts, next_attempt_at, error, reason): PlaceRow| Place {
            subscription,
            status: Status::of(&status).expect("the statement knows no other words"),
            attempts,
            next_attempt_at,
            error,
            reason,
        };
    Ok(rows.into_iter().map(place).collect())
}
