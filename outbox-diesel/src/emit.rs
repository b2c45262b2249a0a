//! Emit: inserts an event in the caller's transaction.
//!
//! [`Emit`] is for diesel's synchronous connections, [`AsyncEmit`] for diesel-async's; both cover
//! pool guards. Import the one that fits the connection.

mod insert;
mod lock;
pub(crate) mod row;

use std::collections::HashMap;
use std::slice;

use diesel::connection::{LoadConnection, TransactionManager as _};
use diesel::pg::Pg;
use uuid::Uuid;

use self::insert::{Columns, OneOf};
use self::row::Row;
use crate::error::EmitError;
use crate::event::OutboxEvent;

/// What became of an emit. Both mean that the event is in the outbox once the transaction commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emitted {
    /// The event was inserted under this id.
    New(Uuid),
    /// Nothing was inserted: this earlier event has the same dedup key.
    Duplicate(Uuid),
}

impl Emitted {
    /// The id under which the event is published.
    #[must_use]
    pub fn id(&self) -> Uuid {
        match *self {
            Self::New(id) | Self::Duplicate(id) => id,
        }
    }
}

/// Refused outside of a transaction block, harmless inside one. Tells a transaction that was begun
/// by SQL, of which diesel knows nothing.
const PROBE: &str = "SAVEPOINT outbox_probe; RELEASE SAVEPOINT outbox_probe";
/// Refused in an aborted transaction and on a lost connection: reasons for which the probe can fail
/// inside a transaction too, and diesel tells no error codes.
const IS_USABLE: &str = "SELECT 1";

/// Emits events on synchronous connections: `PgConnection`, its pool guards and wrappers.
pub trait Emit: LoadConnection<Backend = Pg> {
    /// Emits one event in the current transaction.
    ///
    /// One statement, prepared once per connection (and one more before it where the event type asks
    /// for a lock, [`OutboxEvent::serialize_writers`]). The event becomes visible to the relay when
    /// the transaction commits, and never if it (or a savepoint around the emit) rolls back.
    /// Emit after locking the aggregate (`SELECT … FOR UPDATE`, or the `UPDATE` itself), so that
    /// events of one aggregate are published in the order of its changes.
    ///
    /// With a dedup key that another open transaction has just emitted, this waits for it to end.
    ///
    /// # Errors
    /// See [`EmitError`]. Unless it is [`EmitError::Database`], the transaction is still usable.
    fn emit<E: OutboxEvent + ?Sized>(&mut self, event: &E) -> Result<Emitted, EmitError> {
        check_transaction(self)?;
        let row = Row::new(event)?;
        if let Some(lock) = lock::writers(slice::from_ref(&row)) {
            self.execute_returning_count(&lock)?;
        }
        loop {
            let inserted = match insert::one(&row) {
                OneOf::Plain(insert) => self.execute_returning_count(&insert)?,
                OneOf::Once(insert) => self.execute_returning_count(&insert)?,
            };
            let Some(key) = row.dedup_key.as_deref().filter(|_| inserted == 0) else {
                return Ok(Emitted::New(row.id));
            };
            let claimed: Vec<(String, Uuid)> =
                diesel::RunQueryDsl::load(insert::find_claimed(vec![key]), self)?;
            // None: the key ran out of its time between the two statements, so try again.
            if let Some((_, id)) = claimed.into_iter().next() {
                return Ok(Emitted::Duplicate(id));
            }
        }
    }

    /// Emits events in slice order, in one statement whatever their number.
    ///
    /// The slice may hold several types: `&[&created as &dyn OutboxEvent, &paid]`.
    ///
    /// # Errors
    /// As [`emit`](Self::emit). All are checked before any is sent.
    fn emit_all<E: OutboxEvent>(&mut self, events: &[E]) -> Result<Vec<Emitted>, EmitError> {
        check_transaction(self)?;
        let rows = rows(events)?;
        if let Some(lock) = lock::writers(&rows) {
            self.execute_returning_count(&lock)?;
        }
        let mut taken = Taken::default();
        let mut left: Vec<&Row> = rows.iter().collect();
        while !left.is_empty() {
            let columns = Columns::of(&left);
            let inserted = match insert::all(&columns) {
                OneOf::Plain(insert) => self.execute_returning_count(&insert)?,
                OneOf::Once(insert) => self.execute_returning_count(&insert)?,
            };
            if inserted == left.len() {
                break;
            }
            let found = insert::find_claimed(columns.keys());
            taken.extend(diesel::RunQueryDsl::load(found, self)?);
            left.retain(|row| taken.is_unknown(row));
        }
        Ok(taken.outcomes(&rows))
    }
}

impl<C: LoadConnection<Backend = Pg>> Emit for C {}

fn check_transaction<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> Result<(), EmitError> {
    let status = C::TransactionManager::transaction_manager_status_mut(conn);
    if status.transaction_depth()?.is_none() && conn.batch_execute(PROBE).is_err() {
        conn.batch_execute(IS_USABLE)?;
        return Err(EmitError::NotInTransaction);
    }
    Ok(())
}

