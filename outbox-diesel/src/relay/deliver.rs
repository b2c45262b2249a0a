//! Delivers a chunk: publishes it, parks what is rejected and what must wait behind it.

use std::collections::HashSet;

use diesel::sql_types::{Array, BigInt};
use tracing::{error, warn};

use super::attempt::{Attempt, attempt};
use super::reader::{Reading, Step};
use super::worker::{Interrupted, Worker};
use crate::lease::Raise;
use crate::message::{Message, SHARDS};
use crate::park::{self, Reason};
use crate::publish::{Batch, Contact, Publisher, Receipt, Repeat, Stamp, Verdict};
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;
use crate::subscription;

const KNOWN_TICKS: &str = "SELECT tick, mark FROM outbox.ticks WHERE tick = ANY ($1::bigint[])";

impl<P: Publisher> Worker<P> {
    /// Delivers a reading, and reads ahead during the first call of the publisher. False if the
    /// broker is away: the same positions must be tried again.
    pub(super) async fn deliver(
        &mut self,
        session: &mut Session,
        reading: &Reading,
    ) -> Result<(bool, Option<Step>), Interrupted> {
        let (mut messages, held) = self.sort_out(reading);
        if !held.is_empty() {
            self.park(session, held).await?;
        }
        self.keep_leased(&mut messages);
        if messages.is_empty() {
            return Ok((true, None));
        }
        let mut stamp =
            Stamp { repeat: Repeat::Position { mark: reading.mark }, ..self.stamp.clone() };
        let limits = self.limits();
        let mut width = self.width.min(messages.len());
        let (first, ahead) = tokio::join!(
            attempt(&mut self.publisher, &stamp, &messages[..width], self.options.publish_timeout),
            self.reader.next(session, &self.shards, limits),
        );
        let ahead = ahead?;
        let mut outcome = first;
        loop {
            match outcome {
                Attempt::Unavailable(reason) => {
                    self.go_out(&reason);
                    return Ok((false, Some(ahead)));
                }
                // Alone, and after a first contact that told whether it had arrived.
                Attempt::Panicked(reason) if self.width == 1 => {
                    let mut receipt = Receipt::new(&Batch::new(&stamp, &messages[..1]));
                    receipt.rejected(0, reason);
                    messages = self.take_in(session, messages, &receipt).await?;
                    self.raise_epochs(session).await?;
                    self.width = 2;
                }
                Attempt::Panicked(reason) => {
                    error!(subscription = %self.who.subscription, events = width, reason, "looks for the event");
                    self.width = (width / 2).max(1);
                    self.raise_epochs(session).await?;
                }
                Attempt::Contacts(contacts) => {
                    self.verify(session, &contacts, Some((reading.tick, reading.mark))).await?;
                }
                Attempt::Receipt(receipt) => {
                    let sent = messages.len();
                    messages = self.take_in(session, messages, &receipt).await?;
                    let is_stuck = messages.len() == sent && receipt.fenced_shards().is_empty();
                    let reason = match receipt.unavailability() {
                        Some(unavailable) => Some(unavailable.0.as_str()),
                        None => {
                            is_stuck.then_some("the publisher attempted nothing and gave no reason")
                        }
                    };
                    if let Some(reason) = reason {
                        self.go_out(reason);
                        return Ok((false, Some(ahead)));
                    }
                    self.come_back();
                    self.width = self.width.saturating_mul(2);
                }
            }
            self.keep_leased(&mut messages);
            if messages.is_empty() {
                return Ok((true, Some(ahead)));
            }
            stamp = Stamp { repeat: stamp.repeat, ..self.stamp.clone() };
            let limit = self.options.publish_timeout;
            width = self.width.min(messages.len());
            outcome = attempt(&mut self.publisher, &stamp, &messages[..width], limit).await;
        }
    }

