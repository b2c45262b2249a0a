//! Transactional outbox for diesel.

#[allow(unused_extern_crates, reason = "a derive in here finds `::outbox_diesel` by it")]
extern crate self as outbox_diesel;

mod error;
#[cfg(feature = "relay")]
mod options;
mod event;
pub mod describe;
pub mod event_set;
#[cfg(feature = "emit")]
pub mod snapshot;
#[cfg(feature = "emit")]
mod statement;
#[cfg(feature = "relay")]
mod session;
#[cfg(feature = "relay")]
pub mod message;
#[cfg(feature = "emit")]
pub mod emit;
#[cfg(feature = "emit")]
pub mod transaction;
#[cfg(feature = "emit")]
pub mod migrate;
#[cfg(feature = "relay")]
pub mod subscription;
#[cfg(feature = "relay")]
mod tick;
#[cfg(feature = "relay")]
mod lease;
#[cfg(feature = "relay")]
mod read;
#[cfg(feature = "relay")]
pub mod publish;
#[cfg(feature = "relay")]
mod settle;
#[cfg(feature = "relay")]
mod park;
#[cfg(feature = "relay")]
mod retry;
#[cfg(feature = "relay")]
mod partition;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "contract")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod testing;

#[doc(hidden)]
pub mod __private;

#[cfg(feature = "async")]
pub use emit::AsyncEmit;
#[cfg(feature = "emit")]
pub use emit::{Emit, Emitted};
pub use error::{EmitError, TextProblem};
pub use event::{Headers, MissingAggregateId, OutboxEvent, PAYLOAD_LIMIT, WithHeader};
pub use event_set::{DecodeError, Decoded, EventSet};
#[cfg(feature = "relay")]
pub use options::{InvalidOptions, RelayOptions, RetryOptions};
pub use outbox_derive::OutboxEvent;
#[cfg(feature = "relay")]
pub use relay::{Health, Relay, RelayHandle};
#[cfg(feature = "async")]
pub use transaction::{AsyncOutboxTransaction, AsyncTransaction};
#[cfg(feature = "emit")]
pub use transaction::{OutboxTransaction, Transaction};
