//! The same on asynchronous connections.

use diesel_async::{AsyncConnection, RunQueryDsl, TransactionManager};

use super::*;

/// Asynchronous connections that may emit though nothing proves that they are in a transaction; as
/// [`MayEmit`], and the handle of a transaction always.
#[cfg_attr(
    not(feature = "connection-emit"),
    diagnostic::on_unimplemented(
        message = "events are emitted inside a transaction, and `{Self}` may be outside of one",
        label = "may be outside of a transaction",
        note = "write `conn.outbox_transaction(async |tx| {{ ...; tx.emit(&event).await }})`: `tx` is in a \
                transaction",
        note = "or switch on the feature `connection-emit` of `outbox-diesel`: then every connection \
                emits, and outside of a transaction emit is an error when it runs"
    )
)]
pub trait MayEmitAsync: AsyncConnection<Backend = Pg> {}

#[cfg(feature = "connection-emit")]
impl<C: AsyncConnection<Backend = Pg>> MayEmitAsync for C {}

/// Emits events on asynchronous connections: `AsyncPgConnection` and its pool guards.
///
/// Needs the feature `connection-emit`. Without it,
/// [`outbox_transaction`](crate::AsyncOutboxTransaction::outbox_transaction) gives a handle that
/// emits.
///
/// # Cancel safety
/// Not cancel safe, like every statement of diesel-async: a dropped future may or may not have
/// inserted the event. Roll the transaction back, or drop the connection.
pub trait AsyncEmit: MayEmitAsync {
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
        one(self, event)
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
    ) -> impl Future<Output = Result<Vec<Emitted>, EmitError>> + Send + use<'conn, Self, E> {
        all(self, events)
    }
}

impl<C: MayEmitAsync> AsyncEmit for C {}

pub(crate) fn one<'conn, C: AsyncConnection<Backend = Pg>, E: OutboxEvent + ?Sized>(
    conn: &'conn mut C,
    event: &E,
) -> impl Future<Output = Result<Emitted, EmitError>> + Send + use<'conn, C, E> {
    let row = Row::new(event);
    async move {
        check_transaction(conn).await?;
        let row = row?;
        if let Some(lock) = lock::writers(slice::from_ref(&row)) {
            RunQueryDsl::execute(lock, conn).await?;
        }
        loop {
            let inserted = match insert::one(&row) {
                OneOf::Plain(insert) => RunQueryDsl::execute(insert, conn).await?,
                OneOf::Once(insert) => RunQueryDsl::execute(insert, conn).await?,
            };
            let Some(key) = row.dedup_key.as_deref().filter(|_| inserted == 0) else {
                metrics::emitted(1);
                return Ok(Emitted::New(row.id));
            };
            let claimed: Vec<(String, Uuid)> =
                RunQueryDsl::load(insert::find_claimed(vec![key]), conn).await?;
            if let Some((_, id)) = claimed.into_iter().next() {
                return Ok(Emitted::Duplicate(id));
            }
        }
    }
}

pub(crate) fn all<'conn, C: AsyncConnection<Backend = Pg>, E: OutboxEvent>(
    conn: &'conn mut C,
    events: &[E],
) -> impl Future<Output = Result<Vec<Emitted>, EmitError>> + Send + use<'conn, C, E> {
    let rows = rows(events);
    async move {
        check_transaction(conn).await?;
        let rows = rows?;
        if let Some(lock) = lock::writers(&rows) {
            RunQueryDsl::execute(lock, conn).await?;
        }
        let mut taken = Taken::default();
        let mut left: Vec<&Row> = rows.iter().collect();
        while !left.is_empty() {
            let columns = Columns::of(&left);
            let inserted = match insert::all(&columns) {
                OneOf::Plain(insert) => RunQueryDsl::execute(insert, conn).await?,
                OneOf::Once(insert) => RunQueryDsl::execute(insert, conn).await?,
            };
            if inserted == left.len() {
                break;
            }
            let found = insert::find_claimed(columns.keys());
            taken.extend(RunQueryDsl::load(found, conn).await?);
            left.retain(|row| taken.is_unknown(row));
        }
        Ok(taken.outcomes(&rows))
    }
}

async fn check_transaction<C: AsyncConnection<Backend = Pg>>(
    conn: &mut C,
) -> Result<(), EmitError> {
    let status = C::TransactionManager::transaction_manager_status_mut(conn);
    if status.transaction_depth()?.is_none() && conn.batch_execute(PROBE).await.is_err() {
        conn.batch_execute(IS_USABLE).await?;
        return Err(EmitError::NotInTransaction);
    }
    Ok(())
}
