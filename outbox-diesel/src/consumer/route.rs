//! Which handler an event goes to.

use std::collections::HashMap;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::delivery::Delivery;
use crate::inbox::Forgotten;

/// Why a handler failed: any error.
pub type HandlerError = Box<dyn Error + Send + Sync>;

/// An error for which trying again would be in vain: the event becomes a dead letter at once.
///
/// ```
/// # use outbox_diesel::consumer::{HandlerError, Reject};
/// fn check(cents: i64) -> Result<(), HandlerError> {
///     if cents < 0 {
///         return Err(Reject::because("a payment is not negative").into());
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("the event was rejected")]
pub struct Reject(#[source] HandlerError);

impl Reject {
    /// With the reason.
    pub fn because(reason: impl Into<HandlerError>) -> Self {
        Self(reason.into())
    }
}

/// An error that is no fault of the event, such as a service that is away: the event is tried again
/// after a pause, as often as it takes, and no try is counted. Its aggregate waits.
///
/// ```
/// # use outbox_diesel::consumer::{HandlerError, Unavailable};
/// fn charge(answer: Result<(), std::io::Error>) -> Result<(), HandlerError> {
///     Ok(answer.map_err(Unavailable::because)?)
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[error("what the handler needs is not available")]
pub struct Unavailable(#[source] HandlerError);

impl Unavailable {
    /// With the reason.
    pub fn because(reason: impl Into<HandlerError>) -> Self {
        Self(reason.into())
    }
}

/// What to do with what has no handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unhandled {
    /// Acknowledge it and go on.
    Skip,
    /// Move it to the stream's dead letters. The default: nothing is lost in silence.
    #[default]
    DeadLetter,
    /// Stop the consumer; the entry stays pending.
    Stop,
}

pub(super) type Outcome = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send>>;

/// A handler of any event, boxed. It is told how long it may take.
pub(super) type Handler = Arc<dyn Fn(Delivery, Duration) -> Outcome + Send + Sync>;

/// An asynchronous closure whose future can be named and so be `Send`, as
/// [`Closure`](crate::transaction::Closure) with one argument more.
#[doc(hidden)]
pub trait Handle<E, C>:
    AsyncFnOnce(E, C) -> Result<(), HandlerError> + FnOnce(E, C) -> <Self as Handle<E, C>>::Future
{
    type Future: Future<Output = Result<(), HandlerError>>;
}

impl<F, E, C, Fut> Handle<E, C> for F
where
    F: AsyncFnOnce(E, C) -> Result<(), HandlerError> + FnOnce(E, C) -> Fut,
    Fut: Future<Output = Result<(), HandlerError>>,
{
    type Future = Fut;
}

#[derive(Default, Clone)]
pub(super) struct Routes {
    by_type: HashMap<String, Vec<(Option<i16>, Handler)>>,
    otherwise: Option<Handler>,
}

impl Routes {
    /// A later handler replaces an earlier one of the same type and version.
    pub(super) fn add(&mut self, event_type: String, version: Option<i16>, handler: Handler) {
        let handlers = self.by_type.entry(event_type).or_default();
        handlers.retain(|(known, _)| *known != version);
        handlers.push((version, handler));
    }

    /// The same handler for all of these events.
    pub(super) fn add_all(&mut self, events: Vec<(&'static str, i16)>, handler: &Handler) {
        for (event_type, version) in events {
            self.add(event_type.to_owned(), Some(version), Arc::clone(handler));
        }
    }

    pub(super) fn otherwise(&mut self, handler: Handler) {
        self.otherwise = Some(handler);
    }

    /// One of the event's version, or else one of any version, or else the one for the rest.
    pub(super) fn find(&self, delivery: &Delivery) -> Option<&Handler> {
        let handlers = self.by_type.get(delivery.event_type()).map_or(&[][..], Vec::as_slice);
        let of = |version| handlers.iter().find(|(known, _)| *known == version);
        of(Some(delivery.event_version()))
            .or_else(|| of(None))
            .map(|(_, handler)| handler)
            .or(self.otherwise.as_ref())
    }
}

/// Whether trying again is in vain, wherever in the error's causes it says so.
pub(super) fn is_final(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<Reject>() || error.is::<Forgotten>() {
            return true;
        }
        let diesel = error.downcast_ref::<diesel::result::Error>();
        if diesel.is_some_and(|error| Forgotten::in_error(error).is_some()) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Whether the event was not to blame, wherever in the error's causes it says so.
pub(super) fn is_unavailable(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<Unavailable>() {
            return true;
        }
        next = error.source();
    }
    false
}

/// An error and its causes in one line, bounded.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    const LIMIT: usize = 1024;
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    if text.len() > LIMIT {
        let end = (0..=LIMIT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
