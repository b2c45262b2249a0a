//! From a delivery to the value that its handler takes.

use serde::de::DeserializeOwned;

use super::delivery::{Delivery, InvalidPayload};
use super::route::{HandlerError, Reject};
use crate::describe::{Described, DescribedEvent};
use crate::event::OutboxEvent;
use crate::event_set::{Decode, DecodeError, Decoded, EventSet, Leaf};

/// How a handler's value is read. What cannot be read now cannot be read the next time either.
pub(super) type Decoder<T> = fn(&Delivery) -> Result<T, Reject>;

/// A payload of any shape that serde can read.
pub(super) fn payload<T: DeserializeOwned>(delivery: &Delivery) -> Result<T, Reject> {
    delivery.payload_as().map_err(Reject::because)
}

/// An event of one type, also from an older version that it knows.
pub(super) fn event<E>(delivery: &Delivery) -> Result<E, Reject>
where
    E: OutboxEvent + DescribedEvent + DeserializeOwned,
{
    let (name, version) = (delivery.event_type(), delivery.event_version());
    <Leaf<E> as Decode<E>>::decode(name, version, delivery.payload())
        .or_else(|| <Leaf<E> as Decode<E>>::upcast(name, version, delivery.payload()))
        .unwrap_or_else(|| unreachable!("{name} {version} was registered from the type's own list"))
        .map_err(unreadable)
}

/// An event of a list.
pub(super) fn member<S>(delivery: &Delivery) -> Result<S, Reject>
where
    S: EventSet,
    S::Members: Decode<S>,
{
    let (name, version) = (delivery.event_type(), delivery.event_version());
    match S::decode(name, version, delivery.payload()).map_err(unreadable)? {
        Decoded::Event(event) => Ok(event),
        Decoded::Unknown { .. } => Err(Reject::because(format!(
            "{name} version {version} is described and cannot be decoded"
        ))),
    }
}

/// The types and versions that can be read as one of these events.
pub(super) fn readable(events: &[Described]) -> Vec<(&'static str, i16)> {
    let mut all = Vec::new();
    for described in events {
        match described {
            Described::Event(event) => {
                all.push((event.event_type, event.event_version));
                all.extend(event.upcasts.iter().map(|version| (event.event_type, *version)));
            }
            Described::Delegated { events, .. } => all.extend(readable(events)),
        }
    }
    all
}

/// Without what serde quotes of the payload: it goes to the dead letters and the log.
fn unreadable(error: DecodeError) -> Reject {
    let error: HandlerError = match error {
        DecodeError::Payload { event_type, source, .. } => {
            InvalidPayload::new(event_type, &source).into()
        }
        other => other.into(),
    };
    Reject::because(error)
}
