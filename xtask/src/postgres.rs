//! Private PostgreSQL servers.

mod copy;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

pub use self::copy::Copy;
use crate::account::{self, Account};
use crate::directory::ServerDirectory;
use crate::error::ServerError;
use crate::process::{self, Running, on_free_port, on_same_port};
use crate::programs::{self, PostgresPrograms};

/// Enough for every test, small enough for a laptop.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("max_connections", "200"),
    ("max_prepared_transactions", "20"),
    ("shared_buffers", "256MB"),
];

/// What survives a crash of the machine. A crash of the server alone loses nothing either way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Durability {
    /// PostgreSQL's defaults: what is committed survives.
    #[default]
    Full,
    /// Nothing is forced to disk: for tests, which then run several times faster.
    None,
}

/// How a server is set up.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    durability: Durability,
    programs: Option<PostgresPrograms>,
    settings: Vec<(String, String)>,
}

impl Options {
    /// What survives a crash of the machine. Default: [`Durability::Full`].
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Which installation serves. Default: that of [`programs::find_postgres`].
    #[must_use]
    pub fn programs(mut self, programs: PostgresPrograms) -> Self {
        self.programs = Some(programs);
        self
    }

    /// One setting of `postgresql.conf`, over ours. Default: 200 connections, 20 prepared
    /// transactions, 256 MB of shared buffers, everything else as PostgreSQL has it.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// A PostgreSQL server on a port of its own. Dropping it ends it and removes its data.
///
/// The superuser is `postgres`, without a password, over TCP from this machine only.
#[derive(Debug)]
pub struct Postgres {
    // Declared before `directory`, hence dropped before it.
    server: Option<Running>,
    directory: ServerDirectory,
    programs: PostgresPrograms,
    account: Account,
    options: Options,
    port: u16,
}

impl Postgres {
    /// Creates a cluster and returns once it accepts connections: about a second.
    pub fn start(options: Options) -> Result<Self, ServerError> {
        let programs = options
            .programs
            .clone()
            .or_else(programs::find_postgres)
            .ok_or(ServerError::ProgramMissing { program: "postgres" })?;
        let account = account::unprivileged()?;
        let directory = ServerDirectory::create(account)?;
        initdb(&programs, account, &directory)?;
        let (port, server) =
            on_free_port(|port| serve(&programs, account, &directory, &options, port))?;
        Ok(Self { server: Some(server), directory, programs, account, options, port })
    }

    /// Stops it as `pg_ctl stop --mode fast` does: sessions are cut, data is flushed. Does nothing
    /// if it is down.
    pub fn stop(&mut self) -> Result<(), ServerError> {
        self.end(Signal::SIGINT)
    }

    /// Crashes it as `pg_ctl stop --mode immediate` does: every process exits at once, nothing is
    /// flushed, and the next start recovers from the WAL. Does nothing if it is down.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.end(Signal::SIGQUIT)
    }

    /// Starts it again with the same data on the same port, stopping it first if it runs.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.stop()?;
        let server = on_same_port(|| {
            serve(&self.programs, self.account, &self.directory, &self.options, self.port)
        })?;
        self.server = Some(server);
        Ok(())
    }

    /// The address of one of its databases for the superuser. `postgres` and `template1` exist.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port it listens on, the same for its whole life.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The postmaster's process id while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Running::pid)
    }

    /// What it has logged since the last start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.as_ref().map(Running::log).unwrap_or_default()
    }

    fn end(&mut self, signal: Signal) -> Result<(), ServerError> {
        match self.server.take() {
            Some(server) => server.finish(signal, Duration::from_secs(30)),
            None => Ok(()),
        }
    }
}

fn data(directory: &ServerDirectory) -> PathBuf {
    directory.path().join("data")
}

fn initdb(
    programs: &PostgresPrograms,
    account: Account,
    directory: &ServerDirectory,
) -> Result<(), ServerError> {
    // glibc has had C.UTF-8 for long; elsewhere only C is sure to exist.
    let locale = if cfg!(target_os = "linux") { "C.UTF-8" } else { "C" };
    let mut command = Command::new(programs.program("initdb"));
    command
        .arg("--pgdata")
        .arg(data(directory))
        .args(["--username", "postgres", "--auth", "trust", "--encoding", "UTF8"])
        .args(["--locale", locale, "--no-sync"]);
    process::run("initdb", account.apply(&mut command), directory.path())
}

fn serve(
    programs: &PostgresPrograms,
    account: Account,
    directory: &ServerDirectory,
    options: &Options,
    port: u16,
) -> Result<Running, ServerError> {
    let data = data(directory);
    let mut command = Command::new(programs.program("postgres"));
    command.arg("-D").arg(&data).arg("-p").arg(port.to_string());
    for (name, value) in SETTINGS {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    if options.durability == Durability::None {
        command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    for (name, value) in &options.settings {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    // SIGQUIT and not SIGKILL, even in the end: the postmaster takes its children along.
    let mut server =
        Running::spawn("postgres", account.apply(&mut command), directory, Signal::SIGQUIT)?;
    server.wait_until(|server| is_ready(&data, server.pid()))?;
    Ok(server)
}

/// Reads `postmaster.pid` as `pg_ctl --wait` does: line 1 is the pid, line 8 the status
/// (`standby` once a standby takes connections).
fn is_ready(data: &Path, pid: u32) -> bool {
    let Ok(text) = std::fs::read_to_string(data.join("postmaster.pid")) else { return false };
    let mut lines = text.lines().map(str::trim);
    lines.next() == Some(&pid.to_string()) && matches!(lines.nth(6), Some("ready" | "standby"))
}
