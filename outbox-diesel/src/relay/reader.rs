//! Decides what to read next: the shards that are furthest behind, their next diff, its next chunk.

use std::collections::BTreeMap;
use std::time::Instant;

use super::shard::Shard;
use crate::message::Chunk;
use crate::read::{self, Diff, Limits, Measure, Reach};
use crate::session::{Session, SessionError};
use crate::settle::Place;
use crate::subscription::{self, TopicFilter};
use crate::tick::{self, AHEAD, Tick};

/// What to do next.
#[derive(Debug)]
pub(super) enum Step {
    /// Deliver these.
    Deliver(Reading),
    /// These shards are far behind: write this tick into their cursors as the target.
    Aim { shards: Vec<u8>, target: i64 },
    /// Nothing to read; if waiting, a tick would show something.
    CaughtUp { waiting: bool },
    /// No shard is ours.
    Idle,
}

/// A chunk of one diff, for shards that stand at the same diff.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) chunk: Chunk,
    /// The diff's later tick, the first part of its events' positions.
    pub(super) tick: i64,
    pub(super) mark: i64,
    /// Where each shard stands before and after it.
    pub(super) moves: Vec<(u8, Place, Place)>,
    /// Whether it is the last one of its diff.
    pub(super) ends_diff: bool,
}

/// Below it lies no event of a transaction that was in flight at the tick.
#[derive(Debug, Clone, Copy)]
struct Floor {
    tick: i64,
    /// An id may come again after the database went back in time.
    mark: i64,
    seq: i64,
}

/// Reads ahead of what was delivered, by one chunk.
#[derive(Debug, Default)]
pub(super) struct Reader {
    at: BTreeMap<u8, Place>,
    diff: Option<Diff>,
    /// The target of the shards that `diff` was opened for. Others that stand at the same tick
    /// have not written it into their cursors: theirs is another diff.
    target: Option<i64>,
    spare: Vec<Chunk>,
    subscription: String,
    filters: Vec<TopicFilter>,
    /// All filters from this tick or an earlier one on are among them.
    filters_at: i64,
    /// The newest filter of any subscription when they were read.
    newest_filter: i64,
    newest: i64,
    /// Of the newest tick, and of the one that was newest before: the next diff begins there.
    floors: [Option<Floor>; 2],
    /// When a poll first showed the newest tick.
    pub(super) newest_seen: Option<Instant>,
    /// How many events to ask for, if fewer than are allowed: see [`events_to_ask_for`].
    asked: Option<u16>,
    measure: Measure,
}

impl Reader {
    pub(super) fn new(subscription: String) -> Self {
        Self { subscription, filters_at: -1, newest_filter: -1, ..Self::default() }
    }

    /// Reads the topic filters again before it opens another diff.
    pub(super) fn forget_filters(&mut self) {
        self.diff = None;
        self.filters_at = -1;
        self.newest_filter = -1;
    }

    /// Starts over from what was delivered.
    pub(super) fn rewind(&mut self, shards: &BTreeMap<u8, Shard>) {
        self.at = shards.iter().map(|(shard, state)| (*shard, state.done)).collect();
    }

    /// Takes a chunk back, to be filled again.
    pub(super) fn recycle(&mut self, chunk: Chunk) {
        self.spare.push(chunk);
    }

    /// Reads the next chunk.
    pub(super) async fn next(
        &mut self,
        session: &mut Session,
        shards: &BTreeMap<u8, Shard>,
        limits: Limits,
    ) -> Result<Step, SessionError> {
        let Some((tick, target)) = self.at.values().map(|place| (place.tick, place.target)).min()
        else {
            return Ok(Step::Idle);
        };
        let group: Vec<u8> = self
            .at
            .iter()
            .filter(|(_, place)| (place.tick, place.target) == (tick, target))
            .map(|(shard, _)| *shard)
            .collect();

        let is_current =
            self.target == target && self.diff.as_ref().is_some_and(|diff| diff.from.id == tick);
        if !is_current {
            match self.open(session, shards, &group, tick, target).await? {
                Ok(diff) => (self.diff, self.target) = (Some(diff), target),
                Err(step) => return Ok(step),
            }
        }
        let diff = self.diff.as_ref().expect("opened just above");

        let seq = group.iter().map(|shard| self.at[shard].seq).min().unwrap_or(0);
        let numbers: Vec<i16> = group.iter().map(|shard| i16::from(*shard)).collect();
        let mut chunk = self.spare.pop().unwrap_or_default();
        let asked = Limits { events: self.asked.unwrap_or(limits.events), ..limits };
        let measure = &mut self.measure;
        let reach = read::read(session, diff, &numbers, seq, asked, measure, &mut chunk).await?;
        self.asked = events_to_ask_for(&chunk, asked, limits);

        let mut moves = Vec::with_capacity(group.len());
        for shard in group {
            let before = self.at[&shard];
            let after = match reach {
                // Shards of one group may stand at unlike places within the diff.
                Reach::Seq(seq) => Place { seq: seq.max(before.seq), ..before },
                Reach::End => Place { tick: diff.to.id, target: None, seq: 0 },
            };
            self.at.insert(shard, after);
            moves.push((shard, before, after));
        }
        let (tick, mark) = (diff.to.id, diff.to.mark);
        Ok(Step::Deliver(Reading { chunk, tick, mark, moves, ends_diff: reach == Reach::End }))
    }

