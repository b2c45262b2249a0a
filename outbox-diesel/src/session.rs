//! A relay's own connection. Every statement runs in a transaction of its own with the settings
//! it needs: `SET LOCAL` also holds behind a transaction pooler, where a session's settings leak
//! to others and get lost.

use std::collections::HashSet;
use std::time::Duration;

use diesel::deserialize::FromSqlRow;
use diesel::pg::Pg;
use diesel::result::{Error, QueryResult};
use diesel::sql_types::Text;
use diesel_async::{AsyncConnectionCore, AsyncPgConnection, SimpleAsyncConnection};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use crate::statement::{Statement, Walk, statement};

/// A pool of the application's, of which the relay uses only the manager: its connections are its
/// own, opened the way the application opens them.
pub type Pool = diesel_async::pooled_connection::bb8::Pool<AsyncPgConnection>;

/// A row as it came.
pub(crate) type Row = <AsyncPgConnection as AsyncConnectionCore>::Row<'static, 'static>;

/// What a statement does, which decides how its transaction is set up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mode {
    /// Reads.
    Read,
    /// Writes what may be lost in a crash of the server: it would be done again.
    Relaxed,
    /// Writes what must not be lost, whatever the server's default is.
    Durable,
}

/// Why a statement of the relay failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// No connection could be opened.
    #[error("no connection to PostgreSQL could be opened")]
    Connect(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The server refused a statement, or the connection was lost.
    #[error("PostgreSQL failed a statement")]
    Query(#[from] diesel::result::Error),
    /// The server did not answer in time.
    #[error("PostgreSQL did not answer within {0:?}")]
    Timeout(Duration),
}

pub(crate) struct Session {
    conn: AsyncPgConnection,
    timeout: Duration,
    /// What the server is given, in milliseconds: a little less than we take, so that it does not go
    /// on alone.
    limit: String,
    /// How a transaction begins, by mode.
    begin: [String; 3],
    /// [`SETTINGS`] as a text without parameters.
    settings: String,
    /// Texts that this connection has prepared; None if it does not keep prepared statements.
    prepared: Option<HashSet<&'static str>>,
}

// row_security: a policy must be an error, never an empty diff. The plans: a plan cached while a
// partition was empty would scan it for ever, and a disabled scan's cost would start the JIT.
const SETTINGS: &str = "\
SELECT set_config('row_security', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true),
       set_config('statement_timeout', $1, true), set_config('lock_timeout', $2, true),
       set_config('idle_in_transaction_session_timeout', $3, true)";

const PROBE: &str = "SELECT current_setting('plan_cache_mode')";

impl Session {
    /// Opens a connection through the pool's manager, outside of the pool: the application cannot
    /// starve the relay, nor the relay the application.
    pub(crate) async fn open(pool: Pool, timeout: Duration) -> Result<Self, SessionError> {
        // By value and boxed, or rustc cannot tell that the relay's future is Send.
        let connect = async move { pool.dedicated_connection().await }.boxed();
        let conn = tokio::time::timeout(timeout, connect)
            .await
            .map_err(|_| SessionError::Timeout(timeout))?
            .map_err(|error| SessionError::Connect(Box::new(error)))?;
        let limit = timeout.mul_f32(0.9).as_millis().to_string();
        let literal = format!("'{limit}'");
        let settings = ["$1", "$2", "$3"]
            .iter()
            .fold(SETTINGS.to_owned(), |text, parameter| text.replace(parameter, &literal));
        let begin = |rest: &str| format!("BEGIN ISOLATION LEVEL READ COMMITTED {rest}");
        let mut session = Self {
            conn,
            timeout,
            limit,
            begin: [
                begin("READ ONLY"),
                begin("READ WRITE; SET LOCAL synchronous_commit = off"),
                begin(&format!("READ WRITE; {DURABLE}")),
            ],
            settings,
            prepared: Some(HashSet::new()),
        };
        session.probe().await?;
        tracing::debug!(
            pipelined = session.prepared.is_some(),
            "opened a connection to PostgreSQL"
        );
        Ok(session)
    }

    /// BEGIN, settings, statement and COMMIT can travel together only if the statement is prepared: else its
    /// preparation would come between. Behind a transaction pooler statement caching is off. Tries
    /// once what a pipelined statement sees.
    async fn probe(&mut self) -> Result<(), SessionError> {
        bounded(self.timeout, set(&self.conn, &self.limit)).await?;
        for _ in 0..2 {
            let seen: Vec<String> = self.load(Mode::Read, statement::<Text>(PROBE)).await?;
            if seen != ["force_generic_plan"] {
                self.prepared = None;
                return Ok(());
            }
        }
        Ok(())
    }

    // The futures are boxed: rustc cannot tell that an `async fn` over diesel's generic query
    // futures is Send, and the relay is spawned.

    /// Runs a statement and returns its rows.
    pub(crate) fn load<'a, Returns, Binds, U>(
        &'a mut self,
        mode: Mode,
        statement: Statement<Returns, Binds>,
    ) -> BoxFuture<'a, Result<Vec<U>, SessionError>>
    where
        U: FromSqlRow<Returns, Pg> + Send + 'a,
        Binds: Walk + Send + 'static,
        Returns: 'static,
    {
        let mut rows = Vec::new();
        async move {
            self.stream(mode, statement, |row| {
                rows.push(U::build_from_row(&row).map_err(Error::DeserializationError)?);
                Ok(())
            })
            .await?;
            Ok(rows)
        }
        .boxed()
    }

    /// Runs a statement and hands each row to `each` as it comes.
    pub(crate) fn stream<'a, Returns, Binds>(
        &'a mut self,
        mode: Mode,
        statement: Statement<Returns, Binds>,
        mut each: impl FnMut(Row) -> QueryResult<()> + Send + 'a,
    ) -> BoxFuture<'a, Result<(), SessionError>>
    where
        Binds: Walk + Send + 'static,
        Returns: 'static,
    {
        let text = statement.text();
        self.transact(mode, text, move |mut conn| {
            async move {
                let mut rows = AsyncConnectionCore::load(&mut conn, statement).await?;
                while let Some(row) = rows.next().await {
                    each(row?)?;
                }
                Ok(())
            }
            .boxed()
        })
    }

    /// Runs a statement and returns the number of rows it touched.
    pub(crate) fn execute<Returns, Binds>(
        &mut self,
        mode: Mode,
        statement: Statement<Returns, Binds>,
    ) -> BoxFuture<'_, Result<usize, SessionError>>
    where
        Binds: Walk + Send + 'static,
        Returns: 'static,
    {
        let text = statement.text();
        self.transact(mode, text, move |mut conn| {
            async move { AsyncConnectionCore::execute_returning_count(&mut conn, statement).await }
                .boxed()
        })
    }

    /// Runs statements without binds and without results, as one message.
    pub(crate) fn batch<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<(), SessionError>> {
        let limit = self.timeout;
        bounded(limit, async move {
            let done = self.conn.batch_execute(sql).await;
            if done.is_err() {
                // The first error counts; if this fails too, the connection is gone.
                self.conn.batch_execute("ROLLBACK").await.ok();
            }
            done
        })
    }

    /// Runs one statement in a transaction: in one round trip if it is prepared, else in three.
    fn transact<'a, T: Send + 'a>(
        &'a mut self,
        mode: Mode,
        text: &'static str,
        work: impl FnOnce(&'a AsyncPgConnection) -> BoxFuture<'a, QueryResult<T>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, SessionError>> {
        let limit = self.timeout;
        bounded(limit, async move {
            let Self { conn, begin, settings, limit, prepared, .. } = self;
            let conn = &*conn;
            let begin = begin[mode as usize].as_str();
            if prepared.as_ref().is_some_and(|prepared| prepared.contains(text)) {
                // Polled in this order, and without tokio's budget that could skip one: each sends
                // its message when it is first polled. A failed statement makes the COMMIT a
                // rollback.
                let all = async {
                    tokio::join!(
                        send(conn, begin),
                        set(conn, limit),
                        work(conn),
                        send(conn, "COMMIT")
                    )
                };
                let (opened, set, done, ended) = tokio::task::unconstrained(all).await;
                opened?;
                set?;
                let done = done?;
                ended?;
                return Ok(done);
            }
            send(conn, &format!("{begin}; {settings}")).await?;
            match work(conn).await {
                Ok(done) => {
                    send(conn, "COMMIT").await?;
                    prepared.as_mut().map(|prepared| prepared.insert(text));
                    Ok(done)
                }
                Err(error) => {
                    // The first error counts; if this fails too, the connection is gone with its
                    // transaction.
                    send(conn, "ROLLBACK").await.ok();
                    Err(error)
                }
            }
        })
    }
}

/// Applies [`SETTINGS`]: prepared, since parsing them costs more than an idle poll.
async fn set(mut conn: &AsyncPgConnection, limit: &str) -> QueryResult<()> {
    let settings = statement::<()>(SETTINGS)
        .bind::<Text, _>(limit)
        .bind::<Text, _>(limit)
        .bind::<Text, _>(limit);
    AsyncConnectionCore::execute_returning_count(&mut conn, settings).await.map(drop)
}

async fn send(mut conn: &AsyncPgConnection, sql: &str) -> QueryResult<()> {
    conn.batch_execute(sql).await
}

/// Raises `off` only: `remote_apply` is somebody's choice too.
pub(crate) const DURABLE: &str = "\
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'; ";

fn bounded<'a, T: Send + 'a>(
    limit: Duration,
    work: impl Future<Output = QueryResult<T>> + Send + 'a,
) -> BoxFuture<'a, Result<T, SessionError>> {
    async move {
        match tokio::time::timeout(limit, work).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(SessionError::Timeout(limit)),
        }
    }
    .boxed()
}
