//! Transactional outbox for diesel.

mod event;
#[cfg(feature = "relay")]
pub mod message;
#[cfg(feature = "relay")]
pub mod publish;

pub use event::{Headers, MissingAggregateId, OutboxEvent, WithHeader};

/// What the derive's expansion names. Not public API.
#[doc(hidden)]
pub mod __private {
    pub use serde_json;
    pub use std::borrow::Cow;
}
