//! The shop with diesel's own connections.

use std::thread;
use std::time::Instant;

use anyhow::Result;
use diesel::prelude::*;
use diesel::result::Error::RollbackTransaction;
use outbox_diesel::{Emit as _, Emitted};
use uuid::Uuid;

use super::{Ending, Purchase, orders};
use crate::ledger::Ledger;
use crate::schedule::Schedule;

/// One transaction; returns the ids of its events once it has committed.
fn purchase(conn: &mut PgConnection, purchase: &Purchase) -> QueryResult<Vec<Uuid>> {
    conn.transaction(|conn| {
        // This locks the order until the commit. Emitting behind the lock is what keeps the
        // order's events in the order of its changes.
        let revision: i64 = diesel::insert_into(orders::table)
            .values((orders::id.eq(purchase.order), orders::revision.eq(purchase.events)))
            .on_conflict(orders::id)
            .do_update()
            .set(orders::revision.eq(orders::revision + purchase.events))
            .returning(orders::revision)
            .get_result(conn)?;

        let events = purchase.events(revision);
        let mut ids = vec![conn.emit(&events[0])?.id()];
        ids.extend(conn.emit_all(&events[1..])?.iter().map(Emitted::id));

        if purchase.ending == Ending::VoucherRefused {
            // A savepoint takes its events with it, and nothing else.
            conn.transaction(|conn| {
                conn.emit(&purchase.voucher(revision))?;
                Err::<(), _>(RollbackTransaction)
            })
            .or_else(refused)?;
        }
        if purchase.ending == Ending::Declined {
            return Err(RollbackTransaction);
        }
        Ok(ids)
    })
}

/// What was rolled back on purpose is no error.
fn refused(error: diesel::result::Error) -> QueryResult<()> {
    if error == RollbackTransaction { Ok(()) } else { Err(error) }
}

/// Works through the schedule on a connection of its own.
pub(crate) fn write(url: &str, schedule: &Schedule, ledger: &Ledger) -> Result<()> {
    let mut conn = PgConnection::establish(url)?;
    while let Some(task) = schedule.next() {
        if let Some(due) = task.due {
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        match purchase(&mut conn, &task.purchase) {
            Ok(ids) => ledger.commit(ids, task.due.is_some()),
            Err(error) => refused(error)?,
        }
    }
    Ok(())
}
