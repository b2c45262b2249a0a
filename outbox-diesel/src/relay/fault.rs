//! What is said of a try of events: how many were acknowledged, and of each that failed its ids,
//! never its payload.

use chrono::{DateTime, Utc};
use tracing::warn;

use super::worker::Worker;
use crate::message::Message;
use crate::publish::Verdict;

/// How a try of an event ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The broker does not take it.
    Rejected,
    /// It was sent alone, and no answer came.
    Unanswered,
    /// Relays have ended when they sent it; it is not sent again before it was parked.
    Deadly,
    /// The broker does not take it in a replay either.
    RefusedInReplay,
    /// Relays have ended when they replayed it; it is not sent again.
    DeadlyInReplay,
}

impl Fault {
    fn text(self) -> &'static str {
        match self {
            Self::Rejected => "the event was rejected",
            Self::Unanswered => "there was no answer for this event alone",
            Self::Deadly => "relays ended here: the event is parked before it is tried",
            Self::DeadlyInReplay => "relays ended at this replayed event: it is left out",
            Self::RefusedInReplay => "the broker refused a replayed event",
        }
    }
}

impl<P> Worker<P> {
    /// Logs and counts an attempt that failed.
    pub(super) fn tell_fault(
        &self,
        fault: Fault,
        message: &Message<'_>,
        attempt: i32,
        reason: &str,
    ) {
        self.health.meter().failed(message.event_type());
        warn!(
            subscription = %self.who.subscription, event_id = %message.id(),
            event_type = message.event_type(), topic = message.topic(),
            aggregate_id = message.aggregate_id(), attempt, trace_id = message.trace_id(), reason,
            "{}", fault.text()
        );
    }
}

/// When those events were emitted that were delivered.
pub(super) fn delivered<'a>(
    messages: impl IntoIterator<Item = &'a Message<'a>>,
    verdicts: &[Verdict],
) -> impl Iterator<Item = DateTime<Utc>> {
    let judged = messages.into_iter().zip(verdicts);
    judged.filter(|(_, verdict)| **verdict == Verdict::Delivered).map(|(m, _)| m.created_at())
}
