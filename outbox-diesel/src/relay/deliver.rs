//! Delivers a chunk: publishes it, parks what is rejected and what must wait behind it.

use std::collections::HashSet;

use tracing::{error, warn};

use super::attempt::{Attempt, attempt};
use super::fault::{Fault, delivered};
use super::reader::{Reading, Step};
use super::worker::{Interrupted, Worker};
use crate::message::{Message, SHARDS};
use crate::options::Order;
use crate::park::{self, Fate, Parked, Reason, fate, storable};
use crate::publish::{Publisher, Receipt, Repeat, Stamp, Verdict};
use crate::retry::Failure;
use crate::session::{Session, SessionError};

impl<P: Publisher> Worker<P> {
    /// Delivers a reading, and reads ahead during the first call of the publisher. False if the
    /// broker is away: the same positions must be tried again.
    pub(super) async fn deliver(
        &mut self,
        session: &mut Session,
        reading: &Reading,
    ) -> Result<(bool, Option<Step>), Interrupted> {
        let (mut messages, held) = self.sort_out(reading);
        if !self.hold(session, reading, held).await? {
            return Ok((false, None));
        }
        let limits = self.limits();
        let limit = self.options.publish_timeout;
        let repeat = Repeat::Position { mark: reading.mark };
        let mut ahead = None;
        let mut refused = Refused::default();
        loop {
            self.keep_leased(&mut messages);
            let is_careful = self.is_careful(reading);
            if messages.is_empty() || is_careful {
                self.park(session, refused.take()).await?;
                refused.give_back(&mut messages);
                self.keep_leased(&mut messages);
            }
            if messages.is_empty() {
                return Ok((true, ahead));
            }
            if is_careful && !self.evade(session, reading, &mut messages).await? {
                return Ok((false, ahead));
            }
            if messages.is_empty() {
                return Ok((true, ahead));
            }
            let stamp = Stamp { repeat, ..self.stamp.clone() };
            let width = if is_careful { 1 } else { self.search.width().min(messages.len()) };
            let sent = messages[..width].last().map_or(0, Message::seq);
            let call = attempt(&mut self.publisher, &stamp, &messages[..width], limit);
            let outcome = if ahead.is_none() {
                let (outcome, read) =
                    tokio::join!(call, self.reader.next(session, &self.shards, limits));
                ahead = Some(read?);
                outcome
            } else {
                call.await
            };
            match outcome {
                Attempt::Unavailable(reason) => {
                    self.evidence.silence();
                    self.go_out(&reason);
                    self.park(session, refused.take()).await?;
                    return Ok((false, ahead));
                }
                Attempt::Unanswered(reason) if width > 1 => {
                    error!(subscription = %self.who.subscription, events = width, reason, "looks for the event");
                    self.evidence.silence();
                    self.search.narrow(width);
                    self.raise_epochs(session).await?;
                    continue;
                }
                Attempt::Unanswered(reason) => {
                    self.park(session, refused.take()).await?;
                    let first = messages[0];
                    let Some(arrived) = self.has_arrived(session, reading, &first).await? else {
                        return Ok((false, ahead));
                    };
                    let message = messages.remove(0);
                    if arrived {
                        self.search.pass(1);
                        continue;
                    }
                    let answered = self.put_aside(session, message, reason.clone()).await?;
                    let held = self.hold_followers(session, reading, &mut messages).await?;
                    if !answered {
                        self.go_out(&reason);
                    }
                    if !answered || !held {
                        let is_all = messages.is_empty() && refused.waiting.is_empty();
                        return Ok((held && is_all, ahead));
                    }
                }
                Attempt::Contacts(contacts) => {
                    self.answered(session).await?;
                    self.verify(session, &contacts, Some((reading.tick, reading.mark))).await?;
                    continue;
                }
                Attempt::Receipt(receipt) => {
                    let reason =
                        self.act_on(session, &mut messages, &receipt, &mut refused).await?;
                    if let Some(reason) = reason {
                        self.evidence.silence();
                        self.go_out(&reason);
                        self.park(session, refused.take()).await?;
                        return Ok((false, ahead));
                    }
                }
            }
            if is_careful {
                self.park(session, refused.take()).await?;
                self.step(session, reading, sent).await?;
            }
        }
    }

