//! What any relay looks after beside its shards: partitions ahead, old ticks.

use tracing::{debug, info, warn};

use super::worker::{Worker, chain};
use crate::partition;
use crate::publish::Publisher;
use crate::session::{Session, SessionError};

impl<P: Publisher> Worker<P> {
    /// Partitions and old ticks: what fails is tried again later, delivery goes on. Said once.
    pub(super) async fn keep_up(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let trouble = match self.keep_partitions(session).await {
            Ok(trouble) => trouble,
            Err(SessionError::Query(error)) => Some(chain(&error)),
            // The connection may still be busy with it.
            Err(error) => return Err(error),
        };
        if let Some(cause) = trouble.as_ref().filter(|_| trouble != self.upkeep_trouble) {
            warn!(cause, "partitions could not be created; delivery goes on, will try again");
        }
        self.upkeep_trouble = trouble;
        match partition::delete_ticks(session).await {
            Ok(()) => Ok(()),
            Err(SessionError::Query(error)) => {
                debug!(cause = chain(&error), "old ticks could not be deleted; will try again");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn keep_partitions(
        &mut self,
        session: &mut Session,
    ) -> Result<Option<String>, SessionError> {
        if !partition::may_create(session).await? {
            return Ok(Some(String::from(
                "GRANT EXECUTE ON FUNCTION outbox.keep_partitions_ahead() to the relay's role, \
                 or have another role call it every day",
            )));
        }
        let made = partition::keep_ahead(session).await?;
        if made > 0 {
            info!(made, "created partitions");
        }
        Ok(None)
    }
}