    /// What to publish of a reading, and what must wait behind parked events.
    fn sort_out<'a>(&self, reading: &'a Reading) -> (Vec<Message<'a>>, Vec<(Message<'a>, Reason)>) {
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
            if shard.blocks(&message) {
                held.push((message, Reason::Held));
            } else {
                messages.push(message);
            }
        }
        (messages, held)
    }

    /// Drops events of shards that are not ours for as long as a publish may take.
    pub(super) fn keep_leased(&mut self, messages: &mut Vec<Message<'_>>) {
        let time = self.options.publish_timeout;
        let short: Vec<u8> =
            self.shards.keys().copied().filter(|shard| !self.leases.holds(*shard, time)).collect();
        for shard in short {
            warn!(subscription = %self.who.subscription, shard, "the lease is running out: no heartbeat came through");
            self.lose(shard);
        }
        messages.retain(|message| self.shards.contains_key(&message.shard()));
    }

    /// Looks at what the broker remembers, before anything is sent.
    pub(super) async fn verify(
        &mut self,
        session: &mut Session,
        contacts: &[Contact],
        current: Option<(i64, i64)>,
    ) -> Result<(), SessionError> {
        let own_generation = self.stamp.generation;
        let mut raises: Vec<Raise> = Vec::new();
        let mut ahead: Vec<(i64, i64, u8)> = Vec::new();
        let mut newest_generation = own_generation;
        for contact in contacts {
            let Some(shard) = self.shards.get(&contact.shard) else { continue };
            if contact.epoch > shard.epoch {
                match raises.iter_mut().find(|raise| raise.shard == contact.shard) {
                    Some(raise) => raise.above = raise.above.max(contact.epoch),
                    None => raises.push(Raise {
                        shard: contact.shard,
                        epoch: shard.epoch,
                        above: contact.epoch,
                    }),
                }
            }
            let Some(stored) = contact.position else { continue };
            newest_generation = newest_generation.max(stored.generation);
            if stored.generation == own_generation && stored.tick > shard.done.tick {
                ahead.push((stored.tick, stored.mark, contact.shard));
            }
        }
        self.raise(session, &raises).await?;
        let unknown = self.unknown_ticks(session, &ahead, current).await?;
        if newest_generation > own_generation || unknown {
            error!(
                subscription = %self.who.subscription,
                "the broker has events of a future that this database does not know: it went back in time \
                 (failover to a lagging standby, or a restore). Events may be repeated, none is dropped"
            );
            self.stamp.generation =
                subscription::raise_generation(session, &self.who.subscription, newest_generation)
                    .await?;
        }
        Ok(())
    }

    /// Whether the broker stored a tick that the database does not have. Known ones are those of a
    /// predecessor that crashed before its settle: its ticks must not be stepped over.
    async fn unknown_ticks(
        &mut self,
        session: &mut Session,
        ahead: &[(i64, i64, u8)],
        current: Option<(i64, i64)>,
    ) -> Result<bool, SessionError> {
        if ahead.iter().all(|(tick, mark, _)| Some((*tick, *mark)) == current) {
            return Ok(false);
        }
        let ticks: Vec<i64> = ahead.iter().map(|(tick, ..)| *tick).collect();
        let known: Vec<(i64, i64)> = session
            .load(
                Mode::Read,
                statement::<(BigInt, BigInt)>(KNOWN_TICKS).bind::<Array<BigInt>, _>(ticks),
            )
            .await?;
        let mut unknown = false;
        for (tick, mark, shard) in ahead {
            if !known.contains(&(*tick, *mark)) {
                unknown = true;
            } else if let Some(shard) = self.shards.get_mut(shard) {
                shard.walk_to = shard.walk_to.max(*tick);
            }
        }
        Ok(unknown)
    }

    /// Acts on a receipt and returns what is still to be published.
    async fn take_in<'a>(
        &mut self,
        session: &mut Session,
        messages: Vec<Message<'a>>,
        receipt: &Receipt,
    ) -> Result<Vec<Message<'a>>, Interrupted> {
        let mut rejected: HashSet<(&str, &str)> = HashSet::new();
        let mut parks = Vec::new();
        let mut rest = Vec::new();
        let later = std::iter::repeat(&Verdict::Unattempted);
        for (message, verdict) in messages.into_iter().zip(receipt.verdicts().iter().chain(later)) {
            let aggregate = (message.aggregate_type(), message.aggregate_id());
            match verdict {
                Verdict::Delivered => {}
                Verdict::Rejected(reason) => {
                    warn!(
                        subscription = %self.who.subscription, event_id = %message.id(),
                        event_type = message.event_type(), topic = message.topic(),
                        aggregate_id = message.aggregate_id(), attempt = 1, reason, "the event was rejected"
                    );
                    rejected.insert(aggregate);
                    parks.push((message, Reason::Rejected(reason.clone())));
                }
                Verdict::Unattempted if rejected.contains(&aggregate) => {
                    parks.push((message, Reason::Held));
                }
                Verdict::Unattempted => rest.push(message),
            }
        }
        if !parks.is_empty() {
            self.park(session, parks).await?;
        }
        self.raise_fenced(session, receipt).await?;
        Ok(rest)
    }

    /// The broker has seen a later epoch. If the database still says that the shard is ours, it is
    /// the broker that remembers a future; else another relay has it.
    pub(super) async fn raise_fenced(
        &mut self,
        session: &mut Session,
        receipt: &Receipt,
    ) -> Result<(), SessionError> {
        let raises: Vec<Raise> = receipt
            .fenced_shards()
            .iter()
            .filter_map(|shard| {
                let state = self.shards.get(shard)?;
                Some(Raise { shard: *shard, epoch: state.epoch, above: 0 })
            })
            .collect();
        self.raise(session, &raises).await
    }

    /// Parks events, durably, before anything behind them is published.
    async fn park(
        &mut self,
        session: &mut Session,
        events: Vec<(Message<'_>, Reason)>,
    ) -> Result<(), SessionError> {
        let epochs: Vec<(u8, i64)> =
            self.shards.iter().map(|(shard, state)| (*shard, state.epoch)).collect();
        let ours = park::park(session, &self.who, &epochs, &events, &self.options.retry).await?;
        for (shard, _) in epochs {
            if !ours.contains(&i16::from(shard)) {
                warn!(subscription = %self.who.subscription, shard, "the lease was lost");
                self.lose(shard);
            }
        }
        for (message, _) in &events {
            if let Some(shard) = self.shards.get_mut(&message.shard()) {
                let aggregate =
                    (message.aggregate_type().to_owned(), message.aggregate_id().to_owned());
                shard.block(aggregate, (message.tick(), message.seq()));
            }
        }
        Ok(())
    }
}
