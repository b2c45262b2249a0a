//! How far our shards were delivered: advanced after each chunk, written from time to time.

use tracing::{Instrument as _, debug_span, warn};

use super::reader::{Reading, Step};
use super::shard::UNSETTLED_DIFFS;
use super::worker::{Interrupted, Worker};
use crate::metrics::Batch;
use crate::publish::Publisher;
use crate::session::{Mode, Session, SessionError};
use crate::settle::{self, Move, Place};

impl<P: Publisher> Worker<P> {
    /// Writes the cursors that moved; true if a shard turned out not to be ours.
    pub(super) async fn settle(
        &mut self,
        session: &mut Session,
        mode: Mode,
    ) -> Result<bool, SessionError> {
        let moves: Vec<Move> = self
            .shards
            .iter()
            .filter(|(_, state)| {
                state.done != state.settled || state.crashes != state.settled_crashes
            })
            .map(|(shard, state)| Move {
                shard: *shard,
                epoch: state.epoch,
                from: state.settled,
                to: state.done,
                crashes: state.crashes,
            })
            .collect();
        let lost = self.move_cursors(session, mode, &moves).await?;
        if matches!(mode, Mode::Durable) {
            self.diffs.durable = self.diffs.done;
        }
        Ok(lost)
    }

    async fn move_cursors(
        &mut self,
        session: &mut Session,
        mode: Mode,
        moves: &[Move],
    ) -> Result<bool, SessionError> {
        if moves.is_empty() {
            return Ok(false);
        }
        let span =
            debug_span!("settle", subscription = %self.who.subscription, shards = moves.len());
        let answer = settle::settle(session, mode, &self.who, moves).instrument(span).await?;
        let mut lost = false;
        for m in moves {
            match self.shards.get_mut(&m.shard) {
                Some(state) if answer.contains(&i16::from(m.shard)) => {
                    (state.settled, state.settled_crashes) = (m.to, m.crashes);
                }
                _ => {
                    warn!(subscription = %self.who.subscription, shard = m.shard, "the lease was lost");
                    self.lose(m.shard);
                    lost = true;
                }
            }
        }
        Ok(lost)
    }

    /// Writes a target into cursors before anything of the diff up to it is published.
    pub(super) async fn aim(
        &mut self,
        session: &mut Session,
        shards: &[u8],
        target: i64,
    ) -> Result<(), SessionError> {
        self.settle(session, Mode::Durable).await?;
        let moves: Vec<Move> = shards
            .iter()
            .filter_map(|shard| {
                let state = self.shards.get(shard)?;
                let to = Place { target: Some(target), ..state.done };
                Some(Move {
                    shard: *shard,
                    epoch: state.epoch,
                    from: state.settled,
                    to,
                    crashes: state.crashes,
                })
            })
            .collect();
        self.move_cursors(session, Mode::Durable, &moves).await?;
        for shard in shards {
            if let Some(state) = self.shards.get_mut(shard) {
                state.done = state.settled;
            }
        }
        self.reader.rewind(&self.shards);
        Ok(())
    }

    /// Delivers a reading and reads ahead meanwhile; returns what was read ahead.
    pub(super) async fn advance(
        &mut self,
        session: &mut Session,
        reading: Reading,
    ) -> Result<Option<Step>, Interrupted> {
        if !reading.chunk.is_empty()
            && self.diffs.done - self.diffs.durable >= u64::from(UNSETTLED_DIFFS)
        {
            self.settle(session, Mode::Durable).await?;
        }
        if !reading.chunk.is_empty() {
            self.clocks.idle = 0;
        }
        let owned = self.shards.len();
        let batch = Batch::begin();
        let (tick, events) = (reading.tick, reading.chunk.len());
        let span = debug_span!("batch", subscription = %self.who.subscription, tick, events);
        let (delivered, mut next) = self.deliver(session, &reading).instrument(span).await?;
        if delivered {
            self.health.progressed();
            if !reading.chunk.is_empty() {
                self.health.meter().delivered(&batch);
            }
            for (shard, _, after) in &reading.moves {
                if let Some(state) = self.shards.get_mut(shard) {
                    state.done = *after;
                    state.walk = state.walk.saturating_sub(u32::from(reading.ends_diff));
                    if state.crashes > 0 {
                        state.passed_trial(reading.chunk.len());
                    }
                }
            }
            self.diffs.done += u64::from(reading.ends_diff);
        }
        if !delivered || self.shards.len() != owned {
            self.drop_ahead(&mut next);
        }
        self.reader.recycle(reading.chunk);
        Ok(next)
    }
}
