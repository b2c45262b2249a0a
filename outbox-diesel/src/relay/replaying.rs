//! Sends what an operator wants replayed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::attempt::{Attempt, attempt};
use super::fault::Fault;
use super::worker::{Interrupted, Worker};
use crate::message::Message;
use crate::message::SHARDS;
use crate::park::{DEADLY, storable};
use crate::publish::{Publisher, Repeat, Stamp, Verdict};
use crate::read::Limits;
use crate::replay::{self, FORGOTTEN, Outcome, Replay, Window};
use crate::session::Session;

/// A pause is not made up for by more than this.
const LONGEST: Duration = Duration::from_secs(1);
/// So many relays in a row may end at an event that is sent alone.
const TRIES: i16 = 2;

/// The replay that a relay works at.
#[derive(Debug, Default)]
pub(super) struct Replaying {
    /// There may be one: an operator has changed something, or there was one before.
    pub(super) is_likely: bool,
    last: Option<Instant>,
    /// What was read and is not sent, since inboxes may have forgotten it: by `seq` and shard.
    forgotten: Vec<(i64, i16)>,
}

impl Replaying {
    /// How many events our share of the rate allows now.
    fn allowance(&mut self, replay: &Replay, shards: usize, limit: u16) -> u16 {
        let now = Instant::now();
        let passed = self.last.map_or(LONGEST / 10, |last| now - last);
        let whole = u128::from(replay.per_second.unsigned_abs()) * shards as u128 / SHARDS as u128;
        // A slow replay sends one at a time, after whatever pause that takes.
        let longest = LONGEST.as_millis().max(1000 / whole.max(1) + 1);
        let events = whole.max(1) * passed.as_millis().min(longest) / 1000;
        if events > 0 {
            self.last = Some(now);
        }
        u16::try_from(events).unwrap_or(u16::MAX).min(limit)
    }
}

impl<P: Publisher> Worker<P> {
    /// Sends the next events of the subscription's replay, if there is one.
    pub(super) async fn replay(&mut self, session: &mut Session) -> Result<(), Interrupted> {
        let own: Vec<i16> = self.shards.keys().map(|shard| i16::from(*shard)).collect();
        let Some(replay) = replay::under_way(session, &self.who, own).await? else {
            self.replaying.is_likely = false;
            return Ok(());
        };
        let events =
            self.replaying.allowance(&replay, self.shards.len(), self.options.batch_events);
        if events == 0 {
            return Ok(());
        }
        let mut chunk = std::mem::take(&mut self.retry_chunk);
        let limits = Limits { events, ..self.limits() };
        let Window { reach, forgotten } =
            replay::read(session, &replay, limits, &mut chunk).await?;
        self.replaying.forgotten = forgotten;
        let messages: Vec<Message<'_>> = chunk.messages().collect();
        let sent = if replay.is_careful() {
            self.replay_one_by_one(session, replay, messages, reach).await
        } else {
            self.replay_together(session, &replay, messages, reach).await
        };
        self.retry_chunk = chunk;
        sent
    }

    async fn replay_together(
        &mut self,
        session: &mut Session,
        replay: &Replay,
        messages: Vec<Message<'_>>,
        reach: i64,
    ) -> Result<(), Interrupted> {
        if !messages.is_empty() {
            replay::go_ahead(session, &self.who, &self.epochs(), replay, reach).await?;
        }
        self.send_replay(session, replay, messages, reach, 0).await?;
        Ok(())
    }

    /// A relay ended at one of these. It is found, and left out, as on the main path: each is tried
    /// alone, and that is written first.
    async fn replay_one_by_one(
        &mut self,
        session: &mut Session,
        mut replay: Replay,
        messages: Vec<Message<'_>>,
        reach: i64,
    ) -> Result<(), Interrupted> {
        let careful_to = replay.careful_to;
        for message in messages {
            let Some(shard) = self.shards.get(&message.shard()) else { return Ok(()) };
            let tries =
                replay::try_alone(session, &self.who, shard.epoch, &replay, &message).await?;
            match tries {
                None => return Ok(()),
                Some(tries) if tries > TRIES => {
                    self.tell_fault(Fault::DeadlyInReplay, &message, tries.into(), DEADLY);
                    let error = Some(String::from(DEADLY));
                    let outcome = Outcome { refused: 1, error, ..Outcome::default() };
                    let outcomes = BTreeMap::from([(message.shard().into(), outcome)]);
                    self.settle_replay(session, &replay, message.seq(), outcomes, careful_to)
                        .await?;
                }
                Some(_) => {
                    let sent = vec![message];
                    let goes_on =
                        self.send_replay(session, &replay, sent, message.seq(), careful_to).await?;
                    if !goes_on {
                        return Ok(());
                    }
                }
            }
            replay.seq = message.seq();
        }
        self.send_replay(session, &replay, Vec::new(), reach, careful_to).await?;
        Ok(())
    }

