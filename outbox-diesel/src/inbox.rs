//! Inbox: makes a repeat of an event have no effect, with any broker and any producer.
//!
//! Brokers deliver at least once. [`Inbox::once`] runs a handler and records the event's id in one
//! transaction, so that the effects a handler has *in this database* happen exactly once: a copy
//! that comes later is skipped, a copy that comes at the same time waits and is then skipped, and
//! if the handler fails, panics or is killed, neither its effects nor the record remain.
//!
//! Each consumer is a name, and sees each event once. Renaming a consumer makes a new one, which
//! handles again what is delivered again (`UPDATE outbox.inbox SET consumer = …` takes the memory
//! along). The key is (consumer, event id); where ids of two producers may collide, because they
//! are not random or time-ordered UUIDs, give each producer an inbox name of its own.
//!
//! # Retention
//! The table is partitioned by range of the id. A UUIDv7 tells its time, so old weeks can be
//! dropped; the id alone chooses the partition, so both copies of an event always meet in one
//! index. Other kinds of ids work too: they are as unique, and deleted row by row.
//! Call [`keep_partitions_ahead`] and [`drop_partitions`] about once a day ([`RETENTION`] says for
//! how long to remember). Without them the inbox works the same and grows.
//!
//! What was forgotten cannot be told from what is new. So after [`drop_partitions`] a time-ordered
//! id from a time of which the same consumer's records were dropped is refused with [`Forgotten`],
//! whoever sends it again and however: no retention is too short to be safe. An id that tells no time
//! cannot be refused, so it is remembered for [`RETENTION`] even where you ask for less, and an outbox
//! refuses to replay or rewind to an event with such an id that is older than 14 days. That leaves
//! what it sends again 16 days to be handled in.

mod retention;

use std::fmt;

use diesel::connection::LoadConnection;
use diesel::pg::Pg;
use diesel::result::Error;
use diesel::sql_types::{Bool, Text, Uuid as SqlUuid};
use uuid::Uuid;

pub use self::retention::*;
use crate::error::TextProblem;
use crate::statement::{Statement, Walk, statement};

/// What became of an event that was given to an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled<T> {
    /// This was the first time: the handler ran, and returned this.
    First(T),
    /// The event was handled before. The handler did not run.
    Duplicate,
}

/// The memory of one consumer: which events it has handled.
///
/// ```
/// use diesel::connection::LoadConnection;
/// use diesel::pg::Pg;
/// use diesel::prelude::*;
/// use outbox_diesel::inbox::{Handled, Inbox};
///
/// diesel::table! { balances (account) { account -> Text, cents -> BigInt } }
///
/// fn on_paid<C>(conn: &mut C, id: uuid::Uuid, cents: i64) -> QueryResult<()>
/// where
///     C: LoadConnection<Backend = Pg>, // a PgConnection, or a guard of a pool of them
/// {
///     let inbox = Inbox::new("accounting").expect("not empty and not long");
///     let handled = inbox.once(conn, id, |conn| {
///         diesel::update(balances::table.find("sales"))
///             .set(balances::cents.eq(balances::cents + cents))
///             .execute(conn)
///     })?;
///     if handled == Handled::Duplicate {
///         println!("{id} came again");
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inbox {
    consumer: String,
}

impl Inbox {
    /// The memory of the consumer of this name, 1 to 255 bytes.
    pub fn new(consumer: impl Into<String>) -> Result<Self, InvalidConsumer> {
        let consumer = consumer.into();
        let problem = match consumer.len() {
            0 => TextProblem::Empty,
            256.. => TextProblem::TooLong(consumer.len()),
            _ if consumer.contains('\0') => TextProblem::Nul,
            _ => return Ok(Self { consumer }),
        };
        Err(InvalidConsumer(problem))
    }

    /// The consumer's name.
    #[must_use]
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// Runs the handler unless this consumer has handled the event.
    ///
    /// Everything happens in one transaction: a new one, or a savepoint if the connection is in
    /// one already (by diesel: of a `BEGIN` sent as SQL diesel knows nothing). An error of the
    /// handler undoes the handler's effects and the record, and a caller's outer transaction stays
    /// usable. Do everything on the connection that the handler is given: what is written through
    /// another one, or sent elsewhere, is not undone and happens again.
    ///
    /// If another transaction is handling the same event, this waits for it, and then skips the
    /// event if it committed or handles it if it rolled back. In an outer transaction of the
    /// caller's, others wait until that one ends. Two transactions that each handle several of the
    /// same events in different orders can deadlock, as with any rows: one of them fails and can
    /// be tried again.
    ///
    /// READ COMMITTED, PostgreSQL's default, is best. Under REPEATABLE READ and SERIALIZABLE the
    /// one that waited fails with a serialization failure instead of skipping; trying again skips.
    ///
    /// # Errors
    /// The handler's error as it is, or what the database says. [`Forgotten`] inside
    /// `diesel::result::Error::SerializationError` (see [`Forgotten::in_error`]) if the event is so
    /// old that this consumer may have handled and forgotten it. A handler that swallows a
    /// database error, which aborts its transaction, gets it back here: nothing was committed.
    pub fn once<C, T, E>(
        &self,
        conn: &mut C,
        event_id: Uuid,
        handler: impl FnOnce(&mut C) -> Result<T, E>,
    ) -> Result<Handled<T>, E>
    where
        C: LoadConnection<Backend = Pg>,
        E: From<Error>,
    {
        conn.transaction(|conn| {
            let recorded: Vec<bool> = diesel::RunQueryDsl::load(self.record(event_id), conn)?;
            let Some(old) = recorded.first() else { return Ok(Handled::Duplicate) };
            if *old && diesel::RunQueryDsl::get_result(self.has_forgotten(event_id), conn)? {
                return Err(Forgotten { event_id }.into_error().into());
            }
            let result = handler(conn)?;
            conn.batch_execute(IS_USABLE)?;
            Ok(Handled::First(result))
        })
    }

