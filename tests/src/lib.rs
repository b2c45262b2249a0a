//! What all integration tests share: a database of one's own, a Redis prefix of one's own, events,
//! writers and the oracle that judges what came of their transactions, relays that can be hurt, and
//! waiting.

mod database;
mod event;
mod eventually;
#[cfg(doctest)]
mod guide;
mod hooked;
mod redis;
mod sent;
mod timeline;
mod transfer;
pub mod oracle;
mod writers;
mod proxy;
mod backlog;
mod relays;
mod mishap;
mod relay_thread;
mod relay_process;
mod scene;
mod stream;
pub mod chaos;

pub use backlog::backlog;
pub use database::{Scalar, TestDatabase};
pub use event::TestEvent;
pub use eventually::eventually;
pub use hooked::Hooked;
pub use mishap::{Mishap, MishapPublisher, Mishaps};
pub use proxy::Proxy;
pub use redis::TestRedis;
pub use relay_process::RelayProcess;
pub use relay_thread::RelayThread;
pub use relays::{Crashable, SOON, orders, quick, quick_heartbeat, quick_lease};
pub use scene::Scene;
pub use sent::Sent;
pub use stream::TestStream;
pub use timeline::insert;
pub use transfer::Transfer;
pub use writers::{Writers, Writing};
