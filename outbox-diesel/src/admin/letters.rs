//! Lists dead letters and shows one.

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{
    BigInt, Integer, Json, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use super::filter::{Filter, dead_letters_of};
use super::find;
use crate::operation::{AdminError, load};
use crate::statement::{RawJson, statement};

/// A dead letter: an event that ran out of attempts. Its payload is in [`show`].
#[derive(Debug, Clone, PartialEq, Eq, Queryable)]
#[non_exhaustive]
pub struct Letter {
    /// Which subscription failed to deliver it.
    pub subscription: String,
    /// Its place in the log.
    pub seq: i64,
    /// The event's id: what [`retry`](super::retry) and [`discard`](super::discard) take.
    pub event_id: Uuid,
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
    /// When it was emitted.
    pub created_at: DateTime<Utc>,
    /// How often it was tried.
    pub attempts: i32,
    /// Why the last attempt failed.
    pub error: Option<String>,
    /// When the first attempt failed.
    pub parked_at: DateTime<Utc>,
    /// When the last attempt failed.
    pub died_at: DateTime<Utc>,
    /// How many later events of its aggregate wait for it.
    pub held: i64,
}

/// Dead letters in the order of their emit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// The letters.
    pub letters: Vec<Letter>,
    /// Where the next page begins. None: this is the last one.
    pub next: Option<After>,
}

/// The last letter of a page: the next page begins after it, whatever was retried, discarded or
/// died meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    created_at: DateTime<Utc>,
    seq: i64,
    subscription: String,
}

type LetterColumns = (
    Text,
    BigInt,
    SqlUuid,
    Text,
    Text,
    Text,
    Text,
    SmallInt,
    Timestamptz,
    Integer,
    Nullable<Text>,
    Timestamptz,
    Timestamptz,
    BigInt,
);

macro_rules! letter {
    () => {
        "p.subscription, p.seq, p.id, p.topic, p.aggregate_type, p.aggregate_id, p.event_type, p.event_version, \
         p.created_at, p.attempts, p.error, p.parked_at, p.updated_at, \
         (SELECT count(*) FROM outbox.parked held \
          WHERE held.subscription = p.subscription AND held.shard = p.shard \
            AND held.aggregate_type = p.aggregate_type AND held.aggregate_id = p.aggregate_id \
            AND p.holds AND held.holds AND (held.tick, held.seq) > (p.tick, p.seq))"
    };
}

const LIST: &str = concat!(
    "SELECT ",
    letter!(),
    " FROM outbox.parked p WHERE ",
    dead_letters_of!(),
    " AND (p.created_at, p.seq, p.subscription) > (coalesce($9, '-infinity'), coalesce($10, 0), coalesce($11, ''))
ORDER BY p.created_at, p.seq, p.subscription LIMIT $12"
);

/// Lists dead letters, oldest first: the first page of at most `limit` letters with `after` None,
/// the next one with the [`next`](Page::next) of the page before.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// use outbox_diesel::admin::{self, Filter};
///
/// let mut after = None;
/// loop {
///     let page = admin::list(conn, &Filter::default().topic("orders"), after.as_ref(), 500).await?;
///     page.letters.iter().for_each(|letter| println!("{}", letter.event_id));
///     after = page.next;
///     if after.is_none() {
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What the database says.
pub async fn list(
    conn: &mut AsyncPgConnection,
    filter: &Filter,
    after: Option<&After>,
    limit: u16,
) -> Result<Page, AdminError> {
    // One more than asked for tells whether there is another page.
    let limit = usize::from(limit.max(1));
    let list = filter
        .bind(statement::<LetterColumns>(LIST))
        .bind::<Nullable<Timestamptz>, _>(after.map(|after| after.created_at))
        .bind::<Nullable<BigInt>, _>(after.map(|after| after.seq))
        .bind::<Nullable<Text>, _>(after.map(|after| after.subscription.clone()))
        .bind::<BigInt, _>(i64::try_from(limit + 1).unwrap_or(i64::MAX));
    let mut letters: Vec<Letter> = load(conn, list).await?;
    let more = letters.len() > limit;
    letters.truncate(limit);
    let next = letters.last().filter(|_| more).map(|last| After {
        created_at: last.created_at,
        seq: last.seq,
        subscription: last.subscription.clone(),
    });
    Ok(Page { letters, next })
}

/// A dead letter with its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shown {
    /// What the list says of it.
    pub letter: Letter,
    /// The producer's dedup key.
    pub dedup_key: Option<String>,
    /// The payload's JSON text, byte for byte as it was emitted.
    pub payload: String,
    /// The headers' JSON text.
    pub headers: String,
}

const SHOW: &str = concat!(
    "SELECT ",
    letter!(),
    ", p.dedup_key, p.payload, p.headers FROM outbox.parked p WHERE p.dead AND p.subscription = $1 AND p.id = $2"
);

/// Shows one dead letter.
///
/// # Errors
/// [`NotParked`](AdminError::NotParked) with what became of it if it is not dead (any more),
/// [`NoEvent`](AdminError::NoEvent), [`NoSubscription`](AdminError::NoSubscription), or what the
/// database says.
pub async fn show(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    event_id: Uuid,
) -> Result<Shown, AdminError> {
    let show = statement::<ShownColumns>(SHOW)
        .bind::<Text, _>(subscription.to_owned())
        .bind::<SqlUuid, _>(event_id);
    let rows: Vec<(Letter, Option<String>, RawJson, RawJson)> = load(conn, show).await?;
    let Some((letter, dedup_key, payload, headers)) = rows.into_iter().next() else {
        return Err(find::why_not(conn, subscription, event_id).await?);
    };
    let text = |json: RawJson| String::from_utf8_lossy(&json.0).into_owned();
    Ok(Shown { letter, dedup_key, payload: text(payload), headers: text(headers) })
}

type ShownColumns = (LetterColumns, Nullable<Text>, Json, Json);
