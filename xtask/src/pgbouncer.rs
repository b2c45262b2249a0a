//! Private PgBouncer servers in front of a private PostgreSQL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::account::{self, Account};
use crate::directory::ServerDirectory;
use crate::error::ServerError;
use crate::postgres::Postgres;
use crate::process::{Running, on_free_port, on_same_port};
use crate::programs;

/// When a server connection goes back to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// After each transaction: no session state survives it.
    Transaction,
    /// After each statement: transactions are refused.
    Statement,
}

impl fmt::Display for PoolMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        })
    }
}

/// A pooler on a port of its own, with every database of the PostgreSQL it was started for.
/// Dropping it ends it.
#[derive(Debug)]
pub struct PgBouncer {
    // Declared before `directory`, hence dropped before it.
    server: Option<Running>,
    directory: ServerDirectory,
    program: PathBuf,
    account: Account,
    port: u16,
}

impl PgBouncer {
    /// Returns once it listens. Whoever connects is `postgres` towards the server.
    pub fn start(postgres: &Postgres, pool_mode: PoolMode) -> Result<Self, ServerError> {
        let program = programs::find_pgbouncer()
            .ok_or(ServerError::ProgramMissing { program: "pgbouncer" })?;
        let account = account::unprivileged()?;
        let directory = ServerDirectory::create(account)?;
        let (port, server) = on_free_port(|port| {
            configure(&directory, postgres.port(), pool_mode, port)?;
            serve(&program, account, &directory)
        })?;
        Ok(Self { server: Some(server), directory, program, account, port })
    }

    /// Kills it with SIGKILL; its clients lose their connections. Does nothing if it is down.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        match self.server.take() {
            Some(server) => server.finish(Signal::SIGKILL, Duration::from_secs(10)),
            None => Ok(()),
        }
    }

    /// Starts it again on the same port, killing it first if it runs.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill()?;
        self.server = Some(on_same_port(|| serve(&self.program, self.account, &self.directory))?);
        Ok(())
    }

    /// The address of a database through the pooler.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port it listens on, the same for its whole life.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Running::pid)
    }
}

fn configure(
    directory: &ServerDirectory,
    postgres: u16,
    pool_mode: PoolMode,
    port: u16,
) -> Result<(), ServerError> {
    let text = format!(
        "[databases]\n\
         * = host=127.0.0.1 port={postgres} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = {pool_mode}\n\
         default_pool_size = 50\n\
         max_client_conn = 500\n\
         ignore_startup_parameters = extra_float_digits\n"
    );
    std::fs::write(configuration(directory), text)
        .map_err(ServerError::io("write PgBouncer's configuration"))
}

fn configuration(directory: &ServerDirectory) -> PathBuf {
    directory.path().join("pgbouncer.ini")
}

fn serve(
    program: &Path,
    account: Account,
    directory: &ServerDirectory,
) -> Result<Running, ServerError> {
    let mut command = Command::new(program);
    command.arg(configuration(directory));
    let mut server =
        Running::spawn("pgbouncer", account.apply(&mut command), directory, Signal::SIGKILL)?;
    server.wait_until(|server| server.log().contains("process up"))?;
    Ok(server)
}
