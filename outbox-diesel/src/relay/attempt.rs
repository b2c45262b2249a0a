//! One call of the publisher, which may fail in any way without harm to the relay.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;

use crate::message::Message;
use crate::publish::{Batch, Contact, Publisher, Receipt, Stamp};

/// What came of a call.
#[derive(Debug)]
pub(super) enum Attempt {
    /// First contact: nothing was sent before the relay has looked at these.
    Contacts(Vec<Contact>),
    /// The publisher's answer.
    Receipt(Receipt),
    /// The broker is away, or the time ran out.
    Unavailable(String),
    /// The publisher panicked, perhaps at one of the events.
    Panicked(String),
}

/// Contacts and publishes within the time.
pub(super) async fn attempt<P: Publisher>(
    publisher: &mut P,
    stamp: &Stamp,
    messages: &[Message<'_>],
    limit: Duration,
) -> Attempt {
    let batch = Batch::new(stamp, messages);
    let call = async {
        match publisher.contact(&batch).await {
            Err(unavailable) => return Attempt::Unavailable(unavailable.0),
            Ok(contacts) if !contacts.is_empty() => return Attempt::Contacts(contacts),
            Ok(_) => {}
        }
        let receipt = publisher.publish(&batch).await;
        if receipt.verdicts().len() == messages.len() {
            Attempt::Receipt(receipt)
        } else {
            let (got, sent) = (receipt.verdicts().len(), messages.len());
            Attempt::Unavailable(format!("the publisher gave {got} verdicts on {sent} events"))
        }
    };
    match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(attempt)) => attempt,
        Ok(Err(panic)) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(ToString::to_string)
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            Attempt::Panicked(format!("the publisher panicked: {text}"))
        }
        Err(_) => Attempt::Unavailable(format!("the publisher did not answer within {limit:?}")),
    }
}
