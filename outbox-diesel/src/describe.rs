//! What is known of an event type before there is an event: [`DescribedEvent`].

/// A type whose events are known at compile time; `#[derive(OutboxEvent)]` implements it too.
///
/// [`outbox_events!`](crate::outbox_events) and the contract are built on it. By hand, next to an
/// [`OutboxEvent`](crate::OutboxEvent) written by hand:
///
/// ```
/// use outbox_diesel::describe::{Described, DescribedEvent, EventDescription};
///
/// struct Imported;
///
/// impl DescribedEvent for Imported {
///     const EVENTS: &'static [Described] =
///         &[Described::Event(EventDescription::new("order.imported", 1, "order").topic("imports"))];
/// }
/// ```
///
/// Where the names are known only at run time, `&[]` leaves the type out of every catalogue.
#[diagnostic::on_unimplemented(
    message = "it is not known which events `{Self}` has",
    label = "this type does not implement `DescribedEvent`",
    note = "`#[derive(outbox_diesel::OutboxEvent)]` implements it; next to an `OutboxEvent` written by \
            hand, write `impl DescribedEvent` as well"
)]
pub trait DescribedEvent {
    /// Its events: one for a struct, one per variant for an enum.
    const EVENTS: &'static [Described];

    /// Reads the payload of an older version as today's event; `None` if it does not know it.
    /// Written by `#[outbox(upcast(1 = OrderCreatedV1))]`. Default: none.
    ///
    /// # Errors
    /// What serde says if the payload has another shape.
    #[must_use]
    fn upcast(
        event_type: &str,
        event_version: i16,
        payload: &[u8],
    ) -> Option<Result<Self, serde_json::Error>>
    where
        Self: Sized,
    {
        let _ = (event_type, event_version, payload);
        None
    }
}

/// An event of a type, or the events that a variant delegates to.
#[derive(Debug, Clone, Copy)]
pub enum Described {
    /// One event.
    Event(EventDescription),
    /// Those of the event inside a variant.
    Delegated {
        /// The variant, as serde names it but for its case.
        variant: &'static str,
        /// The inner type's.
        events: &'static [Described],
        /// Headers of the enum, which come on top.
        headers: &'static [&'static str],
    },
}

/// What consumers can rely on about one event.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct EventDescription {
    /// What happened.
    pub event_type: &'static str,
    /// The version of the payload's shape.
    pub event_version: i16,
    /// What kind of thing it happened to.
    pub aggregate_type: &'static str,
    /// Where it is published.
    pub topic: &'static str,
    /// The names of its headers; one that comes from an `Option` may be left out.
    pub headers: &'static [&'static str],
    /// The variant, as serde names it but for its case. `None` for a struct.
    pub variant: Option<&'static str>,
    /// Older versions whose payloads can still be read as this one.
    pub upcasts: &'static [i16],
}

impl EventDescription {
    /// An event without headers, published under its aggregate's name.
    #[must_use]
    pub const fn new(
        event_type: &'static str,
        event_version: i16,
        aggregate_type: &'static str,
    ) -> Self {
        Self {
            event_type,
            event_version,
            aggregate_type,
            topic: aggregate_type,
            headers: &[],
            variant: None,
            upcasts: &[],
        }
    }

    /// Where it is published. Default: the aggregate type.
    #[must_use]
    pub const fn topic(mut self, topic: &'static str) -> Self {
        self.topic = topic;
        self
    }

    /// The names of its headers. Default: none.
    #[must_use]
    pub const fn headers(mut self, headers: &'static [&'static str]) -> Self {
        self.headers = headers;
        self
    }

    /// The variant that it is. Default: none, for a struct.
    #[must_use]
    pub const fn variant(mut self, variant: &'static str) -> Self {
        self.variant = Some(variant);
        self
    }

    /// Older versions that can still be read. Default: none.
    #[must_use]
    pub const fn upcasts(mut self, upcasts: &'static [i16]) -> Self {
        self.upcasts = upcasts;
        self
    }
}

/// Whether a type has this event, in this version.
pub(crate) fn has(events: &[Described], event_type: &str, event_version: i16) -> bool {
    events.iter().any(|described| match described {
        Described::Event(event) => {
            event.event_version == event_version && event.event_type == event_type
        }
        Described::Delegated { events, .. } => has(events, event_type, event_version),
    })
}

/// A pointer to an event is that event.
macro_rules! described_behind {
    ($($pointer:ty),*) => {
        $(
            #[diagnostic::do_not_recommend]
            impl<E: DescribedEvent + ?Sized> DescribedEvent for $pointer {
                const EVENTS: &'static [Described] = E::EVENTS;
            }
        )*
    };
}

described_behind!(&E, Box<E>, std::sync::Arc<E>, std::rc::Rc<E>);
