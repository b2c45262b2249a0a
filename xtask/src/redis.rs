//! Private Redis or Valkey servers.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::account::Account;
use crate::directory::ServerDirectory;
use crate::error::ServerError;
use crate::process::{Running, on_free_port, on_same_port};
use crate::programs;

/// What survives the server's death.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: `--save "" --appendonly no`.
    #[default]
    Memory,
    /// All but about the last second if the machine crashes: `--appendfsync everysec`.
    EverySecond,
    /// Every acknowledged write: `--appendfsync always`.
    Always,
}

/// How a server is set up.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    persistence: Persistence,
    program: Option<PathBuf>,
    settings: Vec<(String, String)>,
    disabled: Vec<String>,
}

impl Options {
    /// What survives the server's death. Default: [`Persistence::Memory`].
    #[must_use]
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Which program serves. Default: that of [`programs::find_redis`].
    #[must_use]
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// A command that the server is not to know, such as `EVAL`. Default: it knows all.
    #[must_use]
    pub fn disabled(mut self, command: impl Into<String>) -> Self {
        self.disabled.push(command.into());
        self
    }

    /// One setting of `redis.conf`, over ours, such as `maxmemory`. Default: as Redis has it.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// A Redis or Valkey server on a port of its own. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct Redis {
    // Declared before `directory`, hence dropped before it.
    server: Option<Running>,
    directory: ServerDirectory,
    program: PathBuf,
    options: Options,
    port: u16,
}

impl Redis {
    /// Returns once the server answers.
    pub fn start(options: Options) -> Result<Self, ServerError> {
        let program = options
            .program
            .clone()
            .or_else(programs::find_redis)
            .ok_or(ServerError::ProgramMissing { program: "redis-server" })?;
        // Unlike PostgreSQL it does not mind who it runs as.
        let directory = ServerDirectory::create(Account::Own)?;
        let (port, server) = on_free_port(|port| serve(&program, &directory, &options, port))?;
        Ok(Self { server: Some(server), directory, program, options, port })
    }

    /// Stops it in order, writing what its persistence promises. Does nothing if it is down.
    pub fn stop(&mut self) -> Result<(), ServerError> {
        self.end(Signal::SIGTERM)
    }

    /// Kills it with SIGKILL, paused or not. Does nothing if it is down.
    pub fn kill(&mut self) -> Result<(), ServerError> {
        self.end(Signal::SIGKILL)
    }

    /// Starts it again on the same port, with what its persistence kept, killing it first if it
    /// runs.
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.kill()?;
        let server =
            on_same_port(|| serve(&self.program, &self.directory, &self.options, self.port))?;
        self.server = Some(server);
        Ok(())
    }

    /// Freezes it with SIGSTOP: connections stay open and are accepted, nothing is answered.
    pub fn pause(&mut self) -> Result<(), ServerError> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&mut self) -> Result<(), ServerError> {
        self.signal(Signal::SIGCONT)
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
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

    /// What it has logged since the last start.
    #[must_use]
    pub fn log(&self) -> String {
        self.server.as_ref().map(Running::log).unwrap_or_default()
    }

    fn signal(&mut self, signal: Signal) -> Result<(), ServerError> {
        self.server.as_mut().map_or(Ok(()), |server| server.signal(signal))
    }

    fn end(&mut self, signal: Signal) -> Result<(), ServerError> {
        match self.server.take() {
            Some(server) => server.finish(signal, Duration::from_secs(10)),
            None => Ok(()),
        }
    }
}

fn serve(
    program: &Path,
    directory: &ServerDirectory,
    options: &Options,
    port: u16,
) -> Result<Running, ServerError> {
    let mut command = Command::new(program);
    command
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .arg("--dir")
        .arg(directory.path())
        .args(["--daemonize", "no", "--save", ""]);
    match options.persistence {
        Persistence::Memory => command.args(["--appendonly", "no"]),
        Persistence::EverySecond => {
            command.args(["--appendonly", "yes", "--appendfsync", "everysec"])
        }
        Persistence::Always => command.args(["--appendonly", "yes", "--appendfsync", "always"]),
    };
    for (name, value) in &options.settings {
        command.arg(format!("--{name}")).arg(value);
    }
    for name in &options.disabled {
        command.args(["--rename-command", name, ""]);
    }
    let mut server = Running::spawn("redis-server", &mut command, directory, Signal::SIGKILL)?;
    server.wait_until(|server| is_ready(port, server.pid()).unwrap_or(false))?;
    Ok(server)
}

/// Asks for the pid, so that a stranger on the same port is not taken for ours, and whether the
/// data is loaded.
fn is_ready(port: u16, pid: u32) -> io::Result<bool> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    // Redis closes the connection after QUIT, which ends the reading.
    connection.write_all(b"INFO\r\nQUIT\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let says = |line: &str| answer.lines().any(|said| said == line);
    Ok(says(&format!("process_id:{pid}")) && says("loading:0"))
}
