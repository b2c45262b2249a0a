//! What can go wrong while emitting.

use crate::event::MissingAggregateId;

/// Why an event was not emitted.
///
/// Unless it is `Database`, nothing was sent to the server and the caller's
/// transaction is as it was. Converts into `diesel::result::Error`, so that `?` works in closures
/// that return diesel's error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The connection is not in a transaction: the event would not share the fate of anything.
    /// Wrap the business write and the emit into one `conn.transaction(…)`.
    #[error("an event can only be emitted inside a transaction")]
    NotInTransaction,
    /// An optional aggregate id was `None`. Set it, or use an id that is always there.
    #[error(transparent)]
    MissingAggregateId(#[from] MissingAggregateId),
    /// A name or id cannot be stored. Shorten it, or do not leave it empty.
    #[error("the {name} {problem}")]
    InvalidText {
        /// Which one: `aggregate id`, `topic`, …
        name: &'static str,
        /// What is wrong with it.
        problem: TextProblem,
    },
    /// The event version is below 1.
    #[error("the event version is {0}; versions start at 1")]
    InvalidVersion(i16),
    /// serde could not serialise the event, or what a hand-written `write_payload` wrote is not one
    /// JSON value. The cause says where.
    #[error("the event of type {event_type} could not be serialised to JSON")]
    Serialize {
        /// The event's type.
        event_type: String,
        /// What serde says.
        source: serde_json::Error,
    },
    /// Payload or headers are too large. Put large things elsewhere and emit a reference, or raise
    /// [`OutboxEvent::payload_limit`](crate::OutboxEvent::payload_limit).
    #[error("the {name} of the event of type {event_type} has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// `payload` or `headers`.
        name: &'static str,
        /// The event's type.
        event_type: String,
        /// Its size.
        bytes: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The payload nests deeper than what consumers can be expected to parse.
    #[error("the payload of the event of type {event_type} nests deeper than {limit} levels")]
    TooDeep {
        /// The event's type.
        event_type: String,
        /// What is allowed.
        limit: usize,
    },
    /// The server refused the statement or the connection failed. As after any failed statement,
    /// PostgreSQL has aborted the transaction: roll it back.
    #[cfg(feature = "emit")]
    #[error("the database did not take the event")]
    Database(#[source] diesel::result::Error),
}

/// Why a text cannot be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextProblem {
    /// It has no characters.
    #[error("is empty")]
    Empty,
    /// It is longer than 255 bytes.
    #[error("has {0} bytes; the limit is 255")]
    TooLong(usize),
    /// It holds a NUL character, which PostgreSQL cannot store.
    #[error("holds a NUL character")]
    Nul,
}

#[cfg(feature = "emit")]
impl From<diesel::result::Error> for EmitError {
    fn from(error: diesel::result::Error) -> Self {
        Self::Database(error)
    }
}

#[cfg(feature = "emit")]
impl From<EmitError> for diesel::result::Error {
    fn from(error: EmitError) -> Self {
        match error {
            EmitError::Database(error) => error,
            EmitError::NotInTransaction => Self::NotInTransaction,
            refused => Self::SerializationError(Box::new(refused)),
        }
    }
}
