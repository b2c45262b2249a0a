//! Partition: keeps the log's partitions ahead of the sequence, and its timeline short.

use diesel::sql_types::{Bool, Integer};

use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

const KEEP_AHEAD: &str = "SELECT outbox.keep_partitions_ahead()";

/// Creates the partitions that the next days need and returns how many it made.
pub(crate) async fn keep_ahead(session: &mut Session) -> Result<i32, SessionError> {
    let made: Vec<i32> = session.load(Mode::Durable, statement::<Integer>(KEEP_AHEAD)).await?;
    Ok(made.into_iter().sum())
}

const MAY_CREATE: &str =
    "SELECT has_function_privilege('outbox.keep_partitions_ahead()', 'EXECUTE')";

/// Whether the relay's role may create partitions at all.
pub(crate) async fn may_create(session: &mut Session) -> Result<bool, SessionError> {
    let may: Vec<bool> = session.load(Mode::Read, statement::<Bool>(MAY_CREATE)).await?;
    Ok(may.into_iter().all(|may| may))
}

// One message. The lock is a statement before the deletion: a subscription that was created at an
// old tick while we waited must be seen. Genesis stays, and for some days one tick in ten minutes:
// they tell how much traffic there was.
const DELETE_TICKS: &str = "\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = '200ms'; SET LOCAL statement_timeout = '2s';
SET LOCAL enable_seqscan = off; SET LOCAL jit = off;
SELECT pg_advisory_xact_lock(outbox.tick_lock_key());
DELETE FROM outbox.ticks t
WHERE t.tick IN (
    SELECT k.tick FROM outbox.ticks k,
        (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS tick) now
    WHERE k.tick > 0
      AND k.tick < (SELECT min(c.tick) FROM outbox.cursors c)
      AND k.tick < now.tick - 600000000
      AND (k.tick < now.tick - 8 * 86400000000
           OR EXISTS (SELECT FROM outbox.ticks earlier
                      WHERE earlier.tick >= k.tick - k.tick % 600000000 AND earlier.tick < k.tick))
    ORDER BY k.tick LIMIT 2000);
COMMIT";

/// Deletes ticks below every cursor, some at a time.
pub(crate) async fn delete_ticks(session: &mut Session) -> Result<(), SessionError> {
    session.batch(DELETE_TICKS).await
}