    /// Returns no row for a duplicate, and else whether the id is older than a day.
    fn record(&self, event_id: Uuid) -> Statement<Bool, impl Walk + Send + use<>> {
        statement::<Bool>(RECORD)
            .bind::<Text, _>(self.consumer.clone())
            .bind::<SqlUuid, _>(event_id)
    }

    fn has_forgotten(&self, event_id: Uuid) -> Statement<Bool, impl Walk + Send + use<>> {
        statement::<Bool>(HAS_FORGOTTEN)
            .bind::<Text, _>(self.consumer.clone())
            .bind::<SqlUuid, _>(event_id)
    }
}

// First, before the handler: a second copy waits here for the transaction of the first.
const RECORD: &str = "\
INSERT INTO outbox.inbox (consumer, event_id) VALUES ($1, $2)
ON CONFLICT (event_id, consumer) DO NOTHING
RETURNING substr(event_id::text, 15, 1) = '7'
    AND event_id < outbox.first_id_at(clock_timestamp() - interval '1 day')";

// A statement after the record: that one waits for retention, and this one sees what it did.
const HAS_FORGOTTEN: &str = "\
SELECT EXISTS (SELECT FROM outbox.inbox_forgotten f WHERE f.consumer = $1 AND f.below > $2)";

/// Refused in an aborted transaction, of which PostgreSQL reports even a COMMIT as a success.
const IS_USABLE: &str = "SELECT 1";

/// An event that its consumer may have handled so long ago that [`drop_partitions`] has deleted the
/// record. Check by hand whether it was handled. If not, an inbox of another name handles it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("event {event_id} is older than what the inbox remembers of its consumer")]
pub struct Forgotten {
    /// The event's id.
    pub event_id: Uuid,
}

impl Forgotten {
    /// Finds it in an error of [`Inbox::once`].
    ///
    /// ```
    /// use outbox_diesel::inbox::Forgotten;
    ///
    /// assert_eq!(Forgotten::in_error(&diesel::result::Error::NotFound), None);
    /// ```
    #[must_use]
    pub fn in_error(error: &Error) -> Option<Self> {
        match error {
            Error::SerializationError(inner) => inner.downcast_ref().copied(),
            _ => None,
        }
    }

    fn into_error(self) -> Error {
        Error::SerializationError(Box::new(self))
    }
}

/// The name of a consumer cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidConsumer(pub TextProblem);

impl fmt::Display for InvalidConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the consumer's name {}", self.0)
    }
}

impl std::error::Error for InvalidConsumer {}

#[cfg(feature = "async")]
mod asynchronous {
    use diesel::pg::Pg;
    use diesel::result::Error;
    use diesel_async::{AsyncConnection, TransactionManager};
    use uuid::Uuid;

    use super::{Forgotten, Handled, IS_USABLE, Inbox};

    impl Inbox {
        /// Runs the handler unless this consumer has handled the event; see [`once`](Self::once).
        ///
        /// ```
        /// # use outbox_diesel::inbox::{Handled, Inbox};
        /// # use diesel_async::{AsyncPgConnection, RunQueryDsl};
        /// # async fn on_paid(inbox: Inbox, conn: &mut AsyncPgConnection, id: uuid::Uuid) -> diesel::QueryResult<()> {
        /// let handled = inbox
        ///     .once_async(conn, id, async |conn| {
        ///         diesel::sql_query("UPDATE balances SET cents = cents + 1").execute(conn).await
        ///     })
        ///     .await?;
        /// # let _: Handled<usize> = handled;
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// As [`once`](Self::once).
        ///
        /// # Cancel safety
        /// A dropped future leaves its transaction open on the connection: nothing is committed.
        /// Drop the connection too. Pools do so by themselves when it is given back (bb8,
        /// deadpool).
        pub async fn once_async<C, T, E>(
            &self,
            conn: &mut C,
            event_id: Uuid,
            handler: impl AsyncFnOnce(&mut C) -> Result<T, E>,
        ) -> Result<Handled<T>, E>
        where
            C: AsyncConnection<Backend = Pg>,
            E: From<Error>,
        {
            C::TransactionManager::begin_transaction(conn).await?;
            match self.record_and_handle(conn, event_id, handler).await {
                Ok(outcome) => {
                    C::TransactionManager::commit_transaction(conn).await?;
                    Ok(outcome)
                }
                Err(error) => match C::TransactionManager::rollback_transaction(conn).await {
                    Ok(()) | Err(Error::BrokenTransactionManager) => Err(error),
                    Err(worse) => Err(worse.into()),
                },
            }
        }

        async fn record_and_handle<C, T, E>(
            &self,
            conn: &mut C,
            event_id: Uuid,
            handler: impl AsyncFnOnce(&mut C) -> Result<T, E>,
        ) -> Result<Handled<T>, E>
        where
            C: AsyncConnection<Backend = Pg>,
            E: From<Error>,
        {
            let recorded: Vec<bool> =
                diesel_async::RunQueryDsl::load(self.record(event_id), conn).await?;
            let Some(old) = recorded.first() else { return Ok(Handled::Duplicate) };
            let forgotten = self.has_forgotten(event_id);
            if *old && diesel_async::RunQueryDsl::get_result(forgotten, conn).await? {
                return Err(Forgotten { event_id }.into_error().into());
            }
            let result = handler(conn).await?;
            conn.batch_execute(IS_USABLE).await?;
            Ok(Handled::First(result))
        }
    }
}
