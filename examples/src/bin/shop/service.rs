//! A service as a process that can be killed.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};

use anyhow::{Context as _, Result};

/// A program next to this one, with its variables. It ends with the value.
pub(crate) struct Service {
    program: PathBuf,
    variables: Vec<(&'static str, String)>,
    child: Option<Child>,
    kills: u64,
}

impl Service {
    pub(crate) fn new(name: &str, variables: &[(&'static str, &str)]) -> Result<Self> {
        let program = std::env::current_exe()?
            .with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        let variables =
            variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Ok(Self { program, variables, child: None, kills: 0 })
    }

    pub(crate) fn variable(&self, name: &str) -> String {
        let found = self.variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        let child = Command::new(&self.program)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .spawn()
            .with_context(|| {
                format!("{} did not start; build the package's programs", self.program.display())
            })?;
        self.child = Some(child);
        Ok(())
    }

    /// SIGKILL: nothing is finished, nothing is said.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
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
