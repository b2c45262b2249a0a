//! What a broker in memory was given.

use super::compare;
use crate::event::OutboxEvent;
use crate::publish::RecordingPublisher;

/// Asserts that the broker got exactly these events, each once, in this order, whatever their
/// topics; compared as by [`assert_emitted`](super::assert_emitted).
///
/// Order is kept per aggregate. In a test, events that were emitted one after another come so.
///
/// ```
/// use outbox_diesel::testing::{RecordingPublisher, assert_delivered};
///
/// assert_delivered(&RecordingPublisher::default(), &[]);
/// ```
///
/// # Panics
/// If it got others. The message tells each event that is missing, unexpected or different, and
/// what differs.
#[track_caller]
pub fn assert_delivered(broker: &RecordingPublisher, expected: &[&dyn OutboxEvent]) {
    let delivered = broker.delivered();
    let got = delivered.iter().map(|recorded| compare::Line::of_message(&recorded.message));
    let expected = compare::lines(expected.iter().copied());
    if let Err(difference) = compare::difference("delivered", expected, got.collect()) {
        panic!("{difference}");
    }
}
