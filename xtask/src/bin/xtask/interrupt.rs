//! Ctrl-C: whoever uses the servers ends first, then the servers, then we.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use xtask::Watchdog;

/// A signal asked us to end.
static HAPPENED: AtomicBool = AtomicBool::new(false);

/// The process group of the command that runs now.
static GROUP: Mutex<Option<Pid>> = Mutex::new(None);

/// From now on SIGINT, SIGTERM and SIGHUP end the running command and let this process go on to
/// its end. The second one ends it at once; the servers' watchdogs do the rest.
pub(crate) fn listen() {
    ctrlc::set_handler(|| {
        if HAPPENED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        signal(Signal::SIGINT);
        // Not `eprintln`, which panics if the reader of our output is gone: it got the signal too.
        let _ = writeln!(io::stderr(), "interrupted: ending the command, then the servers");
    })
    .expect("this is the only handler");
}

/// Whether a signal asked us to end.
pub(crate) fn happened() -> bool {
    HAPPENED.load(Ordering::SeqCst)
}

/// Runs a command to its end in a process group of its own, so that a signal to this process alone
/// reaches all of it, and so does the death of this process.
pub(crate) fn run(command: &mut Command) -> io::Result<ExitStatus> {
    let mut child = command.process_group(0).stdin(Stdio::null()).spawn()?;
    let _watchdog = Watchdog::of_group(child.id(), Signal::SIGKILL)?;
    let group = Pid::from_raw(child.id().try_into().expect("pids are positive 32-bit numbers"));
    *lock() = Some(group);
    if happened() {
        signal(Signal::SIGINT);
    }
    let status = wait(&mut child);
    if happened() {
        end_rest(group);
    }
    status
}

/// Waits such that the handler never signals a pid that is free for others again.
fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    loop {
        let mut group = lock();
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => {
                *group = None;
                return Ok(status);
            }
            Err(error) => return Err(error),
        }
        drop(group);
        thread::sleep(Duration::from_millis(20));
    }
}

/// The command has ended; what it had started may take longer. As long as a member lives, the
/// kernel does not give the group's number to anybody else.
fn end_rest(group: Pid) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while killpg(group, None).is_ok() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    let _ = killpg(group, Signal::SIGKILL);
}

fn signal(signal: Signal) {
    if let Some(group) = *lock() {
        let _ = killpg(group, signal);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Pid>> {
    GROUP.lock().unwrap_or_else(PoisonError::into_inner)
}
