//! Sends what an operator wants replayed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::attempt::{Attempt, attempt};
use super::fault::Fault;
use super::worker::{Interrupted, Worker};
use crate::message::Message;
use crate::message::SHARDS;
use crate::park::storable;
use crate::publish::{Publisher, Repeat, Stamp, Verdict};
use crate::read::Limits;
use crate::replay::{self, FORGOTTEN, Outcome, Replay, Window};
use crate::session::Session;

/// A pause is not made up for by more than this.
const LONGEST: Duration = Duration::from_secs(1);

/// The replay that a relay works at.
#[derive(Debug, Default)]
pub(super) struct Replaying {
    /// There may be one: an operator has changed something, or there was one before.
    pub(super) is_likely: bool,
    last: Option<Instant>,
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
        let window = replay::read(session, &replay, limits, &mut chunk).await?;
        let sent = self.send_replay(session, &replay, chunk.messages().collect(), window).await;
        self.retry_chunk = chunk;
        sent
    }

    async fn send_replay(
        &mut self,
        session: &mut Session,
        replay: &Replay,
        mut messages: Vec<Message<'_>>,
        window: Window,
    ) -> Result<(), Interrupted> {
        let Window { mut reach, forgotten } = window;
        let mut outcomes: BTreeMap<i16, Outcome> =
            replay.shards.iter().map(|shard| (*shard, Outcome::default())).collect();
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
                        break;
                    }
                    self.come_back();
                }
            }
            self.keep_leased(&mut messages);
        }
        for (_, shard) in forgotten.into_iter().filter(|(seq, _)| *seq <= reach) {
            let outcome = outcomes.entry(shard).or_default();
            outcome.refused += 1;
            outcome.error.get_or_insert_with(|| FORGOTTEN.to_owned());
        }
        if reach > replay.seq {
            let epochs: Vec<(u8, i64)> =
                self.shards.iter().map(|(shard, state)| (*shard, state.epoch)).collect();
            let outcomes: Vec<(i16, Outcome)> = outcomes.into_iter().collect();
            replay::settle(session, &self.who, &epochs, replay, reach, &outcomes).await?;
        }
        Ok(())
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
