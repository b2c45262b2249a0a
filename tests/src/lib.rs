//! What all integration tests share: a database of one's own, a Redis prefix of one's own, and
//! waiting.

mod database;
mod eventually;
mod redis;

pub use database::{Scalar, TestDatabase};
pub use eventually::eventually;
pub use redis::TestRedis;