    /// Parks an event that brought no answer, so that the others can pass it; true if it may be its
    /// fault.
    async fn put_aside(
        &mut self,
        session: &mut Session,
        message: Message<'_>,
        reason: String,
    ) -> Result<bool, Interrupted> {
        self.tell_fault(Fault::Unanswered, &message, 1, &reason);
        let retry = self.options.retry_of(message.event_type());
        let Fate { pause, holds } = fate(1, retry);
        let error = Some(reason.clone());
        let failure =
            Failure { seq: message.seq(), seen: 0, attempts: 1, pause, error, holds, alone: false };
        self.park(session, vec![(message, Reason::Unanswered(reason))]).await?;
        self.search.pass(1);
        Ok(self.evidence.suspect(failure))
    }

    /// Parks what must wait behind an event that was parked just now; false if the broker is away.
    pub(super) async fn hold_followers(
        &mut self,
        session: &mut Session,
        reading: &Reading,
        messages: &mut Vec<Message<'_>>,
    ) -> Result<bool, Interrupted> {
        let (held, rest): (Vec<Message<'_>>, _) = messages.drain(..).partition(|message| {
            let shard = self.shards.get(&message.shard());
            shard.is_some_and(|shard| shard.blocks(message)) && self.keeps_order(message)
        });
        *messages = rest;
        self.hold(session, reading, held).await
    }

    /// Parks what must wait, once nothing that was sent earlier can deliver it any more; false if
    /// the broker is away.
    async fn hold(
        &mut self,
        session: &mut Session,
        reading: &Reading,
        held: Vec<Message<'_>>,
    ) -> Result<bool, Interrupted> {
        if held.is_empty() {
            return Ok(true);
        }
        if self.first_contact(session, reading, &held).await?.is_none() {
            return Ok(false);
        }
        let held = held.into_iter().map(|message| (message, Reason::Held)).collect();
        self.park(session, held).await?;
        Ok(true)
    }

    /// What to publish of a reading, and what must wait behind parked events.
    fn sort_out<'a>(&self, reading: &'a Reading) -> (Vec<Message<'a>>, Vec<Message<'a>>) {
        let mut done = [i64::MAX; SHARDS];
        for (shard, before, _) in &reading.moves {
            done[usize::from(*shard)] = before.seq;
        }
        let mut messages = Vec::with_capacity(reading.chunk.len());
        let mut held = Vec::new();
        for message in reading.chunk.messages() {
            let Some(shard) = self.shards.get(&message.shard()) else { continue };
            if message.seq() <= done[usize::from(message.shard())]
                || shard.parked.contains(&message.seq())
            {
                continue;
            }
            if shard.blocks(&message) && self.keeps_order(&message) {
                held.push(message);
            } else {
                messages.push(message);
            }
        }
        (messages, held)
    }

    /// Whether the event waits for earlier ones of its aggregate.
    fn keeps_order(&self, message: &Message<'_>) -> bool {
        self.options.retry_of(message.event_type()).order != Order::Unordered
    }

    /// Drops events of shards that are not ours for as long as a publish may take.
    pub(super) fn keep_leased(&mut self, messages: &mut Vec<Message<'_>>) {
        self.check_leases();
        messages.retain(|message| self.shards.contains_key(&message.shard()));
    }

    /// Loses the shards that are not ours for as long as a publish may take.
    pub(super) fn check_leases(&mut self) {
        let time = self.options.publish_timeout;
        let short: Vec<u8> =
            self.shards.keys().copied().filter(|shard| !self.leases.holds(*shard, time)).collect();
        for shard in short {
            warn!(subscription = %self.who.subscription, shard, "the lease is running out: no heartbeat came through");
            self.lose(shard);
        }
    }

    /// Acts on a receipt; why the broker is away, if it is.
    async fn act_on<'a>(
        &mut self,
        session: &mut Session,
        messages: &mut Vec<Message<'a>>,
        receipt: &Receipt,
        refused: &mut Refused<'a>,
    ) -> Result<Option<String>, SessionError> {
        let done = self.take_in(messages, receipt, refused);
        self.raise_fenced(session, receipt).await?;
        if done > 0 {
            self.answered(session).await?;
        }
        if let Some(unavailable) = receipt.unavailability() {
            return Ok(Some(unavailable.0.clone()));
        }
        if done == 0 && receipt.fenced_shards().is_empty() {
            return Ok(Some("the publisher attempted nothing and gave no reason".to_owned()));
        }
        self.come_back();
        self.search.pass(done);
        Ok(None)
    }

    /// Takes in the verdicts: leaves what is still to be published, and returns how many events are done
    /// with.
    fn take_in<'a>(
        &mut self,
        messages: &mut Vec<Message<'a>>,
        receipt: &Receipt,
        refused: &mut Refused<'a>,
    ) -> usize {
        let mut rejected: HashSet<(&str, &str)> = HashSet::new();
        let mut done = 0;
        self.health.acknowledged(delivered(messages.iter(), receipt.verdicts()));
        let verdicts = receipt.verdicts().iter().chain(std::iter::repeat(&Verdict::Unattempted));
        for (message, verdict) in std::mem::take(messages).into_iter().zip(verdicts) {
            let aggregate = (message.aggregate_type(), message.aggregate_id());
            match verdict {
                Verdict::Delivered => done += 1,
                Verdict::Rejected(reason) => {
                    let reason = storable(reason);
                    self.tell_fault(Fault::Rejected, &message, 1, &reason);
                    if fate(1, self.options.retry_of(message.event_type())).holds {
                        rejected.insert(aggregate);
                    }
                    refused.parks.push((message, Reason::Rejected(reason)));
                    done += 1;
                }
                Verdict::Unattempted
                    if rejected.contains(&aggregate) && self.keeps_order(&message) =>
                {
                    refused.parks.push((message, Reason::Held));
                    done += 1;
                }
                Verdict::Unattempted if refused.is_of(message.shard()) => {
                    refused.waiting.push(message);
                }
                Verdict::Unattempted => messages.push(message),
            }
        }
        done
    }

    /// Parks events, durably, before anything behind them is published.
    pub(super) async fn park(
        &mut self,
        session: &mut Session,
        events: Vec<(Message<'_>, Reason)>,
    ) -> Result<(), SessionError> {
        if events.is_empty() {
            return Ok(());
        }
        let epochs: Vec<(u8, i64)> =
            self.shards.iter().map(|(shard, state)| (*shard, state.epoch)).collect();
        let ours = park::park(session, &self.who, &epochs, &events, &self.options).await?;
        for (shard, _) in epochs {
            if !ours.contains(&i16::from(shard)) {
                warn!(subscription = %self.who.subscription, shard, "the lease was lost");
                self.lose(shard);
            }
        }
        for (message, reason) in &events {
            let holds = reason.fate(self.options.retry_of(message.event_type())).holds;
            if let Some(shard) = self.shards.get_mut(&message.shard()) {
                shard.remember(Parked::of(message, holds));
            }
        }
        Ok(())
    }
}

/// What the broker refused of a reading, until it is parked. A park is a flush, so they are
/// gathered: meanwhile events of other shards go out, and none that would pass these.
#[derive(Default)]
struct Refused<'a> {
    parks: Vec<(Message<'a>, Reason)>,
    /// Later events of the same shards.
    waiting: Vec<Message<'a>>,
}

impl<'a> Refused<'a> {
    /// Whether events of the shard have to wait.
    fn is_of(&self, shard: u8) -> bool {
        self.parks.iter().any(|(message, _)| message.shard() == shard)
    }

    /// What is to be parked.
    fn take(&mut self) -> Vec<(Message<'a>, Reason)> {
        std::mem::take(&mut self.parks)
    }

    /// All is parked: what has waited may go out.
    fn give_back(&mut self, messages: &mut Vec<Message<'a>>) {
        messages.append(&mut self.waiting);
        messages.sort_by_key(Message::seq);
    }
}