    /// Opens the diff behind `tick`.
    async fn open(
        &mut self,
        session: &mut Session,
        shards: &BTreeMap<u8, Shard>,
        group: &[u8],
        tick: i64,
        target: Option<i64>,
    ) -> Result<Result<Diff, Step>, SessionError> {
        let missing = || SessionError::Query(diesel::result::Error::NotFound);
        let to = if let Some(target) = target {
            // Perhaps a relay aimed that knew of more filters than this one.
            if self.filters_at < tick {
                self.read_filters(session, tick).await?;
            }
            tick::find(session, target).await?.ok_or_else(missing)?
        } else {
            let mut poll = tick::poll(session, tick).await?;
            if self.newest_filter != poll.newest_filter {
                self.read_filters(session, poll.newest.id).await?;
                self.newest_filter = poll.newest_filter;
            }
            self.filters_at = poll.newest.id;
            if self.newest != poll.newest.id {
                self.newest = poll.newest.id;
                let Tick { id, mark, .. } = poll.newest;
                self.floors = [Some(Floor { tick: id, mark, seq: poll.floor }), self.floors[0]];
                self.newest_seen = Some(Instant::now());
            }
            if poll.ahead.is_empty() {
                return Ok(Err(Step::CaughtUp { waiting: poll.waiting }));
            }
            // Only from the start of a diff: in the middle, what is done of it is told by its seq.
            let may_aim = |shard: &u8| {
                self.at[shard].seq == 0 && shards.get(shard).is_some_and(|s| s.may_aim(tick))
            };
            if poll.ahead.len() == AHEAD && group.iter().all(may_aim) {
                let target = self.target(session, tick, poll.newest.id).await?;
                if target > poll.ahead[0].id {
                    return Ok(Err(Step::Aim { shards: group.to_vec(), target }));
                }
            }
            poll.ahead.swap_remove(0)
        };
        let from = match self.diff.take() {
            Some(diff) if diff.to.id == tick => diff.to,
            _ => tick::find(session, tick).await?.ok_or_else(missing)?,
        };
        let topics = self.topics(&from);
        let mut known = self.floors.iter().flatten();
        let floor = known.find(|floor| (floor.tick, floor.mark) == (from.id, from.mark));
        let floor = floor.map(|floor| floor.seq);
        Ok(Ok(read::open(session, from, to, topics, floor).await?))
    }

    /// A filter commits with its tick, so that who has seen the tick sees the filter.
    async fn read_filters(&mut self, session: &mut Session, seen: i64) -> Result<(), SessionError> {
        self.filters = subscription::filters(session, &self.subscription).await?;
        self.filters_at = seen;
        Ok(())
    }

    /// The furthest tick to aim at: not past our own shards ahead, so that they come together, nor
    /// past one that a topic filter names.
    async fn target(
        &self,
        session: &mut Session,
        tick: i64,
        newest: i64,
    ) -> Result<i64, SessionError> {
        let shards = self.at.values().map(|place| place.target.unwrap_or(place.tick));
        let furthest = shards.filter(|limit| *limit > tick).fold(newest, i64::min);
        let filters = self.filters.iter().map(|filter| filter.from_tick);
        match filters.filter(|from| (tick + 1..=furthest).contains(from)).min() {
            Some(from) => tick::last_below(session, from + 1).await,
            None => Ok(furthest),
        }
    }

    /// A filter applies to what its tick did not see yet: to the diffs that begin with that tick or
    /// a later one. No diff reaches beyond it from before, see [`target`](Self::target).
    fn topics(&self, from: &Tick) -> Option<Vec<String>> {
        self.filters
            .iter()
            .rev()
            .find(|filter| filter.from_tick <= from.id)
            .and_then(|filter| filter.topics.clone())
    }
}

/// PostgreSQL unpacks every event that a read may take, to find where the chunk is full: of large
/// ones it must not be asked for many more than fit, or a backlog is unpacked once per chunk.
fn events_to_ask_for(chunk: &Chunk, asked: Limits, limits: Limits) -> Option<u16> {
    let bytes: usize = chunk.messages().map(|m| m.payload().len() + m.headers().len()).sum();
    // Never none: a read that asks for nothing would pass over everything.
    let is_heavy =
        !chunk.is_empty() && u32::try_from(bytes).map_or(true, |bytes| bytes >= limits.bytes / 2);
    let twice = if is_heavy {
        u16::try_from(chunk.len().saturating_mul(2)).unwrap_or(u16::MAX)
    } else {
        asked.events.saturating_mul(2)
    };
    (twice < limits.events).then_some(twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_never_asks_for_no_event_at_all() {
        let limits = Limits { events: 1000, bytes: 1 };
        let asked = Limits { events: 1, bytes: 1 };
        assert_eq!(events_to_ask_for(&Chunk::default(), asked, limits), Some(2));
    }
}
