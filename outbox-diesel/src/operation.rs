//! Operation: what operators' calls have in common: their errors, and a transaction that commits
//! durably and waits for no lock for long.

use diesel::pg::Pg;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::{Error, QueryResult};
use diesel_async::methods::LoadQuery;
use diesel_async::{AnsiTransactionManager, TransactionManager as _};
use diesel_async::{AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::session::DURABLE;
use crate::statement::{Statement, statement};

/// Why an operator's call did nothing. Nothing is half done: each call is one transaction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The connection is in a transaction. Locks and ticks need one of their own: call it outside.
    #[error("an operator's call needs a connection that is not in a transaction")]
    InTransaction,
    /// No such subscription; look for a typing error in the name.
    #[error("there is no subscription {0:?}")]
    NoSubscription(String),
    /// The event is neither in the log nor parked nor discarded: it was never committed, or it is
    /// older than the retention.
    #[error("there is no event {0}")]
    NoEvent(Uuid),
    /// The event is not parked, so there is nothing to retry or discard. The status says why:
    /// published (somebody else was faster, perhaps), pending, discarded, …
    #[error("event {event_id} is not parked in subscription {subscription:?}: it is {status}")]
    NotParked {
        /// The event.
        event_id: Uuid,
        /// The subscription.
        subscription: String,
        /// What it is instead.
        status: &'static str,
    },
    /// The event has not failed: it waits for an earlier one of its aggregate. Retry or discard
    /// that one.
    #[error("event {event_id} waits behind event {behind}; retry or discard that one")]
    Held {
        /// The event.
        event_id: Uuid,
        /// The first one of its aggregate.
        behind: Uuid,
    },
    /// The event can't be discarded before its subscription's cursor has passed it, or a crash
    /// would send it. No relay is running, or the broker is away: mend that first.
    #[error("the cursor has not passed event {0} yet; is a relay running?")]
    NotPassed(Uuid),
    /// A discard needs a reason that somebody can read in a year.
    #[error("a reason is needed")]
    NoReason,
    /// Relays are running. Stop them first.
    #[error("{relays} relays of subscription {subscription:?} are running; stop them first")]
    RelaysLive {
        /// The subscription.
        subscription: String,
        /// How many.
        relays: i64,
    },
    /// The log does not hold what was asked for any more.
    #[error("the log was kept only from event {kept_from} on; {asked} was asked for")]
    NotKept {
        /// The lowest `seq` that is kept.
        kept_from: i64,
        /// The lowest `seq` that was asked for.
        asked: i64,
    },
    /// Consumers' inboxes may have forgotten this event, one of those that would be sent
    /// again, and would have it handled once more: its id is no UUIDv7, and it is older than 14
    /// days. Rewind to a later time; a replay that is told so sends such events too.
    #[error(
        "event {0} would be sent again, and inboxes may have forgotten it: its id is no UUIDv7, and it is older than 14 days"
    )]
    MayBeForgotten(Uuid),
    /// What was planned is not what would be done now. Make the plan again and look at it.
    #[error("the plan is outdated: {0}")]
    PlanOutdated(&'static str),
    /// This database is the one that the outbox was made in, and its sequence is in order.
    #[error("there is nothing to rebase")]
    NothingToRebase,
    /// The subscription has a replay that has not ended. Wait for it, or cancel it.
    #[error("replay {0} is under way")]
    ReplayRunning(Uuid),
    /// No such replay.
    #[error("there is no replay {0}")]
    NoReplay(Uuid),
    /// No partition could be made. Relays go on trying, ever more rarely; events that find none go to
    /// the default partition and are delivered all the same.
    #[error("no partition could be made: {0}")]
    NoPartition(String),
    /// A lock was not to be had within seconds: a long transaction holds it. Try again.
    #[error("a lock was held by others for too long; try again")]
    Busy(#[source] Error),
    /// What the database says.
    #[error("PostgreSQL failed a statement")]
    Database(#[source] Error),
}

impl From<Error> for AdminError {
    fn from(error: Error) -> Self {
        // diesel has no kind for it.
        let is_lock = |message: &str| message.contains("lock timeout");
        match &error {
            Error::AlreadyInTransaction => Self::InTransaction,
            Error::DatabaseError(_, info) if is_lock(info.message()) => Self::Busy(error),
            _ => Self::Database(error),
        }
    }
}

// The futures are boxed: rustc cannot tell that an `async fn` over diesel's generic query futures
// is Send.

/// Runs a statement in whatever transaction there is, and returns its rows.
pub(crate) fn load<'a, Returns, Binds, U>(
    conn: &'a mut AsyncPgConnection,
    statement: Statement<Returns, Binds>,
) -> BoxFuture<'a, QueryResult<Vec<U>>>
where
    U: Send + 'a,
    Binds: Send + 'static,
    Returns: 'static,
    Statement<Returns, Binds>: LoadQuery<'static, AsyncPgConnection, U> + Send + 'static,
{
    async move { RunQueryDsl::load(statement, conn).await }.boxed()
}

/// Runs a statement and returns the number of rows it touched.
pub(crate) fn execute<Q>(
    conn: &mut AsyncPgConnection,
    statement: Q,
) -> BoxFuture<'_, QueryResult<usize>>
where
    Q: QueryFragment<Pg> + QueryId + Send + 'static,
{
    async move { RunQueryDsl::execute(statement, conn).await }.boxed()
}

/// Begins an operation. A plan with sequential scans is as good as another here: rows are few, or
/// all of them are asked for.
pub(crate) async fn begin(conn: &mut AsyncPgConnection) -> Result<(), AdminError> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    if status.transaction_depth()?.is_some() {
        return Err(AdminError::InTransaction);
    }
    // No statement timeout: a commit that was cancelled while it waits for a standby is visible,
    // but not durable.
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL row_security = off; \
         SET LOCAL jit = off; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '5s'; \
         SET LOCAL idle_in_transaction_session_timeout = '30s'; {DURABLE}"
    );
    Ok(conn.batch_execute(&begin).await?)
}

