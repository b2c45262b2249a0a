//! Admin: what an operator does. Every repair is one call on a connection of its own, in a
//! transaction of its own, safe to repeat and to run twice at once.
//!
//! | what happened | call |
//! |---|---|
//! | how far is everyone, and who works on what? | [`overview`], [`partitions`] |
//! | why is nothing delivered? | [`doctor::examine`](crate::doctor::examine) |
//! | which events failed for good? | [`list`], [`show`] |
//! | the cause is mended | [`retry`], [`retry_many`], [`retry_all`] |
//! | an event is beyond help | [`discard`], [`discard_all`] |
//! | where is event …? | [`find`] |
//! | the backlog is worthless | [`plan_skip`], [`skip`] |
//! | the database was dumped and restored | [`plan_rebase`], [`rebase`] |
//! | a consumer lost some events | [`replay`], [`replay_progress`], [`cancel_replay`] |
//! | no partition is ahead of the sequence | [`extend_partitions`] |
//! | it lost all since a time | [`subscription::rewind`](crate::subscription::rewind) |
//!
//! Running relays notice within half a second; they need no restart.
//!
//! ```no_run
//! use outbox_diesel::admin::{self, Filter};
//!
//! # async fn example(conn: &mut diesel_async::AsyncPgConnection) -> Result<(), admin::AdminError> {
//! let refused = Filter::default().subscription("default").error_contains("no such stream");
//! for letter in admin::list(conn, &refused, None, 100).await?.letters {
//!     println!("{} {} after {} attempts", letter.event_id, letter.event_type, letter.attempts);
//! }
//! let events = admin::retry_all(conn, &refused).await?;
//! println!("{events} events are tried again");
//! # Ok(())
//! # }
//! ```
//!
//! # Cancel safety
//! Of every call in here: if the future was dropped, drop the connection too, since its transaction
//! may still be open. Whether the call had been committed is unknown then; repeat it.

mod discard;
mod filter;
mod find;
mod letters;
mod overview;
mod partitions;
mod rebase;
mod replay;
mod retry;
mod skip;
mod status;

pub use self::discard::{Discarded, discard, discard_all};
pub use self::filter::Filter;
pub use self::find::{Found, Place, find};
pub use self::letters::{After, Letter, Page, Shown, list, show};
pub use self::overview::{
    Log, Overview, RelayOverview, ShardOverview, SubscriptionOverview, overview, recent_topics,
};
pub use self::partitions::{Partition, extend_partitions, partitions};
pub use self::rebase::{RebasePlan, Undelivered, plan_rebase, rebase};
pub use self::replay::{Progress, Replay, cancel_replay, replay, replay_progress};
pub use self::retry::{retry, retry_all, retry_many};
pub use self::skip::{Events, SkipPlan, plan_skip, skip};
pub use self::status::Status;
pub use crate::operation::AdminError;
