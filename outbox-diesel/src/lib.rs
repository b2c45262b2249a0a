//! Transactional outbox for diesel and PostgreSQL: an event that is emitted in a transaction reaches
//! the broker if and only if that transaction commits, in order per aggregate, and once where the
//! broker can remember positions, as Redis Streams can.
//!
#![cfg_attr(feature = "async", doc = "```no_run")]
#![cfg_attr(not(feature = "async"), doc = "```ignore")]
//! use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
//! use outbox_diesel::{AsyncEmit as _, OutboxEvent};
//!
//! #[derive(serde::Serialize, OutboxEvent)]
//! #[outbox(aggregate = "order", topic = "orders")]
//! struct OrderPaid {
//!     #[outbox(aggregate_id)]
//!     id: i64,
//! }
//!
//! # async fn pay(conn: &mut AsyncPgConnection, id: i64) -> diesel::QueryResult<()> {
//! conn.transaction(async |conn| {
//!     // The update locks the order. Emitting behind it keeps the order's events in order.
//!     diesel::sql_query("UPDATE orders SET paid = true WHERE id = $1")
//!         .bind::<diesel::sql_types::BigInt, _>(id)
//!         .execute(conn)
//!         .await?;
//!     conn.emit(&OrderPaid { id }).await?;
//!     Ok(())
//! })
//! .await
//! # }
//! ```
//!
//! The [README](https://github.com/outbox-diesel/outbox-diesel#readme) has a quick start, what is
//! promised and what is not, all settings, and how to operate it.
//!
//! # The way of an event
//!
//! The modules are listed in this order, and each uses only what comes before it.
//!
//! 1. **Event**: [`OutboxEvent`] says what the row will hold; derive it.
//! 2. **Emit**: [`Emit`] and [`AsyncEmit`] insert it in the caller's
//!    transaction. [`migrate`] creates the tables, [`schema`] has them for diesel's DSL.
//! 3. **Subscription**: who gets the events; `default` is there from the start. Each
//!    [`subscription`] has its own cursors and failures.
//! 4. **Tick**: a relay saves a snapshot. What became visible between two ticks is a diff, the same
//!    for everyone who reads it.
//! 5. **Lease**: a relay leases some of the subscription's 16 shards.
//! 6. **Read**: it reads the next diff of its shards, chunk by chunk.
//! 7. **Publish**: a [`Publisher`] hands the [`message`]s to a broker and says
//!    what became of each.
//! 8. **Settle**: what was delivered moves the cursors. **Park**: what was rejected is put aside,
//!    and so is what must wait behind it. **Retry**: it is tried again, until it is dead.
//! 9. **Relay**: [`Relay`] does 4 to 8 in a task of the application. **Wake**: while nothing
//!    happens it polls, or sleeps until an emit wakes it.
//! 10. **Inbox** and **consumer**, at the other end: [`inbox`] makes a repeat have no effect, and
//!     `consumer` reads Redis Streams with it.
//! 11. **Admin**: what is left for people to do, one call each, is in [`admin`]. [`doctor`] says why
//!     nothing is delivered, [`tail`] follows events as they commit.
//!
//! # Features
//!
//! | feature | what it adds | default |
//! |---|---|:-:|
//! | | [`OutboxEvent`] and its derive: no diesel, no tokio | |
//! | `emit` | [`Emit`], [`migrate`], [`schema`] | yes |
//! | `async` | [`AsyncEmit`], without libpq | yes |
//! | `relay` | [`Relay`], [`publish`], [`subscription`], [`admin`] | |
//! | `redis` | `publish::redis` | |
//! | `consumer` | `consumer`: typed handlers of events in Redis Streams | |
//! | `metrics` | `metrics`: counters, gauges and histograms | |
//! | `testing` | `testing`; with `relay`, a broker in memory and a relay that runs step by step | |
//!
// What is not compiled in is linked to where it is documented.
#![cfg_attr(
    not(feature = "emit"),
    doc = "
[`Emit`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/trait.Emit.html
[`inbox`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/inbox/
[`migrate`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/migrate/
[`schema`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/schema/
"
)]
#![cfg_attr(
    not(feature = "async"),
    doc = "
[`AsyncEmit`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/trait.AsyncEmit.html
"
)]
#![cfg_attr(
    not(feature = "relay"),
    doc = "
[`Relay`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/relay/struct.Relay.html
[`Publisher`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/publish/trait.Publisher.html
[`admin`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/admin/
[`doctor`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/doctor/
[`tail`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/tail/
[`message`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/message/
[`publish`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/publish/
[`subscription`]: https://docs.rs/outbox-diesel/latest/outbox_diesel/subscription/
"
)]
#![cfg_attr(
    feature = "relay",
    doc = "
[`Publisher`]: publish::Publisher
"
)]

#[allow(unused_extern_crates, reason = "a derive in here finds `::outbox_diesel` by it")]
extern crate self as outbox_diesel;

mod error;
#[cfg(feature = "relay")]
mod options;
#[cfg(not(feature = "metrics"))]
mod metrics;
#[cfg(feature = "metrics")]
pub mod metrics;
mod event;
pub mod describe;
pub mod event_set;
#[cfg(feature = "emit")]
pub mod snapshot;
/// The tables of the schema `outbox` in diesel's DSL, as the migrations leave them.
///
/// ```no_run
/// use diesel::prelude::*;
/// use outbox_diesel::schema::outbox::parked;
///
/// fn dead_letters(conn: &mut PgConnection) -> QueryResult<i64> {
///     parked::table.filter(parked::dead).count().get_result(conn)
/// }
/// ```
#[cfg(feature = "emit")]
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::doc_markdown,
    clippy::wildcard_imports,
    reason = "printed: the docs are the comments in the database"
)]
pub mod schema;
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
mod operation;
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
mod wake;
#[cfg(feature = "relay")]
mod partition;
#[cfg(feature = "relay")]
mod backlog;
#[cfg(feature = "relay")]
pub mod replay;
#[cfg(feature = "relay")]
pub mod relay;
#[cfg(feature = "emit")]
pub mod inbox;
#[cfg(feature = "consumer")]
pub mod consumer;
#[cfg(feature = "relay")]
pub mod admin;
#[cfg(feature = "relay")]
pub mod doctor;
#[cfg(feature = "relay")]
pub mod tail;
#[cfg(feature = "contract")]
pub mod contract;
#[cfg(feature = "testing")]
pub mod testing;

#[doc(hidden)]
pub mod __private;

// Its examples are compiled as this crate's.
#[cfg(all(doctest, feature = "redis", feature = "consumer"))]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

#[cfg(feature = "async")]
pub use emit::AsyncEmit;
#[cfg(feature = "emit")]
pub use emit::{Emit, Emitted};
pub use error::{EmitError, TextProblem};
pub use event::{Headers, MissingAggregateId, OutboxEvent, PAYLOAD_LIMIT, WithHeader};
pub use event_set::{DecodeError, Decoded, EventSet};
#[cfg(feature = "relay")]
pub use options::{InvalidOptions, Order, RelayOptions, RetryOptions, Wake};
pub use outbox_derive::OutboxEvent;
#[cfg(feature = "relay")]
pub use relay::{Health, Relay, RelayHandle};
#[cfg(feature = "async")]
pub use transaction::{AsyncOutboxTransaction, AsyncTransaction};
#[cfg(feature = "emit")]
pub use transaction::{OutboxTransaction, Transaction};
