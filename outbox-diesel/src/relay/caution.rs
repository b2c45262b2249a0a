//! Caution after owners that ended without giving a shard back: perhaps it was the next event that
//! ended them, and their process with them.
//!
//! After one crash cursors are written after every chunk, so that a second one at the same place
//! means something. After two, events go out one by one, and the cursor is written in between:
//! after three, the next event is the one. It is parked before it is sent, and tried alone from
//! then on, each attempt counted before it is made. Who was parked by mistake goes out with that.

use super::fault::Fault;
use super::reader::Reading;
use super::shard::Shard;
use super::worker::{Interrupted, Worker};
use crate::message::Message;
use crate::park::{DEADLY, Reason};
use crate::publish::Publisher;
use crate::session::{Mode, Session, SessionError};
use crate::settle::Place;

/// From so many crashes on, events go out one by one.
const ONE_BY_ONE: i16 = 2;
/// From so many on, the next event is parked first.
const PARK_FIRST: i16 = 3;

impl<P: Publisher> Worker<P> {
    /// Whether cursors are to be written as soon as they move.
    pub(super) fn is_wary(&self) -> bool {
        self.shards.values().any(|shard| shard.crashes > 0)
    }

    /// Whether events of the reading are to go out one by one.
    pub(super) fn is_careful(&self, reading: &Reading) -> bool {
        reading.moves.iter().any(|(shard, ..)| self.tries_alone(*shard))
    }

    /// Whether events of the shard are to go out one by one.
    pub(super) fn tries_alone(&self, shard: u8) -> bool {
        self.shards.get(&shard).is_some_and(|shard| shard.crashes >= ONE_BY_ONE)
    }

    /// Parks the first event if relays end at it; false if the broker is away.
    pub(super) async fn evade(
        &mut self,
        session: &mut Session,
        reading: &Reading,
        messages: &mut Vec<Message<'_>>,
    ) -> Result<bool, Interrupted> {
        let Some(first) = messages.first().copied() else { return Ok(true) };
        if self.shards.get(&first.shard()).is_none_or(|shard| shard.crashes < PARK_FIRST) {
            return Ok(true);
        }
        let Some(arrived) = self.has_arrived(session, reading, &first).await? else {
            return Ok(false);
        };
        if !arrived {
            self.tell_fault(Fault::Deadly, &first, 1, DEADLY);
            self.park(session, vec![(first, Reason::Deadly)]).await?;
            messages.remove(0);
        }
        for (shard, ..) in &reading.moves {
            if let Some(state) = self.shards.get_mut(shard) {
                state.crashes = state.crashes.min(ONE_BY_ONE);
            }
        }
        if !arrived {
            if !self.hold_followers(session, reading, messages).await? {
                return Ok(false);
            }
            self.step(session, reading, first.seq()).await?;
        }
        self.keep_leased(messages);
        Ok(true)
    }

    /// Writes that all up to this event was delivered or parked, so that a crash at the next one can
    /// be told from one at this.
    pub(super) async fn step(
        &mut self,
        session: &mut Session,
        reading: &Reading,
        seq: i64,
    ) -> Result<(), SessionError> {
        for (shard, before, _) in &reading.moves {
            if let Some(state) = self.shards.get_mut(shard) {
                state.done = Place { seq: seq.max(state.done.seq), ..*before };
                state.passed_trial(1);
            }
        }
        self.settle(session, Mode::Relaxed).await?;
        Ok(())
    }

    /// Nothing is left on the main path that could end a relay.
    pub(super) fn calm_down(&mut self) {
        self.shards.values_mut().for_each(Shard::calm_down);
    }
}
