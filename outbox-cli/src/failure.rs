//! Why a command did not do what it was asked for: one line, and what to do.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use outbox_diesel::admin::AdminError;
use outbox_diesel::relay::SessionError;

use crate::screen::{BAD, Screen};

/// What is printed, and the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    advice: Option<String>,
}

impl Failure {
    /// Not done.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into(), advice: None }
    }

    /// The arguments make no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, ..Self::new(message) }
    }

    /// A server cannot be reached.
    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self { code: 3, ..Self::new(message) }
    }

    /// The schema is missing, or of another version.
    pub(crate) fn schema(message: impl Into<String>) -> Self {
        Self { code: 4, ..Self::new(message) }
    }

    /// Says what to do.
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Prints it, and returns the exit code.
    pub(crate) fn report(&self, screen: &Screen) -> ExitCode {
        if self.code == 0 {
            return ExitCode::SUCCESS;
        }
        let Self { code, message, advice } = self;
        if screen.is_json() {
            let told = serde_json::json!({ "error": message, "advice": advice, "code": code });
            eprintln!("{told}");
        } else {
            anstream::eprintln!("{BAD}error:{BAD:#} {message}");
            if let Some(advice) = advice {
                anstream::eprintln!("  {advice}");
            }
        }
        ExitCode::from(*code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some print their cause themselves.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

const RIGHTS: &str = "connect as a role that has outbox_operator (ops/roles.sql), or as the owner of the schema outbox";

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let text = chain(&error);
        let advice = match &error {
            AdminError::NoSubscription(_) => {
                Some("outbox subscriptions list  # shows which there are".to_owned())
            }
            AdminError::NotParked { event_id, .. } => {
                Some(format!("outbox find {event_id}  # tells where it stands"))
            }
            AdminError::Held { behind, .. } => {
                Some(format!("outbox find {behind}  # the one that it waits for"))
            }
            AdminError::NotPassed(_) => {
                Some("outbox status  # is a relay running, and the broker there?".to_owned())
            }
            AdminError::RelaysLive { .. } => {
                Some("outbox status  # shows them, and on which hosts they run".to_owned())
            }
            AdminError::NotKept { .. } => {
                Some("take --to earliest, or leave --since away, for all that is kept".to_owned())
            }
            AdminError::MayBeForgotten(_) => Some(
                "take a later --to, or send them beside the stream: outbox replay start --forgotten-too".to_owned(),
            ),
            AdminError::ReplayRunning(id) => {
                Some(format!("outbox replay status {id}, or: outbox replay cancel {id}"))
            }
            AdminError::NoPartition(_) => Some(
                "somebody holds a lock on outbox.events; try again, or see: outbox doctor"
                    .to_owned(),
            ),
            _ if text.contains("permission denied") => Some(RIGHTS.to_owned()),
            _ => None,
        };
        Self { code: 1, message: text, advice }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let text = chain(&error);
        let denied = text.contains("permission denied");
        let failure = match error {
            SessionError::Query(_) => Self::new(text),
            _ => Self::unreachable(text),
        };
        if denied { failure.advice(RIGHTS) } else { failure }
    }
}

impl From<diesel::result::Error> for Failure {
    fn from(error: diesel::result::Error) -> Self {
        let text = chain(&error);
        let denied = text.contains("permission denied");
        let failure = Self::new(text);
        if denied { failure.advice(RIGHTS) } else { failure }
    }
}

impl From<io::Error> for Failure {
    /// A reader that has seen enough (`outbox tail | head`) is no failure.
    fn from(error: io::Error) -> Self {
        let code = u8::from(error.kind() != io::ErrorKind::BrokenPipe);
        Self { code, message: error.to_string(), advice: None }
    }
}
