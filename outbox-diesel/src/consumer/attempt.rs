//! One try of one event, and when to try it again.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use tracing::{Instrument as _, info_span};

use super::delivery::Delivery;
use super::lanes::Place;
use super::route::{Handler, chain, is_final, is_unavailable};

/// How a try ended.
pub(super) struct Attempt {
    pub(super) place: Place,
    pub(super) delivery: Delivery,
    pub(super) outcome: Outcome,
}

pub(super) enum Outcome {
    /// The handler's transaction has committed, or it had before.
    Handled,
    /// To be tried again, unless it was the last time.
    Failed { error: String },
    /// To be tried again, and no fault of the event.
    Postponed { error: String },
    /// Trying again is in vain.
    Rejected { error: String },
}

/// Runs the handler: it may fail, panic or hang.
pub(super) async fn attempt(
    handler: Handler,
    place: Place,
    delivery: Delivery,
    timeout: Duration,
) -> Attempt {
    let tried = delivery.clone();
    let span = info_span!(
        "handle",
        event_id = %delivery.event_id(), event_type = delivery.event_type(),
        topic = delivery.topic(), aggregate_id = delivery.aggregate_id(), attempt = delivery.attempt()
    );
    #[cfg(feature = "opentelemetry")]
    crate::trace::follow(&span, delivery.header("traceparent"), delivery.header("tracestate"));
    // The handler is called inside too: it may panic before it makes a future.
    let outcome = AssertUnwindSafe(async move { handler(tried, timeout).await }).catch_unwind();
    let outcome = match tokio::time::timeout(timeout, outcome.instrument(span)).await {
        Ok(Ok(Ok(()))) => Outcome::Handled,
        Ok(Ok(Err(error))) => {
            let text = chain(&*error);
            if is_final(&*error) {
                Outcome::Rejected { error: text }
            } else if is_unavailable(&*error) {
                Outcome::Postponed { error: text }
            } else {
                Outcome::Failed { error: text }
            }
        }
        Ok(Err(_)) => Outcome::Failed { error: "the handler panicked".to_owned() },
        Err(_) => Outcome::Failed { error: format!("the handler took longer than {timeout:?}") },
    };
    Attempt { place, delivery, outcome }
}

/// A pause of random length below a bound that doubles with each try (full jitter).
pub(super) fn pause(base: Duration, cap: Duration, attempt: u32) -> Duration {
    let doublings = attempt.saturating_sub(1).min(31);
    base.saturating_mul(1 << doublings).min(cap).mul_f64(fastrand::f64())
}
