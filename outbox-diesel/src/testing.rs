//! Testing: asserts, in an application's own tests, which events were emitted.
//!
//! No relay and no broker is needed, and nothing has to be committed: what a test transaction has
//! emitted is read on its own connection and vanishes with it.
//!
//! ```no_run
//! # use diesel_async::{AsyncConnection, AsyncPgConnection};
//! # use outbox_diesel::{AsyncEmit, EmitError, OutboxEvent};
//! # #[derive(serde::Serialize, OutboxEvent)]
//! # #[outbox(aggregate = "order")]
//! # struct OrderPlaced { #[outbox(aggregate_id)] id: i64, total: u32 }
//! # async fn place_order(conn: &mut AsyncPgConnection, id: i64) -> Result<(), EmitError> {
//! #     conn.emit(&OrderPlaced { id, total: 1 }).await.map(|_| ())
//! # }
//! use outbox_diesel::testing;
//!
//! # async fn test(url: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let mut conn = AsyncPgConnection::establish(url).await?;
//! conn.begin_test_transaction().await?;
//! testing::assert_no_events_async(&mut conn).await;
//!
//! place_order(&mut conn, 7).await?;
//!
//! // Exactly these, in this order, with everything that consumers see:
//! testing::assert_emitted_async(&mut conn, &[&OrderPlaced { id: 7, total: 1 }]).await;
//! // Or whatever is of interest:
//! let events = testing::emitted_async(&mut conn).await?;
//! assert_eq!(events[0].event_type, "order.placed");
//! assert_eq!(events[0].payload["total"], 1);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `relay` a test can also deliver: [`TestRelay`] runs a relay to "everything
//! delivered" without waiting, or to a [`CrashPoint`]; [`RecordingPublisher`] is a broker in memory
//! that rejects, hangs and goes away as it is told; [`assert_delivered`] compares what it got.
//!
//! **Inside a transaction** that diesel began, a test transaction above all, these functions see
//! what this transaction has emitted and nothing else: tests can share a database. **Outside**,
//! they see every committed event that retention has left.

mod compare;
#[cfg(feature = "relay")]
mod delivered;
#[cfg(feature = "relay")]
mod relay;

use std::collections::BTreeMap;

use diesel::connection::{LoadConnection, TransactionManager as _};
use diesel::deserialize::{Queryable, Result as Deserialized};
use diesel::pg::Pg;
use diesel::result::QueryResult;
use diesel::sql_types::{BigInt, Nullable, SmallInt, Text, Uuid as SqlUuid};
use serde::de::DeserializeOwned;
use uuid::Uuid;

#[cfg(feature = "relay")]
pub use self::delivered::assert_delivered;
#[cfg(feature = "relay")]
pub use self::relay::{CrashPoint, DrainError, TestRelay};
use crate::event::OutboxEvent;
#[cfg(feature = "relay")]
pub use crate::publish::{Recorded, RecordingPublisher};
use crate::statement::statement;

/// An event as it is in `outbox.events`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EmittedEvent {
    /// Its place in the order of emit. Not dense: rolled back events leave gaps.
    pub seq: i64,
    /// The id under which it is published.
    pub id: Uuid,
    /// Where it is published.
    pub topic: String,
    /// What kind of thing it happened to.
    pub aggregate_type: String,
    /// Which one of them.
    pub aggregate_id: String,
    /// What happened.
    pub event_type: String,
    /// The version of the payload's shape.
    pub event_version: i16,
    /// The dedup key.
    pub dedup_key: Option<String>,
    /// The headers.
    pub headers: BTreeMap<String, String>,
    /// The payload, parsed.
    pub payload: serde_json::Value,
    /// The payload as it stands, byte for byte.
    pub payload_text: String,
}

impl EmittedEvent {
    /// The payload as a Rust value, parsed as a consumer would.
    ///
    /// # Errors
    /// What serde says if the payload has another shape.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.payload_text)
    }
}

type Columns = (BigInt, SqlUuid, Text, Text, Text, Text, SmallInt, Nullable<Text>, Text, Text);

impl Queryable<Columns, Pg> for EmittedEvent {
    type Row = (i64, Uuid, String, String, String, String, i16, Option<String>, String, String);

