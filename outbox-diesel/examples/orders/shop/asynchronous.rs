//! The same shop with diesel-async's connections, from a pool.

use anyhow::Result;
use diesel::ExpressionMethods as _;
use diesel::result::Error::RollbackTransaction;
use diesel::result::QueryResult;
use diesel_async::pooled_connection::bb8::Pool;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use outbox_diesel::{AsyncEmit as _, Emitted};
use uuid::Uuid;

use super::{Ending, Purchase, orders};
use crate::ledger::Ledger;
use crate::schedule::Schedule;

/// One transaction; returns the ids of its events once it has committed.
async fn purchase(conn: &mut AsyncPgConnection, purchase: &Purchase) -> QueryResult<Vec<Uuid>> {
    conn.transaction(async |conn| {
        // Lock first, emit behind it.
        let revision: i64 = diesel::insert_into(orders::table)
            .values((orders::id.eq(purchase.order), orders::revision.eq(purchase.events)))
            .on_conflict(orders::id)
            .do_update()
            .set(orders::revision.eq(orders::revision + purchase.events))
            .returning(orders::revision)
            .get_result(conn)
            .await?;

        let events = purchase.events(revision);
        let mut ids = vec![conn.emit(&events[0]).await?.id()];
        ids.extend(conn.emit_all(&events[1..]).await?.iter().map(Emitted::id));

        if purchase.ending == Ending::VoucherRefused {
            conn.transaction(async |conn| {
                conn.emit(&purchase.voucher(revision)).await?;
                Err::<(), _>(RollbackTransaction)
            })
            .await
            .or_else(refused)?;
        }
        if purchase.ending == Ending::Declined {
            return Err(RollbackTransaction);
        }
        Ok(ids)
    })
    .await
}

/// What was rolled back on purpose is no error.
fn refused(error: diesel::result::Error) -> QueryResult<()> {
    if error == RollbackTransaction { Ok(()) } else { Err(error) }
}

/// Works through the schedule with connections from the pool.
pub(crate) async fn write(
    pool: Pool<AsyncPgConnection>,
    schedule: Schedule,
    ledger: Ledger,
) -> Result<()> {
    while let Some(task) = schedule.next() {
        if let Some(due) = task.due {
            tokio::time::sleep_until(due.into()).await;
        }
        let mut conn = pool.get().await?;
        match purchase(&mut conn, &task.purchase).await {
            Ok(ids) => ledger.commit(ids, task.due.is_some()),
            Err(error) => refused(error)?,
        }
    }
    Ok(())
}
