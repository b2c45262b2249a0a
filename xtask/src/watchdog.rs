//! Ends processes whose parent died, in whatever way.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

/// Waits until its input closes, which happens when the process at the other end dies, then
/// signals. Linux's `PR_SET_PDEATHSIG` would fire when the *thread* that started the server ends,
/// and needs unsafe code.
const SCRIPT: &str = r#"trap '' HUP INT TERM; read -r _; kill -s "$2" -- "$1""#;

/// A shell that signals a process as soon as this value's process is dead. Dropping it calls the
/// watchdog off.
#[derive(Debug)]
pub struct Watchdog(Child);

impl Watchdog {
    /// Watches over one process.
    pub fn of_process(pid: u32, signal: Signal) -> io::Result<Self> {
        Self::start(&pid.to_string(), signal)
    }

    /// Watches over a process group, named by its leader.
    pub fn of_group(leader: u32, signal: Signal) -> io::Result<Self> {
        Self::start(&format!("-{leader}"), signal)
    }

    fn start(target: &str, signal: Signal) -> io::Result<Self> {
        let name = signal.as_str().trim_start_matches("SIG");
        Command::new("sh")
            .args(["-c", SCRIPT, "watchdog", target, name])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // SIGKILL comes before the pipe closes, so the script never gets past its `read`.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
