//! What all integration tests share: a database of one's own, a Redis prefix of one's own, events,
//! and waiting.

mod database;
mod event;
mod eventually;
mod redis;
mod relays;
mod sent;
mod stream;

pub use database::{Scalar, TestDatabase};
pub use event::TestEvent;
pub use eventually::eventually;
pub use redis::TestRedis;
pub use relays::{SOON, quick};
pub use sent::Sent;
pub use stream::TestStream;