    /// Sends events and writes what came of them; false if the broker is away.
    async fn send_replay(
        &mut self,
        session: &mut Session,
        replay: &Replay,
        mut messages: Vec<Message<'_>>,
        mut reach: i64,
        careful_to: i64,
    ) -> Result<bool, Interrupted> {
        let mut outcomes = BTreeMap::new();
        let mut is_away = false;
        self.keep_leased(&mut messages);
        while let Some(first) = messages.first().map(Message::seq) {
            // A generation of its own: what was delivered or retried before is no repeat, and what
            // this replay has sent is.
            let generation = replay.generation;
            let stamp = Stamp { repeat: Repeat::EventId, generation, ..self.stamp.clone() };
            let limit = self.options.publish_timeout;
            match attempt(&mut self.publisher, &stamp, &messages, limit).await {
                Attempt::Contacts(contacts) => self.verify(session, &contacts, None).await?,
                Attempt::Unavailable(reason) => {
                    self.go_out(&reason);
                    reach = first - 1;
                    is_away = true;
                    break;
                }
                Attempt::Unanswered(reason) => {
                    self.raise_epochs(session).await?;
                    // The first one alone: the others have their turn in the next pass.
                    reach = first;
                    if messages.len() == 1 {
                        let verdict = [Verdict::Rejected(reason)];
                        messages = take_in(self, messages, &verdict, &mut outcomes);
                    } else {
                        messages.truncate(1);
                    }
                }
                Attempt::Receipt(receipt) => {
                    let before = messages.len();
                    messages = take_in(self, messages, receipt.verdicts(), &mut outcomes);
                    self.raise_fenced(session, &receipt).await?;
                    let is_stuck = messages.len() == before && receipt.fenced_shards().is_empty();
                    let reason = receipt.unavailability().map(|unavailable| unavailable.0.as_str());
                    if let Some(reason) =
                        reason.or(is_stuck.then_some("the publisher attempted nothing"))
                    {
                        self.go_out(reason);
                        reach = messages.first().map_or(reach, |message| message.seq() - 1);
                        is_away = true;
                        break;
                    }
                    self.come_back();
                }
            }
            self.keep_leased(&mut messages);
        }
        self.settle_replay(session, replay, reach, outcomes, careful_to).await?;
        Ok(!is_away)
    }

    async fn settle_replay(
        &mut self,
        session: &mut Session,
        replay: &Replay,
        reach: i64,
        mut outcomes: BTreeMap<i16, Outcome>,
        careful_to: i64,
    ) -> Result<(), Interrupted> {
        for shard in &replay.shards {
            outcomes.entry(*shard).or_default();
        }
        for (_, shard) in self.replaying.forgotten.extract_if(.., |(seq, _)| *seq <= reach) {
            let outcome = outcomes.entry(shard).or_default();
            outcome.refused += 1;
            outcome.error.get_or_insert_with(|| FORGOTTEN.to_owned());
        }
        let outcomes: Vec<(i16, Outcome)> = outcomes.into_iter().collect();
        let epochs = self.epochs();
        replay::settle(session, &self.who, &epochs, replay, reach, &outcomes, careful_to).await?;
        Ok(())
    }

    fn epochs(&self) -> Vec<(u8, i64)> {
        self.shards.iter().map(|(shard, state)| (*shard, state.epoch)).collect()
    }
}

/// Counts what came of each event, and returns those that were not attempted.
fn take_in<'a, P>(
    worker: &Worker<P>,
    messages: Vec<Message<'a>>,
    verdicts: &[Verdict],
    outcomes: &mut BTreeMap<i16, Outcome>,
) -> Vec<Message<'a>> {
    let mut rest = Vec::new();
    for (message, verdict) in messages.into_iter().zip(verdicts) {
        let outcome = outcomes.entry(message.shard().into()).or_default();
        match verdict {
            Verdict::Delivered => outcome.sent += 1,
            Verdict::Rejected(reason) => {
                worker.tell_fault(Fault::RefusedInReplay, &message, 1, &storable(reason));
                outcome.refused += 1;
                outcome.error = Some(storable(reason));
            }
            Verdict::Unattempted => rest.push(message),
        }
    }
    rest
}
