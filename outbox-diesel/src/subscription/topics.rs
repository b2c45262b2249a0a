//! Changes which topics a subscription gets.

use diesel::sql_types::{Array, BigInt, Nullable, Text};
use diesel_async::AsyncPgConnection;

use crate::operation::{self, AdminError, begin, end, execute, load};
use crate::statement::statement;

const NEWEST: &str = "\
SELECT topics FROM outbox.topic_filters WHERE subscription = $1 ORDER BY from_tick DESC LIMIT 1";

const CHANGE: &str = "\
INSERT INTO outbox.topic_filters (subscription, from_tick, topics) VALUES ($1, $2, $3)";

/// Changes which topics a subscription gets, and says whether that is a change; empty means all of
/// them. It holds for events that commit from now on: those of before, delivered or not, go by what
/// held then, however far a relay is behind.
///
/// ```no_run
/// # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), outbox_diesel::admin::AdminError> {
/// outbox_diesel::subscription::set_topics(conn, "search", &["orders", "carts"]).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`NoSubscription`](AdminError::NoSubscription), or what the database says.
///
/// # Cancel safety
/// Drop the connection if the future was dropped: its transaction may still be open.
pub async fn set_topics(
    conn: &mut AsyncPgConnection,
    name: &str,
    topics: &[&str],
) -> Result<bool, AdminError> {
    let mut topics: Vec<String> = topics.iter().map(ToString::to_string).collect();
    topics.sort_unstable();
    topics.dedup();
    begin(conn).await?;
    let changed = change(conn, name, (!topics.is_empty()).then_some(topics)).await;
    end(conn, changed).await
}

async fn change(
    conn: &mut AsyncPgConnection,
    name: &str,
    topics: Option<Vec<String>>,
) -> Result<bool, AdminError> {
    operation::lock_ticks(conn).await?;
    let newest = statement::<Nullable<Array<Text>>>(NEWEST).bind::<Text, _>(name.to_owned());
    let newest: Vec<Option<Vec<String>>> = load(conn, newest).await?;
    let Some(mut newest) = newest.into_iter().next() else {
        return Err(AdminError::NoSubscription(name.to_owned()));
    };
    if let Some(newest) = &mut newest {
        newest.sort_unstable();
    }
    if newest == topics {
        return Ok(false);
    }
    // With its tick in one transaction: a relay that sees the tick sees the filter.
    let tick = operation::take_tick(conn).await?;
    let change = statement::<()>(CHANGE)
        .bind::<Text, _>(name.to_owned())
        .bind::<BigInt, _>(tick)
        .bind::<Nullable<Array<Text>>, _>(topics);
    execute(conn, change).await?;
    Ok(true)
}
