//! Chaos: relays as processes, servers of their own, and a schedule of what goes wrong.
//!
//! Each scenario ends with a [`Report`]. Everything random comes from a seed, so that a run that
//! fails can be repeated with the same schedule.

mod schedule;
mod report;
mod host;
mod stage;
mod trouble;
mod storm;
mod outage;
mod open_transaction;

pub use open_transaction::{Comparison, open_transaction};
pub use outage::{OUTAGE_RATE, Outage, outage};
pub use report::Report;
pub use schedule::{Schedule, Step, Trouble};
pub use storm::storm;
