//! Partition: keeps the log's partitions ahead of the sequence.
//!
//! What is done to tables is done by functions of the schema, with the rights of their owner: the
//! relay's role may execute them, and owns nothing.

mod retention;
mod rights;

use diesel::Queryable;
use diesel::sql_types::{Bool, Integer, Nullable, Text};

#[cfg(feature = "metrics")]
pub(crate) use self::retention::interval;
pub(crate) use self::retention::{Held, Surplus, delete, drop_retired, held, retire};
pub(crate) use self::rights::{MissingRights, missing_rights};
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

/// What a step towards enough partitions came to.
#[derive(Debug, Queryable)]
pub(crate) struct Step {
    /// How many partitions it made.
    pub(crate) made: i32,
    /// The next step is due at once.
    pub(crate) again: bool,
    /// What went wrong; the database remembers, and the next tries come ever more rarely.
    pub(crate) problem: Option<String>,
}

pub(crate) const KEEP_AHEAD: &str =
    "SELECT made, again, problem FROM outbox.keep_partitions_ahead()";

/// Takes a step towards the partitions that the next days need. Cheap if there are enough.
pub(crate) async fn keep_ahead(session: &mut Session) -> Result<Step, SessionError> {
    let steps: Vec<Step> = session
        .load(Mode::Relaxed, statement::<(Integer, Bool, Nullable<Text>)>(KEEP_AHEAD))
        .await?;
    Ok(steps.into_iter().next().ok_or(diesel::result::Error::NotFound)?)
}
