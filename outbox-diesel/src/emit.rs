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
use crate::metrics;

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

/// Synchronous connections that may emit though nothing proves that they are in a transaction: with
/// the feature `connection-emit`, which is on by default, all of them; without it, none.
///
/// Features add up: where any crate of a build switches it on, it is on for all, and what compiled
/// without it still does.
#[cfg_attr(
    not(feature = "connection-emit"),
    diagnostic::on_unimplemented(
        message = "events are emitted inside a transaction, and `{Self}` may be outside of one",
        label = "may be outside of a transaction",
        note = "write `conn.outbox_transaction(|tx| {{ ...; tx.emit(&event) }})`: `tx` is in a transaction",
        note = "or switch on the feature `connection-emit` of `outbox-diesel`: then every connection \
                emits, and outside of a transaction emit is an error when it runs"
    )
)]
pub trait MayEmit: LoadConnection<Backend = Pg> {}

#[cfg(feature = "connection-emit")]
impl<C: LoadConnection<Backend = Pg>> MayEmit for C {}

/// Emits events on synchronous connections: `PgConnection`, its pool guards and wrappers.
///
/// Needs the feature `connection-emit`. Without it,
/// [`outbox_transaction`](crate::OutboxTransaction::outbox_transaction) gives a handle that emits.
pub trait Emit: MayEmit {
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
        one(self, event)
    }

    /// Emits events in slice order, in one statement whatever their number.
    ///
    /// The slice may hold several types: `&[&created as &dyn OutboxEvent, &paid]`.
    ///
    /// # Errors
    /// As [`emit`](Self::emit). All are checked before any is sent.
    fn emit_all<E: OutboxEvent>(&mut self, events: &[E]) -> Result<Vec<Emitted>, EmitError> {
        all(self, events)
    }
}

impl<C: MayEmit> Emit for C {}

pub(crate) fn one<C: LoadConnection<Backend = Pg>, E: OutboxEvent + ?Sized>(
    conn: &mut C,
    event: &E,
) -> Result<Emitted, EmitError> {
    check_transaction(conn)?;
    let row = Row::new(event)?;
    if let Some(lock) = lock::writers(slice::from_ref(&row)) {
        conn.execute_returning_count(&lock)?;
    }
    loop {
        let inserted = match insert::one(&row) {
            OneOf::Plain(insert) => conn.execute_returning_count(&insert)?,
            OneOf::Once(insert) => conn.execute_returning_count(&insert)?,
        };
        let Some(key) = row.dedup_key.as_deref().filter(|_| inserted == 0) else {
            metrics::emitted(1);
            return Ok(Emitted::New(row.id));
        };
        let claimed: Vec<(String, Uuid)> =
            diesel::RunQueryDsl::load(insert::find_claimed(vec![key]), conn)?;
        // None: the key ran out of its time between the two statements, so try again.
        if let Some((_, id)) = claimed.into_iter().next() {
            return Ok(Emitted::Duplicate(id));
        }
    }
}

pub(crate) fn all<C: LoadConnection<Backend = Pg>, E: OutboxEvent>(
    conn: &mut C,
    events: &[E],
) -> Result<Vec<Emitted>, EmitError> {
    check_transaction(conn)?;
    let rows = rows(events)?;
    if let Some(lock) = lock::writers(&rows) {
        conn.execute_returning_count(&lock)?;
    }
    let mut taken = Taken::default();
    let mut left: Vec<&Row> = rows.iter().collect();
    while !left.is_empty() {
        let columns = Columns::of(&left);
        let inserted = match insert::all(&columns) {
            OneOf::Plain(insert) => conn.execute_returning_count(&insert)?,
            OneOf::Once(insert) => conn.execute_returning_count(&insert)?,
        };
        if inserted == left.len() {
            break;
        }
        let found = insert::find_claimed(columns.keys());
        taken.extend(diesel::RunQueryDsl::load(found, conn)?);
        left.retain(|row| taken.is_unknown(row));
    }
    Ok(taken.outcomes(&rows))
}

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
        let outcomes: Vec<_> = rows
            .iter()
            .map(|row| match row.dedup_key.as_ref().and_then(|key| self.0.get(key)) {
                Some(&holder) if holder != row.id => Emitted::Duplicate(holder),
                _ => Emitted::New(row.id),
            })
            .collect();
        let is_new = |outcome: &&Emitted| matches!(outcome, Emitted::New(_));
        metrics::emitted(outcomes.iter().filter(is_new).count());
        outcomes
    }
}

#[cfg(feature = "async")]
pub(crate) mod asynchronous;

#[cfg(feature = "async")]
pub use self::asynchronous::{AsyncEmit, MayEmitAsync};
