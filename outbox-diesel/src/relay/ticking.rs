//! When to look and when to tick: often while events come, ever less often while none do.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug_span};

use super::backoff::pause_for;
use super::worker::Worker;
use crate::message::SHARDS;
use crate::publish::Publisher;
use crate::session::{Session, SessionError};
use crate::tick;

/// At most 200 ticks a second: each costs a transaction id and a flush.
const PAUSE: Duration = Duration::from_millis(5);
/// How late tokio's timers are on average: they are precise to a millisecond, rounded up.
const LATE: Duration = Duration::from_micros(500);
/// While there is a backlog, or the broker is away, the timeline goes on at this pace.
pub(super) const PACE: Duration = Duration::from_millis(500);

impl<P: Publisher> Worker<P> {
    pub(super) async fn keep_ticking(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let is_quiet = self.clocks.tick.is_none_or(|last| last.elapsed() >= PACE);
        if is_quiet && !self.shards.is_empty() && tick::poll(session, i64::MAX).await?.waiting {
            self.take_tick(session).await?;
        }
        Ok(())
    }

    async fn take_tick(&mut self, session: &mut Session) -> Result<(), SessionError> {
        // From its start: the pace is that of the ticks, however long one takes.
        self.clocks.tick = Some(Instant::now());
        tick::take(session).instrument(debug_span!("tick")).await
    }

    /// Nothing to read: tick if that would show something, else wait a little.
    pub(super) async fn catch_up(
        &mut self,
        session: &mut Session,
        waiting: bool,
        cancelled: &CancellationToken,
    ) -> Result<(), SessionError> {
        let pause = self.options.poll_awake.saturating_mul(1 << self.clocks.idle.min(16));
        let pause = pause.min(self.options.poll_idle);
        if !waiting {
            self.calm_down();
            self.clocks.idle += 1;
            return self.rest(session, pause, cancelled).await;
        }
        self.sleeping.stir();
        // Ticks that brought nothing were for others: they, too, are asked for ever less often.
        let wait = pause.max(PAUSE);
        if let Some(wait) = self.last_tick().and_then(|last| wait.checked_sub(last.elapsed())) {
            pause_for(wait.saturating_sub(LATE), cancelled).await;
            if self.has_company() {
                // Look again: one of them may have taken the tick meanwhile.
                return Ok(());
            }
        }
        self.clocks.idle += 1;
        self.take_tick(session).await
    }

    /// When a tick was last taken, by this relay or by one that shares the work.
    fn last_tick(&self) -> Option<Instant> {
        let seen = if self.has_company() { self.reader.newest_seen } else { None };
        self.clocks.tick.max(seen)
    }

    /// Whether other relays have shards of this subscription.
    fn has_company(&self) -> bool {
        self.shards.len() < SHARDS
    }
}
