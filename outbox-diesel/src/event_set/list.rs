//! The listed types as a type, so that what a use of the list asks of them is asked only there.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use super::DecodeError;
use crate::describe::{self, DescribedEvent};
use crate::event::OutboxEvent;

/// No type.
#[doc(hidden)]
pub struct End;

/// One type.
#[doc(hidden)]
pub struct Leaf<E>(PhantomData<E>);

/// All of two lists.
#[doc(hidden)]
pub struct Both<L, R>(PhantomData<(L, R)>);

/// A list whose types can be read; see [`EventSet::decode`](super::EventSet::decode).
#[doc(hidden)]
pub trait Decode<S> {
    fn decode(event_type: &str, version: i16, payload: &[u8]) -> Option<Result<S, DecodeError>>;
    fn upcast(event_type: &str, version: i16, payload: &[u8]) -> Option<Result<S, DecodeError>>;
}

impl<S> Decode<S> for End {
    fn decode(_: &str, _: i16, _: &[u8]) -> Option<Result<S, DecodeError>> {
        None
    }
    fn upcast(_: &str, _: i16, _: &[u8]) -> Option<Result<S, DecodeError>> {
        None
    }
}

impl<S, L: Decode<S>, R: Decode<S>> Decode<S> for Both<L, R> {
    fn decode(event_type: &str, version: i16, payload: &[u8]) -> Option<Result<S, DecodeError>> {
        L::decode(event_type, version, payload).or_else(|| R::decode(event_type, version, payload))
    }
    fn upcast(event_type: &str, version: i16, payload: &[u8]) -> Option<Result<S, DecodeError>> {
        L::upcast(event_type, version, payload).or_else(|| R::upcast(event_type, version, payload))
    }
}

impl<S: From<E>, E: DescribedEvent + OutboxEvent + Readable> Decode<S> for Leaf<E> {
    fn decode(event_type: &str, version: i16, payload: &[u8]) -> Option<Result<S, DecodeError>> {
        if !describe::has(E::EVENTS, event_type, version) {
            return None;
        }
        let other = |read: &E| read.event_type() != event_type;
        Some(match E::read(payload) {
            Ok(event) if other(&event) => Err(DecodeError::OtherEvent {
                event_type: event_type.to_owned(),
                event_version: version,
                read: event.event_type().to_owned(),
            }),
            Ok(event) => Ok(S::from(event)),
            Err(source) => Err(payload_error(event_type, version, source)),
        })
    }

    fn upcast(event_type: &str, version: i16, payload: &[u8]) -> Option<Result<S, DecodeError>> {
        let event = E::upcast(event_type, version, payload)?;
        Some(event.map(S::from).map_err(|source| payload_error(event_type, version, source)))
    }
}

fn payload_error(event_type: &str, version: i16, source: serde_json::Error) -> DecodeError {
    DecodeError::Payload { event_type: event_type.to_owned(), event_version: version, source }
}

/// What serde can read. `Deserialize` itself would list every other type that has it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be decoded, as it does not implement `serde::Deserialize`",
    label = "every type of the list must be readable for `decode`",
    note = "add `#[derive(serde::Deserialize)]` to `{Self}`"
)]
pub trait Readable: Sized {
    fn read(payload: &[u8]) -> Result<Self, serde_json::Error>;
}

#[diagnostic::do_not_recommend]
impl<E: DeserializeOwned> Readable for E {
    fn read(payload: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(payload)
    }
}
