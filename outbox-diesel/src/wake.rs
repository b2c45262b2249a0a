//! Wake: a relay that has nothing to do sleeps until an emit wakes it.
//!
//! `NOTIFY` serialises commits, so emits notify only while a register says that a relay may be asleep.
//! A relay that falls asleep listens, takes a lock that all sleepers share, sets the register, waits
//! until transactions that may have read it before have ended, and looks a last time. Who is awake
//! resets the register only if nobody holds the lock. A relay that dies loses the lock with its
//! session, and what it wrote into the register runs out.

use std::sync::Arc;
use std::time::Duration;

use bb8::ManageConnection as _;
use diesel::data_types::PgInterval;
use diesel::pg::PgNotification;
use diesel::result::{Error, QueryResult};
use diesel::sql_types::{Array, BigInt, Bool, Interval, Nullable, SmallInt, Text};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection as _};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};

use crate::session::{Mode, Pool, Session, SessionError};
use crate::snapshot::Xid;
use crate::snapshot::sql_types::Xid8;
use crate::statement::statement;

/// What opens connections that reach the server itself.
pub(crate) type Manager = AsyncDieselConnectionManager<AsyncPgConnection>;

/// Where the connection that listens comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// The same place as all others.
    Pool(Pool),
    /// Past the pooler.
    Direct(Arc<Manager>),
}

/// What the triggers say, and relays that come and go.
const EVENT: &str = "event";
pub(crate) const CHANGE: &str = "change";

/// What a notification says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// A transaction that emitted has committed.
    Event,
    /// An operator has changed something.
    Change,
    /// Somebody tries whether notifications arrive, by this token.
    Trial(String),
}

/// A connection that listens, and does nothing else: it is never in a transaction, where it would
/// hold up the clean-up of the server's queue.
pub(crate) struct Listener {
    conn: AsyncPgConnection,
    timeout: Duration,
}

