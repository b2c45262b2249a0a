//! A relay's own connection. Every statement runs in a transaction of its own with the settings
//! it needs: `SET LOCAL` also holds behind a transaction pooler, where a session's settings leak
//! to others and get lost.

use std::time::Duration;

use diesel::pg::Pg;
use diesel::query_builder::{QueryFragment, QueryId};
use diesel::result::QueryResult;
use diesel_async::methods::LoadQuery;
use diesel_async::{AsyncConnectionCore, AsyncPgConnection, RunQueryDsl, SimpleAsyncConnection};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};

use crate::statement::{Statement, Walk};

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
    begin: [String; 3],
}

// row_security: a policy must be an error, never an empty diff. The plans: a plan cached while a
// partition was empty would scan it for ever, and a disabled scan's cost would start the JIT.
const SETTINGS: &str = "\
SET LOCAL row_security = off; \
SET LOCAL plan_cache_mode = force_generic_plan; \
SET LOCAL enable_seqscan = off; \
SET LOCAL jit = off; ";

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
        // The server gives up a little earlier than we do, so that it does not go on alone.
        let limit = timeout.mul_f32(0.9).as_millis();
        let timeouts = format!(
            "SET LOCAL statement_timeout = {limit}; SET LOCAL lock_timeout = {limit}; \
             SET LOCAL idle_in_transaction_session_timeout = {limit}"
        );
        let begin = |access: &str, commit: &str| {
            format!("BEGIN ISOLATION LEVEL READ COMMITTED {access}; {SETTINGS}{commit}{timeouts}")
        };
        Ok(Self {
            conn,
            timeout,
            begin: [
                begin("READ ONLY", ""),
                begin("READ WRITE", "SET LOCAL synchronous_commit = off; "),
                begin("READ WRITE", DURABLE),
            ],
        })
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
        U: Send + 'a,
        Binds: Send + 'static,
        Returns: 'static,
        Statement<Returns, Binds>: LoadQuery<'static, AsyncPgConnection, U> + Send + 'static,
    {
        let limit = self.timeout;
        bounded(limit, async move {
            self.begin(mode).await?;
            let rows = RunQueryDsl::load(statement, &mut self.conn).await;
            self.end(rows).await
        })
    }

    /// Runs a statement that reads and hands each row to `each` as it comes.
    pub(crate) fn stream<'a, Returns, Binds>(
        &'a mut self,
        statement: Statement<Returns, Binds>,
        mut each: impl FnMut(Row) -> QueryResult<()> + Send + 'a,
    ) -> BoxFuture<'a, Result<(), SessionError>>
    where
        Binds: Walk + Send + 'static,
        Returns: 'static,
    {
        let limit = self.timeout;
        bounded(limit, async move {
            self.begin(Mode::Read).await?;
            let done = match AsyncConnectionCore::load(&mut self.conn, statement).await {
                Ok(mut rows) => loop {
                    match rows.next().await {
                        None => break Ok(()),
                        Some(Err(error)) => break Err(error),
                        Some(Ok(row)) => {
                            if let Err(error) = each(row) {
                                break Err(error);
                            }
                        }
                    }
                },
                Err(error) => Err(error),
            };
            self.end(done).await
        })
    }

    /// Runs a statement and returns the number of rows it touched.
    pub(crate) fn execute<Q>(
        &mut self,
        mode: Mode,
        statement: Q,
    ) -> BoxFuture<'_, Result<usize, SessionError>>
    where
        Q: QueryFragment<Pg> + QueryId + Send + 'static,
    {
        let limit = self.timeout;
        bounded(limit, async move {
            self.begin(mode).await?;
            let count = RunQueryDsl::execute(statement, &mut self.conn).await;
            self.end(count).await
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

    async fn begin(&mut self, mode: Mode) -> QueryResult<()> {
        self.conn.batch_execute(&self.begin[mode as usize]).await
    }

    async fn end<T>(&mut self, result: QueryResult<T>) -> QueryResult<T> {
        match result {
            Ok(value) => self.conn.batch_execute("COMMIT").await.map(|()| value),
            Err(error) => {
                // The first error counts; if this fails too, the connection is gone with its
                // transaction.
                self.conn.batch_execute("ROLLBACK").await.ok();
                Err(error)
            }
        }
    }
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
