//! Makes parked events due again.

use diesel::sql_types::{Array, BigInt, Text, Timestamptz, Uuid as SqlUuid};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use super::filter::{Filter, dead_letters_of};
use super::find;
use crate::operation::{AdminError, begin, end, execute, load, notice};
use crate::statement::statement;

/// Tries a parked event again now: it gets all its attempts again, and its error is forgotten. Its
/// aggregate keeps its order: what waits behind it goes out after it.
///
/// Repeating it is harmless. An event that a relay is trying at this moment is tried once more if
/// that fails.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection, id: uuid::Uuid) -> Result<(), outbox_diesel::admin::AdminError> {
/// use outbox_diesel::admin::{self, AdminError};
///
/// match admin::retry(conn, "default", id).await {
///     Err(AdminError::Held { behind, .. }) => admin::retry(conn, "default", behind).await?,
///     done => done?,
/// }
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Held`](AdminError::Held) if it waits for another one, [`NotParked`](AdminError::NotParked)
/// with what became of it, [`NoEvent`](AdminError::NoEvent),
/// [`NoSubscription`](AdminError::NoSubscription), or what the database says.
pub async fn retry(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    event_id: Uuid,
) -> Result<(), AdminError> {
    if retry_many(conn, subscription, &[event_id]).await? > 0 {
        return Ok(());
    }
    let head = statement::<SqlUuid>(HEAD)
        .bind::<Text, _>(subscription.to_owned())
        .bind::<SqlUuid, _>(event_id);
    let head: Vec<Uuid> = load(conn, head).await?;
    match head.into_iter().next() {
        Some(behind) if behind != event_id => Err(AdminError::Held { event_id, behind }),
        // It was made due, or released, between our two looks.
        Some(_) => Ok(()),
        None => Err(find::why_not(conn, subscription, event_id).await?),
    }
}

// In the order of seq, so that two operators do not deadlock.
const RETRY: &str = "\
WITH chosen AS MATERIALIZED (
    SELECT p.subscription, p.seq FROM outbox.parked p
    WHERE p.subscription = $1 AND p.id = ANY ($2::uuid[]) AND (p.dead OR p.next_attempt_at IS NOT NULL)
    ORDER BY p.seq FOR UPDATE
)
UPDATE outbox.parked p
SET attempts = 0, error = NULL, dead = false, next_attempt_at = clock_timestamp(), updated_at = clock_timestamp()
FROM chosen WHERE p.subscription = chosen.subscription AND p.seq = chosen.seq";

/// The event that an event waits for, or itself.
const HEAD: &str = "\
SELECT first.id FROM outbox.parked p CROSS JOIN LATERAL (
    SELECT e.id FROM outbox.parked e
    WHERE e.subscription = p.subscription AND e.shard = p.shard
      AND e.aggregate_type = p.aggregate_type AND e.aggregate_id = p.aggregate_id
      AND (e.seq = p.seq OR (p.holds AND e.holds))
    ORDER BY e.tick, e.seq LIMIT 1) first
WHERE p.subscription = $1 AND p.id = $2";

/// Tries these events of a subscription again, as [`retry`] does, and returns how many of them were
/// parked and not held. The others are no error: somebody else may have been faster.
///
/// # Errors
/// [`NoSubscription`](AdminError::NoSubscription), or what the database says.
pub async fn retry_many(
    conn: &mut AsyncPgConnection,
    subscription: &str,
    event_ids: &[Uuid],
) -> Result<u64, AdminError> {
    begin(conn).await?;
    let retried = async {
        notice(conn, subscription).await?;
        let retry = statement::<()>(RETRY)
            .bind::<Text, _>(subscription.to_owned())
            .bind::<Array<SqlUuid>, _>(event_ids.to_vec());
        Ok(execute(conn, retry).await? as u64)
    }
    .await;
    end(conn, retried).await
}

/// How many letters one transaction makes due: a relay must not wait for long behind its locks.
const AT_ONCE: i64 = 1000;

const NOW: &str = "SELECT clock_timestamp()";

// What died again since the call began was tried: once more is for another call.
const RETRY_ALL: &str = concat!(
    "WITH chosen AS MATERIALIZED (
    SELECT p.subscription, p.seq FROM outbox.parked p WHERE ",
    dead_letters_of!(),
    " AND p.updated_at <= $9
    ORDER BY p.subscription, p.seq LIMIT $10 FOR UPDATE
)
UPDATE outbox.parked p
SET attempts = 0, error = NULL, dead = false, next_attempt_at = clock_timestamp(), updated_at = clock_timestamp()
FROM chosen WHERE p.subscription = chosen.subscription AND p.seq = chosen.seq"
);

/// Tries all dead letters of a filter again, as [`retry`] does, and returns how many. They go out
/// in the order of their emit, aggregate by aggregate.
///
/// Large numbers are made due 1,000 at a time: if it is interrupted, repeat it.
///
/// # Errors
/// What the database says.
pub async fn retry_all(conn: &mut AsyncPgConnection, filter: &Filter) -> Result<u64, AdminError> {
    let now: Vec<chrono::DateTime<chrono::Utc>> = load(conn, statement::<Timestamptz>(NOW)).await?;
    let started = now.into_iter().next().ok_or(diesel::result::Error::NotFound)?;
    let mut all = 0;
    loop {
        begin(conn).await?;
        let retry = filter
            .bind(statement::<()>(RETRY_ALL))
            .bind::<Timestamptz, _>(started)
            .bind::<BigInt, _>(AT_ONCE);
        let retried = execute(conn, retry).await.map_err(AdminError::from);
        match end(conn, retried).await? {
            0 => return Ok(all),
            some => all += some as u64,
        }
    }
}
