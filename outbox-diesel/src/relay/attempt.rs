//! One call of the publisher, which may fail in any way without harm to the relay.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::message::Message;
use crate::park::storable;
use crate::publish::{Batch, Contact, Publisher, Receipt, Stamp, Unavailable};

/// What came of a call.
#[derive(Debug)]
pub(super) enum Attempt {
    /// First contact: nothing was sent before the relay has looked at these.
    Contacts(Vec<Contact>),
    /// The publisher's answer.
    Receipt(Receipt),
    /// The broker is away.
    Unavailable(String),
    /// Events were sent and there is no answer, as told: the time ran out, or the publisher
    /// panicked, perhaps at one of the events.
    Unanswered(String),
}

/// Contacts and publishes within the time.
pub(super) async fn attempt<P: Publisher>(
    publisher: &mut P,
    stamp: &Stamp,
    messages: &[Message<'_>],
    limit: Duration,
) -> Attempt {
    let batch = Batch::new(stamp, messages);
    let deadline = Instant::now() + limit;
    match contact(publisher, &batch, deadline, limit).await {
        Ok(contacts) if contacts.is_empty() => {}
        Ok(contacts) => return Attempt::Contacts(contacts),
        Err(NoAnswer { what, panicked: true }) => return Attempt::Unanswered(what),
        // Nothing of the events was sent: the broker is away, or as good as.
        Err(NoAnswer { what, panicked: false }) => return Attempt::Unavailable(what),
    }
    let span = info_span!("publish", subscription = stamp.subscription, events = messages.len());
    #[cfg(feature = "opentelemetry")]
    crate::trace::link(&span, messages);
    let publish = publisher.publish(&batch).instrument(span);
    match bounded(publish, deadline, limit).await {
        Ok(receipt) if receipt.verdicts().len() == messages.len() => Attempt::Receipt(receipt),
        Ok(receipt) => {
            let (got, sent) = (receipt.verdicts().len(), messages.len());
            Attempt::Unavailable(format!("the publisher gave {got} verdicts on {sent} events"))
        }
        Err(NoAnswer { what, .. }) => Attempt::Unanswered(what),
    }
}

/// Makes first contact where there was none.
pub(super) async fn contact<P: Publisher>(
    publisher: &mut P,
    batch: &Batch<'_>,
    deadline: Instant,
    limit: Duration,
) -> Result<Vec<Contact>, NoAnswer> {
    let unavailable = |Unavailable(reason)| NoAnswer { what: storable(&reason), panicked: false };
    bounded(publisher.contact(batch), deadline, limit).await?.map_err(unavailable)
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct NoAnswer {
    pub(super) what: String,
    panicked: bool,
}

async fn bounded<T>(
    call: impl Future<Output = T>,
    deadline: Instant,
    limit: Duration,
) -> Result<T, NoAnswer> {
    match tokio::time::timeout_at(deadline, AssertUnwindSafe(call).catch_unwind()).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(panic)) => {
            let what = storable(&format!("the publisher panicked: {}", text_of(&*panic)));
            Err(NoAnswer { what, panicked: true })
        }
        Err(_) => {
            let what = format!("the publisher did not answer within {limit:?}");
            Err(NoAnswer { what, panicked: false })
        }
    }
}

/// What a panic said.
pub(super) fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}
