//! Why a server did not start, stop or answer.

use std::io;

/// What can go wrong between asking for a server and using it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server program is not on this machine. `cargo xtask test` installs it or says how.
    #[error("{program} was not found; `cargo xtask test` installs it or prints how to")]
    ProgramMissing {
        /// The program, as it is called on the command line.
        program: &'static str,
    },
    /// A file, directory or process could not be worked with.
    #[error("cannot {doing}")]
    Io {
        /// The step that failed, as "read the log".
        doing: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The program ended instead of serving; the end of its log says why.
    #[error("{program} ended while it should run; its log ends:\n{log}")]
    Exited {
        /// The program, as it is called on the command line.
        program: &'static str,
        /// The last lines of its log.
        log: String,
    },
    /// The program runs but was not ready in time.
    #[error("{program} was not ready in time; its log ends:\n{log}")]
    TimedOut {
        /// The program, as it is called on the command line.
        program: &'static str,
        /// The last lines of its log.
        log: String,
    },
    /// Some programs refuse root, and this machine has no account `postgres` or `nobody`.
    #[error("no unprivileged account to run the server: neither `postgres` nor `nobody` exists")]
    NoAccount,
}

impl ServerError {
    /// Turns an I/O error into one that names the step, for `map_err`.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
