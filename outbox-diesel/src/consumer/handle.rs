//! The handle of a running consumer.

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::ConsumerError;

/// A running consumer. Dropping the handle stops the consumer in the background.
#[derive(Debug)]
#[must_use = "the consumer stops when its handle is dropped"]
pub struct ConsumerHandle {
    cancelled: CancellationToken,
    task: Option<JoinHandle<Result<(), ConsumerError>>>,
}

impl ConsumerHandle {
    pub(super) fn new(
        cancelled: CancellationToken,
        task: JoinHandle<Result<(), ConsumerError>>,
    ) -> Self {
        Self { cancelled, task: Some(task) }
    }

    /// Stops the consumer: no new handler starts, running ones are finished and their entries
    /// acknowledged, the rest is left for other consumers to claim at once. Returns when all of
    /// that is done.
    ///
    /// # Errors
    /// What it had stopped for before.
    ///
    /// # Cancel safety
    /// If the future is dropped, the consumer still stops.
    pub async fn shutdown(mut self) -> Result<(), ConsumerError> {
        self.cancelled.cancel();
        self.stopped().await
    }

    /// Waits until the consumer has stopped by itself, which it does only where a policy is
    /// [`Unhandled::Stop`](super::Unhandled::Stop).
    ///
    /// # Errors
    /// What it stopped for; told once.
    ///
    /// # Cancel safety
    /// The consumer runs on if the future is dropped.
    pub async fn stopped(&mut self) -> Result<(), ConsumerError> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let ended = task.await;
        self.task = None;
        // It panics nowhere, and nobody else can abort it.
        ended.unwrap_or(Ok(()))
    }
}

impl Drop for ConsumerHandle {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}
