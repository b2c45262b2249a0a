//! The events of a service in one list: [`outbox_events!`](crate::outbox_events).

mod distinct;
mod list;

pub use self::distinct::{distinct, slots};
pub use self::list::{Both, Decode, End, Leaf, Readable};

use crate::describe::Described;

/// A list of event types, made by [`outbox_events!`](crate::outbox_events).
pub trait EventSet: Sized {
    /// The listed types by name, and the events of each.
    const MEMBERS: &'static [(&'static str, &'static [Described])];

    /// The listed types.
    #[doc(hidden)]
    type Members;

    /// Reads a message: the type and version that came with it say which event its payload is.
    ///
    /// An event that is not listed, or not in this version, is [`Decoded::Unknown`]: other
    /// services add events without asking. Payloads of versions that a type can
    /// `#[outbox(upcast(...))]` are read as today's. Only for this, every listed type must
    /// implement `serde::Deserialize`.
    ///
    /// # Errors
    /// [`DecodeError`] when the event is known but its payload cannot be read.
    fn decode(
        event_type: &str,
        event_version: i16,
        payload: &[u8],
    ) -> Result<Decoded<Self>, DecodeError>
    where
        Self::Members: Decode<Self>,
    {
        let decoded = Self::Members::decode(event_type, event_version, payload)
            .or_else(|| Self::Members::upcast(event_type, event_version, payload));
        match decoded {
            Some(event) => event.map(Decoded::Event),
            None => Ok(Decoded::Unknown { event_type: event_type.to_owned(), event_version }),
        }
    }
}

/// What a message is to this service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded<E> {
    /// One of the listed events.
    Event(E),
    /// None of them. Usually to be skipped.
    Unknown {
        /// What happened.
        event_type: String,
        /// The version of the payload's shape.
        event_version: i16,
    },
}

impl<E> Decoded<E> {
    /// The event, if it is a listed one.
    #[must_use]
    pub fn event(self) -> Option<E> {
        match self {
            Self::Event(event) => Some(event),
            Self::Unknown { .. } => None,
        }
    }
}

/// Why the payload of a known event could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It has another shape than this version should have. The producer has broken the contract,
    /// or this service has another type than the producer.
    #[error("the payload of `{event_type}` version {event_version} has another shape")]
    Payload {
        /// What the message says it is.
        event_type: String,
        /// Its version.
        event_version: i16,
        /// What serde says.
        source: serde_json::Error,
    },
    /// It was read as another event of its type, as happens to an enum that is
    /// `#[serde(untagged)]`. Give the enum a tag.
    #[error("the payload of `{event_type}` version {event_version} was read as `{read}`")]
    OtherEvent {
        /// What the message says it is.
        event_type: String,
        /// Its version.
        event_version: i16,
        /// What came out.
        read: String,
    },
}

