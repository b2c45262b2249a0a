//! Tail: follows events as they commit, each exactly once, without a subscription.
//!
//! It reads the same diffs as relays do, so that a long transaction delays its own events only, and
//! an event that commits late is not missed. Nothing is leased, moved or kept for it.

use std::time::Duration;

use crate::message::{Chunk, SHARDS};
use crate::publish::OwnedMessage;
use crate::read::{self, Diff, Limits, Measure, Reach};
use crate::relay::{Pool, SessionError};
use crate::session::Session;
use crate::tick::{self, Tick};

/// How long one statement may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait when nothing is new.
const PAUSE: Duration = Duration::from_millis(50);
const LIMITS: Limits = Limits { events: 500, bytes: 4 * 1024 * 1024 };

/// Follows events as they commit.
///
/// ```no_run
/// # async fn example(pool: outbox_diesel::relay::Pool) -> Result<(), outbox_diesel::relay::SessionError> {
/// let mut tail = outbox_diesel::tail::Tail::from_now(pool).await?;
/// loop {
///     for event in tail.next().await? {
///         println!("{} {} {}", event.event_type(), event.aggregate_id(), event.payload());
///     }
/// }
/// # }
/// ```
pub struct Tail {
    session: Session,
    /// All that is visible in this tick was returned, or is older than the tail.
    last: Tick,
    /// What became visible behind it, and up to which `seq` that was returned.
    reading: Option<(Diff, i64)>,
    measure: Measure,
}

impl std::fmt::Debug for Tail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tail").field("tick", &self.last.id).finish_non_exhaustive()
    }
}

impl Tail {
    /// Begins with what commits from now on. Opens a connection of its own through the pool's
    /// manager.
    ///
    /// # Errors
    /// No connection, or what the database says. Needs the rights of an operator: it takes ticks
    /// where no relay does.
    pub async fn from_now(pool: Pool) -> Result<Self, SessionError> {
        let mut session = Session::open(pool, TIMEOUT).await?;
        // Another one may just be taking one: then that is now.
        tick::take(&mut session).await?;
        let last = tick::poll(&mut session, i64::MAX).await?.newest;
        Ok(Self { session, last, reading: None, measure: Measure::default() })
    }

    /// Waits for events to commit and returns some of them: at most 500, or about 4 MiB, in the
    /// order of emit among those that became visible together.
    ///
    /// # Errors
    /// The connection is lost, or what the database says. Begin again with
    /// [`from_now`](Self::from_now).
    ///
    /// # Cancel safety
    /// Drop the tail too if the future was dropped: a statement may have been under way.
    pub async fn next(&mut self) -> Result<Vec<OwnedMessage>, SessionError> {
        loop {
            let Some((diff, seq)) = &mut self.reading else {
                self.look().await?;
                continue;
            };
            let shards: Vec<i16> = (0..).take(SHARDS).collect();
            let mut chunk = Chunk::default();
            let reach = read::read(
                &mut self.session,
                diff,
                &shards,
                *seq,
                LIMITS,
                &mut self.measure,
                &mut chunk,
            )
            .await?;
            match reach {
                Reach::Seq(upto) => *seq = upto,
                Reach::End => {
                    self.last = diff.to.clone();
                    self.reading = None;
                }
            }
            if !chunk.is_empty() {
                return Ok(chunk.messages().map(|message| OwnedMessage::from(&message)).collect());
            }
        }
    }

    /// Opens the next diff, or waits a little if there is none.
    async fn look(&mut self) -> Result<(), SessionError> {
        let poll = tick::poll(&mut self.session, self.last.id).await?;
        if let Some(to) = poll.ahead.into_iter().next() {
            let diff = read::open(&mut self.session, self.last.clone(), to, None, None).await?;
            self.reading = Some((diff, 0));
            return Ok(());
        }
        if poll.waiting {
            tick::take(&mut self.session).await?;
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }
}
