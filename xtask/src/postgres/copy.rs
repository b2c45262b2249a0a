//! Copies of a server's data: restored later, or started as a standby.

use std::path::Path;
use std::process::Command;

use super::{Postgres, data};
use crate::directory::ServerDirectory;
use crate::error::ServerError;
use crate::process::{self, on_free_port};

/// The data of a server at one moment, as a snapshot of its disk would be.
#[derive(Debug)]
pub struct Copy {
    directory: ServerDirectory,
}

impl Postgres {
    /// Stops it in order, copies its data and starts it again. `pg_basebackup` would not need the
    /// stop, but is a client program: packages of the server alone lack it.
    pub fn copy(&mut self) -> Result<Copy, ServerError> {
        let directory = ServerDirectory::create(self.account)?;
        self.stop()?;
        copy(&data(&self.directory), &data(&directory), &directory)?;
        self.restart()?;
        Ok(Copy { directory })
    }

    /// Crashes it and starts it with the data as it was, as restoring a disk does: it is the same
    /// server to everybody who asks who it is.
    pub fn restore(&mut self, copied: &Copy) -> Result<(), ServerError> {
        self.kill()?;
        let data = data(&self.directory);
        std::fs::remove_dir_all(&data).map_err(ServerError::io("remove the data"))?;
        copy(&self::data(&copied.directory), &data, &self.directory)?;
        self.restart()
    }

    /// A standby on a port of its own that follows this server, by a connection named `standby`.
    /// `SELECT pg_promote()` makes it a primary. This server is restarted once.
    pub fn start_standby(&mut self) -> Result<Postgres, ServerError> {
        let Copy { directory } = self.copy()?;
        let data = data(&directory);
        let follow = format!(
            "primary_conninfo = 'host=127.0.0.1 port={} user=postgres application_name=standby'\n",
            self.port
        );
        write(&data.join("standby.signal"), "")?;
        // Read after postgresql.conf; ALTER SYSTEM writes there too, so it can be changed.
        write(&data.join("postgresql.auto.conf"), &follow)?;
        for file in ["standby.signal", "postgresql.auto.conf"] {
            self.account.own(&data.join(file))?;
        }
        let (programs, account, options) =
            (self.programs.clone(), self.account, self.options.clone());
        let (port, server) =
            on_free_port(|port| super::serve(&programs, account, &directory, &options, port))?;
        Ok(Postgres { server: Some(server), directory, programs, account, options, port })
    }
}

fn copy(from: &Path, to: &Path, directory: &ServerDirectory) -> Result<(), ServerError> {
    process::run("cp", Command::new("cp").arg("-a").arg(from).arg(to), directory.path())
}

fn write(path: &Path, text: &str) -> Result<(), ServerError> {
    std::fs::write(path, text).map_err(ServerError::io(format!("write {}", path.display())))
}
