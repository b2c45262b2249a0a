//! One server process: how it is started, ended, and ended if we die.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::directory::{ServerDirectory, pid};
use crate::error::ServerError;
use crate::watchdog::Watchdog;

/// How long a server gets to become ready. Crash recovery is part of it.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// A running server; ended on drop.
#[derive(Debug)]
pub(crate) struct Running {
    program: &'static str,
    server: Child,
    /// Called off after `drop` has ended the server, so that it is never without one.
    _watchdog: Watchdog,
    /// Ends it at once, whatever it is doing.
    end: Signal,
    log: PathBuf,
}

impl Running {
    /// Starts `command`, its output going to the log in `directory`.
    pub(crate) fn spawn(
        program: &'static str,
        command: &mut Command,
        directory: &ServerDirectory,
        end: Signal,
    ) -> Result<Self, ServerError> {
        let log = directory.path().join("log");
        let output = File::create(&log).map_err(ServerError::io("create the server's log"))?;
        let errors = output.try_clone().map_err(ServerError::io("share the server's log"))?;
        // A process group of its own: Ctrl-C in the terminal is for us, and we end the servers
        // after those who use them.
        let mut server = command
            .process_group(0)
            .current_dir(directory.path())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(ServerError::io(format!("start {program}")))?;
        let watched = directory.record(server.id(), end).and_then(|()| {
            Watchdog::of_process(server.id(), end)
                .map_err(ServerError::io("start the server's watchdog"))
        });
        match watched {
            Ok(watchdog) => Ok(Self { program, server, _watchdog: watchdog, end, log }),
            Err(error) => {
                let _ = server.kill();
                let _ = server.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until `ready` says so, the server ends, or patience does.
    pub(crate) fn wait_until(
        &mut self,
        mut ready: impl FnMut(&Self) -> bool,
    ) -> Result<(), ServerError> {
        let deadline = Instant::now() + START_PATIENCE;
        while !ready(self) {
            if self.has_exited() {
                return Err(ServerError::Exited { program: self.program, log: tail(&self.log()) });
            }
            if Instant::now() > deadline {
                return Err(ServerError::TimedOut {
                    program: self.program,
                    log: tail(&self.log()),
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends a signal, unless the server has ended already.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<(), ServerError> {
        // The child is not reaped before `try_wait` says so, hence its pid is still its own.
        if self.has_exited() {
            return Ok(());
        }
        kill(pid(self.server.id()), signal)
            .map_err(std::io::Error::from)
            .map_err(ServerError::io(format!("signal {}", self.program)))
    }

    /// Asks the server to end with `signal`; kills it if it is not gone after `patience`.
    pub(crate) fn finish(mut self, signal: Signal, patience: Duration) -> Result<(), ServerError> {
        self.signal(signal)?;
        let deadline = Instant::now() + patience;
        while !self.has_exited() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        // What is still there now, drop ends.
        Ok(())
    }

    fn has_exited(&mut self) -> bool {
        !matches!(self.server.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.signal(self.end);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.has_exited() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Runs a command that ends by itself, such as `initdb`.
pub(crate) fn run(
    program: &'static str,
    command: &mut Command,
    directory: &Path,
) -> Result<(), ServerError> {
    let output = command
        .current_dir(directory)
        .stdin(Stdio::null())
        .output()
        .map_err(ServerError::io(format!("start {program}")))?;
    if output.status.success() {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Err(ServerError::Exited { program, log: tail(&log) })
}

fn tail(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Starts a server on a free port, and again on another if somebody else took it in between.
/// `start` gets the port.
pub(crate) fn on_free_port<T>(
    mut start: impl FnMut(u16) -> Result<T, ServerError>,
) -> Result<(u16, T), ServerError> {
    let mut attempts = 20;
    loop {
        let port = crate::port::free();
        attempts -= 1;
        match start(port) {
            Err(error) if attempts > 0 && is_port_taken(&error) => {}
            outcome => return outcome.map(|server| (port, server)),
        }
    }
}

/// Starts a server on the port it had, where the kernel may take a moment to let go of it.
pub(crate) fn on_same_port<T>(
    mut start: impl FnMut() -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match start() {
            Err(error) if is_port_taken(&error) && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            outcome => return outcome,
        }
    }
}

fn is_port_taken(error: &ServerError) -> bool {
    // "Address already in use" is strerror's text; PgBouncer only says that nothing listens.
    matches!(error, ServerError::Exited { log, .. }
        if log.contains("ddress already in use") || log.contains("nowhere to listen"))
}