const BEGIN_LOOK: &str = "\
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL row_security = off; SET LOCAL jit = off; \
SET LOCAL enable_seqscan = off; SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '5s'; \
SET LOCAL idle_in_transaction_session_timeout = '30s'";

/// Begins a look: nothing is written, all statements see the same, and every table is read by its
/// indexes. Works on a standby too.
pub(crate) async fn begin_look(conn: &mut AsyncPgConnection) -> Result<(), AdminError> {
    let status = AnsiTransactionManager::transaction_manager_status_mut(conn);
    if status.transaction_depth()?.is_some() {
        return Err(AdminError::InTransaction);
    }
    Ok(conn.batch_execute(BEGIN_LOOK).await?)
}

/// Commits an operation that went well, else rolls it back.
pub(crate) async fn end<T>(
    conn: &mut AsyncPgConnection,
    result: Result<T, AdminError>,
) -> Result<T, AdminError> {
    match result {
        Ok(done) => conn.batch_execute("COMMIT").await.map(|()| done).map_err(AdminError::from),
        Err(error) => {
            // The first error counts; a lost connection is rolled back anyway.
            conn.batch_execute("ROLLBACK").await.ok();
            Err(error)
        }
    }
}

/// Keeps ticks from being taken and deleted, and other operations like this one from running. A
/// statement of its own, so that what comes next sees what was done before.
pub(crate) async fn lock_ticks(conn: &mut AsyncPgConnection) -> Result<(), AdminError> {
    const LOCK: &str = "SELECT pg_advisory_xact_lock(outbox.tick_lock_key())";
    Ok(conn.batch_execute(LOCK).await?)
}

/// Takes a tick as the first thing of an operation that writes, and keeps the tick lock.
pub(crate) async fn take_tick(conn: &mut AsyncPgConnection) -> Result<i64, AdminError> {
    const TAKE: &str = "SELECT outbox.take_tick()";
    lock_ticks(conn).await?;
    let taken: Vec<i64> = load(conn, statement::<diesel::sql_types::BigInt>(TAKE)).await?;
    Ok(taken.into_iter().next().ok_or(Error::NotFound)?)
}

const NOTICE: &str = "\
INSERT INTO outbox.revisions (subscription) SELECT name FROM outbox.subscriptions WHERE name = $1
ON CONFLICT (subscription) DO UPDATE SET revision = revisions.revision + 1";

/// Lets the subscription's relays notice what this operation did, when it commits. An error if
/// there is no such subscription.
pub(crate) async fn notice(
    conn: &mut AsyncPgConnection,
    subscription: &str,
) -> Result<(), AdminError> {
    let name = subscription.to_owned();
    let notice = statement::<()>(NOTICE).bind::<diesel::sql_types::Text, _>(name);
    match execute(conn, notice).await? {
        0 => Err(AdminError::NoSubscription(subscription.to_owned())),
        _ => Ok(()),
    }
}
