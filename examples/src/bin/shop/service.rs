//! A service as a process that can be killed.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use xtask::Watchdog;

/// A program next to this one, with its variables. It ends with the value, and with this process
/// however that ends.
pub(crate) struct Service {
    program: PathBuf,
    variables: Vec<(&'static str, String)>,
    running: Option<Running>,
    kills: u64,
}

struct Running {
    child: Child,
    /// Called off after the child has ended, so that it is never without one.
    _watchdog: Watchdog,
}

impl Service {
    pub(crate) fn new(name: &str, variables: &[(&'static str, &str)]) -> Result<Self> {
        let program = std::env::current_exe()?
            .with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        let variables =
            variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Ok(Self { program, variables, running: None, kills: 0 })
    }

    pub(crate) fn variable(&self, name: &str) -> String {
        let found = self.variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let mut child = Command::new(&self.program)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .spawn()
            .with_context(|| {
                format!("{} did not start; build the package's programs", self.program.display())
            })?;
        match Watchdog::of_process(child.id(), Signal::SIGKILL) {
            Ok(watchdog) => self.running = Some(Running { child, _watchdog: watchdog }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                return Err(error).context("no watchdog started");
            }
        }
        Ok(())
    }

    /// SIGKILL: nothing is finished, nothing is said.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut running) = self.running.take() {
            running.child.kill()?;
            running.child.wait()?;
            self.kills += 1;
        }
        Ok(())
    }

    pub(crate) fn kills(&self) -> u64 {
        self.kills
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{} may still run: {error:#}", self.program.display());
        }
    }
}

/// Where nobody listens now.
pub(crate) fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
