//! Runs the program, and judges what it said.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use outbox_tests::{TestDatabase, eventually};
use serde_json::Value;

/// How long a busy machine may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// What it said, if it did what it was asked for.
    #[track_caller]
    pub(crate) fn said(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// The JSON that it said.
    #[track_caller]
    pub(crate) fn value(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error that it ended with.
    #[track_caller]
    pub(crate) fn failed(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        self.err
    }
}

/// The program, with nothing of the test's environment that it would heed.
pub(crate) fn command(database: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_none_or(|name| name.starts_with("OUTBOX_"));
        if is_ours || name == "REDIS_URL" || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command.env("DATABASE_URL", database).stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub(crate) fn run(mut command: Command) -> Ran {
    let output = command.output().expect("the program was built");
    let text = |bytes| String::from_utf8(bytes).expect("it writes UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs it on a test's database.
pub(crate) fn outbox(database: &TestDatabase, arguments: &[&str]) -> Ran {
    let mut command = command(&database.url());
    command.args(arguments);
    run(command)
}

/// What it says in JSON.
#[track_caller]
pub(crate) fn json(database: &TestDatabase, arguments: &[&str]) -> Value {
    let ran = outbox(database, &[arguments, &["--json"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.value()
}

/// The program while it runs; killed when the value is dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("the program was built"))
    }

    /// A relay with short pauses.
    pub(crate) fn relay(database: &str, redis: &str, prefix: &str, arguments: &[&str]) -> Self {
        let mut command = command(database);
        command.args(["relay", "--lease", "5s", "--heartbeat", "500ms"]);
        command.args([
            "--publish-timeout",
            "2s",
            "--database-timeout",
            "3s",
            "--response-timeout",
            "1s",
        ]);
        command.args(arguments);
        command.env("REDIS_URL", redis).env("OUTBOX_STREAM_PREFIX", prefix).env("HOSTNAME", "box");
        command.stderr(Stdio::piped());
        Self::start(command)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).expect("a process id");
        // Not reaped before `end`, hence the id is still its own.
        kill(Pid::from_raw(pid), signal).expect("our own child takes signals");
    }

    /// Waits for its end: its exit code, and what it wrote to standard error.
    pub(crate) async fn end(&mut self) -> (Option<i32>, String) {
        let status = eventually(PATIENCE, async || self.0.try_wait().expect("our own child")).await;
        let mut text = String::new();
        if let Some(mut err) = self.0.stderr.take() {
            err.read_to_string(&mut text).expect("it writes UTF-8");
        }
        (status.code(), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The answer to an HTTP request.
pub(crate) fn http(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