impl Listener {
    /// Opens a connection and listens. Whether it hears anything is another question: behind a
    /// transaction pooler it does not.
    pub(crate) fn open(
        source: Source,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Self, SessionError>> {
        async move {
            let failed = |error| SessionError::Connect(Box::new(error));
            let connect = async {
                match source {
                    Source::Pool(pool) => pool.dedicated_connection().await.map_err(failed),
                    Source::Direct(manager) => manager.connect().await.map_err(failed),
                }
            };
            let conn = tokio::time::timeout(timeout, connect)
                .await
                .map_err(|_| SessionError::Timeout(timeout))??;
            let mut listener = Self { conn, timeout };
            listener.run("LISTEN outbox_wake").await?;
            Ok(listener)
        }
        .boxed()
    }

    /// Takes the lock that all sleepers share. It goes with the session.
    pub(crate) async fn hold(&mut self) -> Result<(), SessionError> {
        self.run("SELECT pg_advisory_lock_shared(outbox.sleep_lock_key())").await
    }

    /// Gives it back, however often it was taken.
    pub(crate) async fn let_go(&mut self) -> Result<(), SessionError> {
        self.run("SELECT pg_advisory_unlock_all()").await
    }

    /// The next notification.
    ///
    /// # Cancel safety
    /// None is lost.
    pub(crate) async fn hear(&mut self) -> Result<Heard, SessionError> {
        let next = std::pin::pin!(self.conn.notifications_stream()).next().await;
        read(next)
    }

    /// The next notification, if one has arrived.
    pub(crate) fn heard(&mut self) -> Option<Result<Heard, SessionError>> {
        let next = std::pin::pin!(self.conn.notifications_stream()).next().now_or_never();
        next.map(read)
    }

    /// Delivery waits for it, so not for long: a connection that fell silent can be done without.
    fn run(&mut self, sql: &'static str) -> BoxFuture<'_, Result<(), SessionError>> {
        let limit = self.timeout.min(Duration::from_secs(1));
        async move {
            match tokio::time::timeout(limit, self.conn.batch_execute(sql)).await {
                Ok(done) => Ok(done?),
                Err(_) => Err(SessionError::Timeout(limit)),
            }
        }
        .boxed()
    }
}

/// The stream ends after the connection is lost.
fn read(next: Option<QueryResult<PgNotification>>) -> Result<Heard, SessionError> {
    let lost = || Error::BrokenTransactionManager;
    let notification = next.ok_or_else(lost)??;
    Ok(match notification.payload.as_str() {
        EVENT => Heard::Event,
        CHANGE => Heard::Change,
        _ => Heard::Trial(notification.payload),
    })
}

const PREPARED: &str = "SELECT current_setting('max_prepared_transactions')::bigint";

/// How many transactions may be prepared at once: not one, if emits are to notify.
pub(crate) async fn max_prepared_transactions(session: &mut Session) -> Result<i64, SessionError> {
    let allowed: Vec<i64> = session.load(Mode::Read, statement::<BigInt>(PREPARED)).await?;
    Ok(allowed.into_iter().next().unwrap_or(0))
}

const MISSING: &str = "\
SELECT string_agg(format('GRANT EXECUTE ON FUNCTION %s TO %I', f.oid::regprocedure, current_user), '; ')
FROM pg_proc f
WHERE f.pronamespace = 'outbox'::regnamespace
  AND f.proname IN ('install_wake', 'fall_asleep', 'wake_up')
  AND NOT has_function_privilege(f.oid, 'EXECUTE')";

/// What an administrator must run for this role; None if it has its rights.
pub(crate) async fn missing_rights(session: &mut Session) -> Result<Option<String>, SessionError> {
    let missing: Vec<Option<String>> =
        session.load(Mode::Read, statement::<Nullable<Text>>(MISSING)).await?;
    Ok(missing.into_iter().next().flatten())
}

const INSTALL: &str = "SELECT outbox.install_wake()";

/// Installs the triggers; false if they were there.
pub(crate) async fn install(session: &mut Session) -> Result<bool, SessionError> {
    let installed: Vec<bool> = session.load(Mode::Durable, statement::<Bool>(INSTALL)).await?;
    Ok(installed.into_iter().next().unwrap_or(false))
}

const SEND: &str = "SELECT 1::bigint FROM pg_notify('outbox_wake', $1::text)";

/// Notifies all that listen. A trial comes from another session than the one that listens: behind a
/// transaction pooler that one might hear itself while its own transaction lasts, and nothing ever
/// after.
pub(crate) async fn send(session: &mut Session, what: String) -> Result<(), SessionError> {
    let send = statement::<BigInt>(SEND).bind::<Text, _>(what);
    session.execute(Mode::Relaxed, send).await?;
    Ok(())
}

const FALL_ASLEEP: &str = "\
SELECT s.is_installed, s.was_awake FROM outbox.fall_asleep($1::interval) s, pg_notify('outbox_wake', $2::text)";

/// What the register was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Register {
    /// Emits can notify at all.
    pub(crate) is_installed: bool,
    /// It said that nobody sleeps, and transactions may have believed it that are still open.
    pub(crate) was_awake: bool,
}

/// Writes into the register that this relay may be asleep for that long, and notifies of a trial.
pub(crate) async fn fall_asleep(
    session: &mut Session,
    asleep_for: Duration,
    token: String,
) -> Result<Register, SessionError> {
    let micros = i64::try_from(asleep_for.as_micros()).unwrap_or(i64::MAX);
    let seen: Vec<(bool, bool)> = session
        .load(
            Mode::Relaxed,
            statement::<(Bool, Bool)>(FALL_ASLEEP)
                .bind::<Interval, _>(PgInterval::from_microseconds(micros))
                .bind::<Text, _>(token),
        )
        .await?;
    let (is_installed, was_awake) = seen.into_iter().next().ok_or(Error::NotFound)?;
    Ok(Register { is_installed, was_awake })
}

// A transaction of its own: the one that set the register had its xid before the register changed.
const NOW: &str = "SELECT pg_current_xact_id()";

/// An xid above those of all transactions that may have read the register before it was set.
pub(crate) async fn draw_xid(session: &mut Session) -> Result<Xid, SessionError> {
    let xids: Vec<Xid> = session.load(Mode::Relaxed, statement::<Xid8>(NOW)).await?;
    Ok(xids.into_iter().next().ok_or(Error::NotFound)?)
}

const HAVE_ENDED: &str = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= $1::xid8";

/// Whether all transactions below this one have ended.
pub(crate) async fn have_ended(session: &mut Session, below: Xid) -> Result<bool, SessionError> {
    let ended: Vec<bool> =
        session.load(Mode::Read, statement::<Bool>(HAVE_ENDED).bind::<Xid8, _>(below)).await?;
    Ok(ended.into_iter().next().unwrap_or(false))
}

const WAKE_UP: &str = "SELECT outbox.wake_up()";

/// Resets the register; false if another relay is asleep.
pub(crate) async fn wake_up(session: &mut Session) -> Result<bool, SessionError> {
    let awake: Vec<bool> = session.load(Mode::Relaxed, statement::<Bool>(WAKE_UP)).await?;
    Ok(awake.into_iter().next().unwrap_or(false))
}

const NEXT_DUE: &str = "\
SELECT (extract(epoch FROM min(p.next_attempt_at) - clock_timestamp()) * 1000)::bigint
FROM outbox.parked p
WHERE p.subscription = $1 AND p.shard = ANY ($2::smallint[]) AND p.next_attempt_at IS NOT NULL";

/// How long until the next retry of these shards is due; None if there is none.
pub(crate) async fn next_due(
    session: &mut Session,
    subscription: String,
    shards: Vec<i16>,
) -> Result<Option<Duration>, SessionError> {
    let due: Vec<Option<i64>> = session
        .load(
            Mode::Read,
            statement::<Nullable<BigInt>>(NEXT_DUE)
                .bind::<Text, _>(subscription)
                .bind::<Array<SmallInt>, _>(shards),
        )
        .await?;
    let millis = due.into_iter().next().flatten();
    Ok(millis.map(|millis| Duration::from_millis(u64::try_from(millis).unwrap_or(0))))
}
