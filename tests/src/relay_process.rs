//! [`RelayProcess`]: a relay that can really be killed.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{TestDatabase, TestRedis};

/// The program `relay` of this package as a process. It ends when the value is dropped, and also
/// when the test is killed: its standard input ends then.
#[derive(Debug)]
pub struct RelayProcess {
    name: String,
    child: Child,
}

impl RelayProcess {
    /// Starts the program between these two, with settings of its environment. The name is its `host`
    /// in `outbox.relays`.
    ///
    /// # Panics
    /// If the program can't be started.
    #[must_use]
    pub fn start(
        program: &str,
        name: &str,
        database: &TestDatabase,
        redis: &TestRedis,
        settings: &[(&str, &str)],
    ) -> Self {
        let mut command = Command::new(program);
        command.args([&database.url(), &redis.url(), redis.prefix()]);
        Self::spawn(command.envs(settings.iter().copied()), name)
    }

    /// Whether it has ended, for whatever reason.
    ///
    /// # Panics
    /// If the operating system does not tell.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be asked for").is_some()
    }

    /// Starts a command that runs the program.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn spawn(command: &mut Command, name: &str) -> Self {
        let child = command.env("HOSTNAME", name).stdin(Stdio::piped()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { name: name.to_owned(), child }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("it ends");
    }

    /// Freezes it with SIGSTOP.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// Lets it give its shards back and end.
    pub fn stop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("it ends");
    }

    /// The most memory it has ever had resident, in bytes (Linux only).
    #[must_use]
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process id");
        // Not reaped before `wait`, hence the id is still its own.
        kill(Pid::from_raw(pid), signal).expect("our own child takes signals");
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