    fn build(row: Self::Row) -> Deserialized<Self> {
        let (seq, id, topic, aggregate_type, aggregate_id, event_type, version, key, headers, text) =
            row;
        Ok(Self {
            seq,
            id,
            topic,
            aggregate_type,
            aggregate_id,
            event_type,
            event_version: version,
            dedup_key: key,
            headers: serde_json::from_str(&headers)?,
            payload: serde_json::from_str(&text)?,
            payload_text: text,
        })
    }
}

const EMITTED: &str = "\
SELECT seq, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key,
       headers::text, payload::text
FROM outbox.events
ORDER BY seq";

const EMITTED_IN_TRANSACTION: &str = "\
SELECT seq, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key,
       headers::text, payload::text
FROM outbox.events
WHERE xid = pg_current_xact_id_if_assigned()
ORDER BY seq";

/// The events that were emitted, in order: in the current transaction, or committed if there is
/// none.
///
/// # Errors
/// What the database says, or serde about a payload or headers that were inserted by SQL.
pub fn emitted<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<Vec<EmittedEvent>> {
    let status = C::TransactionManager::transaction_manager_status_mut(conn);
    let text = text(status.transaction_depth()?.is_some());
    diesel::RunQueryDsl::load(statement::<Columns>(text), conn)
}

/// Asserts that exactly these events were emitted, in this order; see [`emitted`].
///
/// Type, version, aggregate, topic, dedup key, headers and payload are compared, the payload as a
/// JSON value: spaces and the order of its keys do not matter.
///
/// # Panics
/// If others were. The message has a line of JSON for each event that is missing, unexpected or
/// different, and names what differs.
#[track_caller]
pub fn assert_emitted<C: LoadConnection<Backend = Pg>>(
    conn: &mut C,
    expected: &[&dyn OutboxEvent],
) {
    let expected = compare::lines(expected.iter().copied());
    let emitted = compare::emitted(emitted(conn));
    if let Err(difference) = compare::difference("emitted", expected, emitted) {
        panic!("{difference}");
    }
}

/// Asserts that no event was emitted; see [`emitted`].
///
/// # Panics
/// If one was. The message lists them.
#[track_caller]
pub fn assert_no_events<C: LoadConnection<Backend = Pg>>(conn: &mut C) {
    assert_emitted(conn, &[]);
}

fn text(in_transaction: bool) -> &'static str {
    if in_transaction { EMITTED_IN_TRANSACTION } else { EMITTED }
}

#[cfg(feature = "async")]
mod asynchronous {
    use diesel_async::{AsyncConnection, RunQueryDsl, TransactionManager};

    use super::*;

    /// The events that were emitted, in order; see [`emitted`].
    ///
    /// # Errors
    /// As [`emitted`].
    ///
    /// # Cancel safety
    /// Drop the connection if the future was dropped, as with every query of diesel-async.
    pub async fn emitted_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> QueryResult<Vec<EmittedEvent>> {
        let status = C::TransactionManager::transaction_manager_status_mut(conn);
        let text = text(status.transaction_depth()?.is_some());
        RunQueryDsl::load(statement::<Columns>(text), conn).await
    }

    /// Asserts that exactly these events were emitted, in this order; see [`assert_emitted`].
    ///
    /// `Sync`, so that the slice may live across the `.await` in a task that is `Send`.
    ///
    /// # Panics
    /// As [`assert_emitted`].
    #[track_caller]
    pub fn assert_emitted_async<'conn, C: AsyncConnection<Backend = Pg>>(
        conn: &'conn mut C,
        expected: &[&(dyn OutboxEvent + Sync)],
    ) -> impl Future<Output = ()> + Send + use<'conn, C> {
        // A future's panic would name a line in here.
        let caller = std::panic::Location::caller();
        let expected = compare::lines(expected.iter().map(|event| *event as &dyn OutboxEvent));
        async move {
            let emitted = compare::emitted(emitted_async(conn).await);
            if let Err(difference) = compare::difference("emitted", expected, emitted) {
                panic!("{caller}: {difference}");
            }
        }
    }

    /// Asserts that no event was emitted; see [`assert_no_events`].
    ///
    /// # Panics
    /// As [`assert_no_events`].
    #[track_caller]
    pub fn assert_no_events_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> impl Future<Output = ()> + Send + use<'_, C> {
        assert_emitted_async(conn, &[])
    }
}

#[cfg(feature = "async")]
pub use asynchronous::{assert_emitted_async, assert_no_events_async, emitted_async};