fn rows<E: OutboxEvent>(events: &[E]) -> Result<Vec<Row>, EmitError> {
    events.iter().map(Row::new).collect()
}

/// Dedup keys of a slice and the events that hold them.
#[derive(Default)]
struct Taken(HashMap<String, Uuid>);

impl Taken {
    fn extend(&mut self, claimed: Vec<(String, Uuid)>) {
        self.0.extend(claimed);
    }

    /// Neither inserted nor a duplicate: its key was taken when the events were inserted, and ran
    /// out of its time before it was looked up.
    fn is_unknown(&self, row: &Row) -> bool {
        row.dedup_key.as_ref().is_some_and(|key| !self.0.contains_key(key))
    }

    /// An event whose key is held by another event is a duplicate of it.
    fn outcomes(&self, rows: &[Row]) -> Vec<Emitted> {
        rows.iter()
            .map(|row| match row.dedup_key.as_ref().and_then(|key| self.0.get(key)) {
                Some(&holder) if holder != row.id => Emitted::Duplicate(holder),
                _ => Emitted::New(row.id),
            })
            .collect()
    }
}

#[cfg(feature = "async")]
mod asynchronous {
    use diesel_async::{AsyncConnection, RunQueryDsl, TransactionManager};

    use super::*;

    /// Emits events on asynchronous connections: `AsyncPgConnection` and its pool guards.
    ///
    /// # Cancel safety
    /// Not cancel safe, like every statement of diesel-async: a dropped future may or may not have
    /// inserted the event. Roll the transaction back, or drop the connection.
    pub trait AsyncEmit: AsyncConnection<Backend = Pg> {
        /// Emits one event in the current transaction; see [`Emit::emit`].
        ///
        /// The event is serialised before the future is made, so the future borrows only the
        /// connection and is `Send` whatever the event is.
        ///
        /// # Errors
        /// See [`EmitError`]. Unless it is [`EmitError::Database`], the transaction is still usable.
        fn emit<'conn, E: OutboxEvent + ?Sized>(
            &'conn mut self,
            event: &E,
        ) -> impl Future<Output = Result<Emitted, EmitError>> + Send + use<'conn, Self, E> {
            let row = Row::new(event);
            async move {
                check_transaction_async(self).await?;
                let row = row?;
                if let Some(lock) = lock::writers(slice::from_ref(&row)) {
                    RunQueryDsl::execute(lock, self).await?;
                }
                loop {
                    let inserted = match insert::one(&row) {
                        OneOf::Plain(insert) => RunQueryDsl::execute(insert, self).await?,
                        OneOf::Once(insert) => RunQueryDsl::execute(insert, self).await?,
                    };
                    let Some(key) = row.dedup_key.as_deref().filter(|_| inserted == 0) else {
                        return Ok(Emitted::New(row.id));
                    };
                    let claimed: Vec<(String, Uuid)> =
                        RunQueryDsl::load(insert::find_claimed(vec![key]), self).await?;
                    if let Some((_, id)) = claimed.into_iter().next() {
                        return Ok(Emitted::Duplicate(id));
                    }
                }
            }
        }

        /// Emits events in slice order, in one statement whatever their number; see
        /// [`Emit::emit_all`].
        ///
        /// Several types in one slice, in a future that must be `Send`: the slice lives until the
        /// `.await` is over, so write `&[&created as &(dyn OutboxEvent + Sync), &paid]`.
        ///
        /// # Errors
        /// As [`emit`](Self::emit). All are checked before any is sent.
        fn emit_all<'conn, E: OutboxEvent>(
            &'conn mut self,
            events: &[E],
        ) -> impl Future<Output = Result<Vec<Emitted>, EmitError>> + Send + use<'conn, Self, E>
        {
            let rows = rows(events);
            async move {
                check_transaction_async(self).await?;
                let rows = rows?;
                if let Some(lock) = lock::writers(&rows) {
                    RunQueryDsl::execute(lock, self).await?;
                }
                let mut taken = Taken::default();
                let mut left: Vec<&Row> = rows.iter().collect();
                while !left.is_empty() {
                    let columns = Columns::of(&left);
                    let inserted = match insert::all(&columns) {
                        OneOf::Plain(insert) => RunQueryDsl::execute(insert, self).await?,
                        OneOf::Once(insert) => RunQueryDsl::execute(insert, self).await?,
                    };
                    if inserted == left.len() {
                        break;
                    }
                    let found = insert::find_claimed(columns.keys());
                    taken.extend(RunQueryDsl::load(found, self).await?);
                    left.retain(|row| taken.is_unknown(row));
                }
                Ok(taken.outcomes(&rows))
            }
        }
    }

    impl<C: AsyncConnection<Backend = Pg>> AsyncEmit for C {}

    async fn check_transaction_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> Result<(), EmitError> {
        let status = C::TransactionManager::transaction_manager_status_mut(conn);
        if status.transaction_depth()?.is_none() && conn.batch_execute(PROBE).await.is_err() {
            conn.batch_execute(IS_USABLE).await?;
            return Err(EmitError::NotInTransaction);
        }
        Ok(())
    }
}

#[cfg(feature = "async")]
pub use asynchronous::AsyncEmit;
