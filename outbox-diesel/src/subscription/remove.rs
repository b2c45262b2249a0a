//! Removes a subscription.

use diesel::sql_types::{BigInt, Text};
use diesel_async::AsyncPgConnection;

use crate::operation::{self, AdminError, begin, end, execute, load};
use crate::statement::statement;

const LIVE: &str = "\
SELECT count(*) FROM outbox.relays r
WHERE r.subscription = $1
  AND (r.seen_at > clock_timestamp() - interval '10 s'
       OR EXISTS (SELECT FROM outbox.cursors c
                  WHERE c.subscription = r.subscription AND c.owner = r.id AND c.leased_until > clock_timestamp()))";

/// How many relays of a subscription are running.
pub(crate) async fn live_relays(
    conn: &mut AsyncPgConnection,
    subscription: &str,
) -> Result<i64, AdminError> {
    let live = statement::<BigInt>(LIVE).bind::<Text, _>(subscription.to_owned());
    Ok(load::<_, _, i64>(conn, live).await?.into_iter().sum())
}

const KEEP: &str = "\
INSERT INTO outbox.discarded (subscription, shard, tick, seq, id, topic, aggregate_type, aggregate_id, event_type,
    event_version, dedup_key, payload, headers, created_at, attempts, error, parked_at, reason)
SELECT p.subscription, p.shard, p.tick, p.seq, p.id, p.topic, p.aggregate_type, p.aggregate_id, p.event_type,
    p.event_version, p.dedup_key, p.payload, p.headers, p.created_at, p.attempts, p.error, p.parked_at,
    'the subscription was removed'
FROM outbox.parked p WHERE p.subscription = $1
ON CONFLICT (subscription, seq) DO NOTHING";

const REMOVE: &str = "DELETE FROM outbox.subscriptions WHERE name = $1";

/// Removes a subscription with its cursors, and says whether there was one. The log does not keep
/// events for it any more. What was parked is recorded as discarded. One created later under this
/// name is another one.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// outbox_diesel::subscription::remove(conn, "search").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`RelaysLive`](AdminError::RelaysLive): stop its relays first (one that crashed counts for some
/// seconds). Or what the database says.
///
/// # Cancel safety
/// Drop the connection if the future was dropped: its transaction may still be open.
pub async fn remove(conn: &mut AsyncPgConnection, name: &str) -> Result<bool, AdminError> {
    begin(conn).await?;
    let removed = async {
        operation::lock_ticks(conn).await?;
        let relays = live_relays(conn, name).await?;
        if relays > 0 {
            return Err(AdminError::RelaysLive { subscription: name.to_owned(), relays });
        }
        execute(conn, statement::<()>(KEEP).bind::<Text, _>(name.to_owned())).await?;
        Ok(execute(conn, statement::<()>(REMOVE).bind::<Text, _>(name.to_owned())).await? > 0)
    }
    .await;
    end(conn, removed).await
}
