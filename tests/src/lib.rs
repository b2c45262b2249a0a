//! What all integration tests share: a database of one's own, a Redis prefix of one's own, events,
//! and waiting.

mod database;
mod event;
mod eventually;
mod hooked;
mod redis;
mod relays;
mod sent;
mod timeline;

pub use database::{Scalar, TestDatabase};
pub use event::TestEvent;
pub use eventually::eventually;
pub use hooked::Hooked;
pub use redis::TestRedis;
pub use relays::{Crashable, SOON, orders, quick};
pub use sent::Sent;
pub use timeline::insert;
