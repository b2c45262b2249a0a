//! Tries parked events again.

use tracing::{info, warn};

use super::attempt::{Attempt, attempt};
use super::shard::Shard;
use super::startup::Refusal;
use super::worker::{Interrupted, Worker};
use crate::message::Message;
use crate::park;
use crate::publish::{Publisher, Repeat, Stamp, Verdict};
use crate::retry::{self, Failure};
use crate::session::{Session, SessionError};
use crate::subscription;

impl<P: Publisher> Worker<P> {
    /// Publishes what is due; true if a shard turned out not to be ours.
    pub(super) async fn retry_due(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let before = self.shards.len();
        let shards: Vec<i16> = self
            .shards
            .iter()
            .filter(|(_, state)| !state.blocked.is_empty())
            .map(|(shard, _)| i16::from(*shard))
            .collect();
        let mut chunk = std::mem::take(&mut self.retry_chunk);
        let attempts =
            retry::due(session, &self.who, shards.clone(), self.limits(), &mut chunk).await?;
        let mut messages: Vec<Message<'_>> = chunk.messages().collect();
        let made: Vec<(i64, i32)> = messages.iter().map(Message::seq).zip(attempts).collect();
        let mut progressed = false;
        loop {
            self.keep_leased(&mut messages);
            if messages.is_empty() {
                break;
            }
            let stamp = Stamp { repeat: Repeat::EventId, ..self.stamp.clone() };
            let limit = self.options.publish_timeout;
            match attempt(&mut self.publisher, &stamp, &messages, limit).await {
                Attempt::Contacts(contacts) => self.verify(session, &contacts, None).await?,
                Attempt::Unavailable(reason) => {
                    self.go_out(&reason);
                    break;
                }
                Attempt::Panicked(reason) => {
                    self.raise_epochs(session).await?;
                    if messages.len() == 1 {
                        let verdict = [Verdict::Rejected(reason)];
                        self.settle_retries(session, &messages, &verdict, &made).await?;
                        break;
                    }
                    // One by one: the others have their turn in the next pass.
                    messages.truncate(1);
                }
                Attempt::Receipt(receipt) => {
                    progressed |=
                        self.settle_retries(session, &messages, receipt.verdicts(), &made).await?;
                    self.raise_fenced(session, &receipt).await?;
                    if let Some(unavailable) = receipt.unavailability() {
                        self.go_out(&unavailable.0);
                    } else {
                        self.come_back();
                    }
                    // What was not attempted waits behind a rejected one, or for the next pass.
                    break;
                }
            }
        }
        drop(messages);
        self.retry_chunk = chunk;
        if progressed {
            retry::promote(session, &self.who, shards.clone()).await?;
            self.reload_parked(session, shards).await?;
        }
        Ok(self.shards.len() != before)
    }

    async fn settle_retries(
        &mut self,
        session: &mut Session,
        messages: &[Message<'_>],
        verdicts: &[Verdict],
        made: &[(i64, i32)],
    ) -> Result<bool, SessionError> {
        let mut delivered = Vec::new();
        let mut failures = Vec::new();
        for (message, verdict) in messages.iter().zip(verdicts) {
            match verdict {
                Verdict::Delivered => delivered.push(message.seq()),
                Verdict::Rejected(reason) => {
                    let made = made.iter().find(|(seq, _)| *seq == message.seq());
                    let attempts = made.map_or(0, |(_, attempts)| *attempts).saturating_add(1);
                    let attempts = u16::try_from(attempts).unwrap_or(u16::MAX);
                    warn!(
                        subscription = %self.who.subscription, event_id = %message.id(),
                        event_type = message.event_type(), topic = message.topic(),
                        aggregate_id = message.aggregate_id(), attempt = attempts, reason, "the event was rejected"
                    );
                    failures.push(Failure { seq: message.seq(), attempts, error: reason.clone() });
                }
                Verdict::Unattempted => {}
            }
        }
        if delivered.is_empty() && failures.is_empty() {
            return Ok(false);
        }
        if !delivered.is_empty() {
            info!(subscription = %self.who.subscription, events = delivered.len(), "parked events were delivered");
        }
        let progressed = !delivered.is_empty();
        let epochs: Vec<(u8, i64)> =
            self.shards.iter().map(|(shard, state)| (*shard, state.epoch)).collect();
        let ours =
            retry::settle(session, &self.who, &epochs, delivered, &failures, &self.options.retry)
                .await?;
        for (shard, _) in epochs {
            if !ours.contains(&i16::from(shard)) {
                warn!(subscription = %self.who.subscription, shard, "the lease was lost");
                self.lose(shard);
            }
        }
        Ok(progressed)
    }

    /// Looks again at what is parked if an operator changed it: what waits behind nothing any more
    /// is due, and an aggregate with nothing parked flows.
    pub(super) async fn heed_operators(
        &mut self,
        session: &mut Session,
        unasked: bool,
    ) -> Result<(), Interrupted> {
        // Read before what it speaks of.
        let revision = self.subscription_state(session).await?.revision;
        if revision == self.revision && !unasked {
            return Ok(());
        }
        let is_blocked = |(shard, state): (&u8, &Shard)| {
            (!state.blocked.is_empty()).then_some(i16::from(*shard))
        };
        let shards: Vec<i16> = self.shards.iter().filter_map(is_blocked).collect();
        if !shards.is_empty() {
            retry::promote(session, &self.who, shards.clone()).await?;
            self.reload_parked(session, shards).await?;
        }
        self.revision = revision;
        self.replaying.is_likely = true;
        Ok(())
    }

    pub(super) async fn subscription_state(
        &mut self,
        session: &mut Session,
    ) -> Result<subscription::State, Interrupted> {
        let state = subscription::state(session, &self.who.subscription).await?;
        Ok(state.ok_or_else(|| Refusal::NoSubscription(self.who.subscription.clone()))?)
    }

    /// Which aggregates are still blocked.
    async fn reload_parked(
        &mut self,
        session: &mut Session,
        shards: Vec<i16>,
    ) -> Result<(), SessionError> {
        let parked = park::load_parked(session, &self.who, shards.clone()).await?;
        for shard in shards.iter().filter_map(|shard| u8::try_from(*shard).ok()) {
            if let Some(state) = self.shards.get_mut(&shard) {
                state.blocked.clear();
                state.parked.clear();
            }
        }
        for parked in parked {
            let shard = u8::try_from(parked.shard).ok();
            if let Some(state) = shard.and_then(|shard| self.shards.get_mut(&shard)) {
                let position = (parked.tick, parked.seq);
                state.block((parked.aggregate_type, parked.aggregate_id), position);
            }
        }
        Ok(())
    }
}