/// Lists the events of a service.
///
/// ```
/// use outbox_diesel::{Decoded, EventSet, OutboxEvent, outbox_events};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
/// #[outbox(aggregate = "order", aggregate_id = "id")]
/// enum OrderEvent {
///     Created { id: i64 },
///     Paid { id: i64, amount: u32 },
/// }
///
/// mod payments {
/// #   use outbox_diesel::OutboxEvent;
/// #   use serde::{Deserialize, Serialize};
///     #[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
///     #[outbox(aggregate = "payment", aggregate_id = "id")]
///     pub struct Captured { pub id: i64 }
/// }
///
/// outbox_events! {
///     #[derive(Debug, PartialEq)]
///     enum ShopEvent {
///         OrderEvent,
///         Payment(payments::Captured),
///     }
/// }
///
/// let decoded = ShopEvent::decode("payment.captured", 1, br#"{ "id": 7 }"#)?;
/// assert_eq!(decoded, Decoded::Event(ShopEvent::Payment(payments::Captured { id: 7 })));
///
/// // Unknown is a value: other services add events without asking.
/// assert_eq!(ShopEvent::decode("order.created", 9, b"{}")?.event(), None);
/// # Ok::<(), outbox_diesel::DecodeError>(())
/// ```
///
/// It makes an enum with one variant per type, `From` each type, and [`EventSet`] for it.
/// `outbox_events! { OrderEvent, PaymentCaptured }` without a name makes `pub enum Events`. The
/// list must not be more visible than its types (E0446 says so).
///
/// Two types that declare the same event type in the same version do not compile:
///
/// ```compile_fail,E0080
/// # use outbox_diesel::{OutboxEvent, outbox_events};
/// #[derive(serde::Serialize, OutboxEvent)]
/// #[outbox(aggregate = "order", aggregate_id = "0")]
/// struct OrderCreated(i64);
///
/// #[derive(serde::Serialize, OutboxEvent)]
/// #[outbox(aggregate = "order", aggregate_id = "0", event_type = "order.created")]
/// struct OrderOpened(i64);
///
/// outbox_events! { enum ShopEvent { OrderCreated, OrderOpened } }
/// ```
#[macro_export]
macro_rules! outbox_events {
    (
        $(#[$meta:meta])*
        $vis:vis enum $name:ident { $($variant:ident $(($member:ty))?),* $(,)? }
    ) => {
        $(#[$meta])*
        #[allow(clippy::large_enum_variant)]
        $vis enum $name {
            $(
                #[doc = ::core::concat!("A `", ::core::stringify!($variant), "`.")]
                $variant($crate::__event_type!($variant $(($member))?)),
            )*
        }

        $(
            #[automatically_derived]
            impl ::core::convert::From<$crate::__event_type!($variant $(($member))?)> for $name {
                fn from(event: $crate::__event_type!($variant $(($member))?)) -> Self {
                    Self::$variant(event)
                }
            }
        )*

        #[automatically_derived]
        impl $crate::EventSet for $name {
            const MEMBERS: &'static [(&'static $crate::__private::str, &'static [$crate::describe::Described])] = &[
                $((
                    ::core::stringify!($variant),
                    <$crate::__event_type!($variant $(($member))?)
                        as $crate::describe::DescribedEvent>::EVENTS,
                ),)*
            ];
            type Members = $crate::__event_tree!($([$variant $(($member))?])*);
        }

        const _: () = $crate::event_set::distinct::<
            { $crate::event_set::slots(<$name as $crate::EventSet>::MEMBERS) },
        >(<$name as $crate::EventSet>::MEMBERS);
    };
    ($($variant:ident $(($member:ty))?),+ $(,)?) => {
        $crate::outbox_events! {
            /// The events of this service.
            pub enum Events { $($variant $(($member))?),+ }
        }
    };
    ($($other:tt)*) => {
        ::core::compile_error!(
            "expected a list of event types; write `outbox_events! { OrderEvent, \
             Payment(payments::Captured) }` or `outbox_events! { pub enum ShopEvent { OrderEvent } }`"
        );
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __event_type {
    ($variant:ident) => {
        $variant
    };
    ($variant:ident ($member:ty)) => {
        $member
    };
}

/// A tree, eight leaves at a time: the compiler's recursion limit is above a thousand types.
#[doc(hidden)]
#[macro_export]
macro_rules! __event_tree {
    () => { $crate::event_set::End };
    ([$($member:tt)+]) => { $crate::event_set::Leaf<$crate::__event_type!($($member)+)> };
    ($a:tt $b:tt $c:tt $d:tt $e:tt $f:tt $g:tt $h:tt $($rest:tt)+) => {
        $crate::event_set::Both<
            $crate::__event_tree!($a $b $c $d $e $f $g $h),
            $crate::__event_tree!($($rest)+),
        >
    };
    ($first:tt $($rest:tt)+) => {
        $crate::event_set::Both<$crate::__event_tree!($first), $crate::__event_tree!($($rest)+)>
    };
}
