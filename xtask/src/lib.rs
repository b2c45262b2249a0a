//! Private PostgreSQL, Redis and PgBouncer servers for tests, checks and the demo.
//!
//! Every server listens on a free port of the loopback interface, keeps its data in a fresh
//! directory below `target/servers` and ends when its value is dropped. A small watchdog ends it
//! even if the process that started it is killed; what such a process leaves on disk is removed at
//! the next start.
//!
//! ```no_run
//! # fn main() -> Result<(), xtask::ServerError> {
//! use xtask::postgres::{Options, Postgres};
//!
//! let mut postgres = Postgres::start(Options::default())?;
//! println!("{}", postgres.url("postgres"));
//! postgres.kill()?;
//! postgres.restart()?;
//! # Ok(())
//! # }
//! ```

mod account;
mod directory;
mod error;
pub mod fetch;
mod identity;
pub mod install;
pub mod pgbouncer;
mod port;
pub mod postgres;
mod process;
pub mod programs;
pub mod redis;
mod watchdog;

pub use directory::{clean_leftovers, target};
pub use error::ServerError;
pub use watchdog::Watchdog;
