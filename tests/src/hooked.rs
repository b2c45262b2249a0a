//! [`Hooked`]: a publisher that runs a piece of the test in the middle of a delivery.

use std::fmt;

use outbox_diesel::publish::{Batch, Contact, Publisher, Receipt, RecordingPublisher, Unavailable};

type Hook = Box<dyn FnMut(&Batch<'_>) -> Option<String> + Send>;

/// A broker in front of which a hook sees each batch, while nothing of it is sent.
pub struct Hooked {
    broker: RecordingPublisher,
    hook: Hook,
}

impl Hooked {
    /// If the hook returns a reason, the broker is unavailable for this batch.
    pub fn new(
        broker: &RecordingPublisher,
        hook: impl FnMut(&Batch<'_>) -> Option<String> + Send + 'static,
    ) -> Self {
        Self { broker: broker.clone(), hook: Box::new(hook) }
    }
}

impl Publisher for Hooked {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        self.broker.contact(batch).await
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        if let Some(reason) = (self.hook)(batch) {
            let mut receipt = Receipt::new(batch);
            receipt.unavailable(reason);
            return receipt;
        }
        self.broker.publish(batch).await
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooked").field("broker", &self.broker).finish_non_exhaustive()
    }
}
