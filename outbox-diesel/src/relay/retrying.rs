//! Tries parked events again.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::attempt::{Attempt, attempt};
use super::fault::{self, Fault};
use super::shard::Shard;
use super::startup::Refusal;
use super::worker::{Interrupted, Worker};
use crate::message::Message;
use crate::park::{self, Fate, fate, pause, storable};
use crate::publish::{Publisher, Repeat, Stamp, Verdict};
use crate::retry::{self, Due, Failure};
use crate::session::{Session, SessionError};
use crate::subscription;

/// A pass goes on after a rejection for so long: the main path must have its turn too.
const PASS: Duration = Duration::from_millis(100);

/// One pass over what is due.
struct Pass<'a> {
    queue: Vec<Retry<'a>>,
    /// What came of others, and is not written yet: each write is a flush.
    delivered: Vec<i64>,
    failures: Vec<Failure>,
    /// Something holds others no longer.
    freed: bool,
    started: Instant,
}

/// An event that is due, or goes out behind one that is.
struct Retry<'a> {
    message: Message<'a>,
    due: Due,
    /// The attempt to come is counted already.
    counted: bool,
}

impl<P: Publisher> Worker<P> {
    /// Publishes what is due; true if a shard turned out not to be ours.
    pub(super) async fn retry_due(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let before = self.shards.len();
        let shards = self.shards_with_parked();
        let mut chunk = std::mem::take(&mut self.retry_chunk);
        let due = retry::due(session, &self.who, shards, self.limits(), &mut chunk).await?;
        let retries = chunk.messages().zip(due);
        let queue: Vec<Retry<'_>> =
            retries.map(|(message, due)| Retry { message, due, counted: false }).collect();
        let is_all = queue.len() < usize::from(retry::HEADS.min(self.options.batch_events));
        let mut pass = Pass {
            queue,
            delivered: Vec::new(),
            failures: Vec::new(),
            freed: false,
            started: Instant::now(),
        };
        while self.retry_some(session, &mut pass).await? {}
        self.write_pass(session, &mut pass).await?;
        let (freed, is_through) = (pass.freed, is_all && pass.queue.is_empty());
        drop(pass);
        self.retry_chunk = chunk;
        if is_through {
            self.shards.values_mut().for_each(|shard| shard.retried = true);
        }
        if freed {
            self.release(session).await?;
        }
        Ok(self.shards.len() != before)
    }

    pub(super) fn shards_with_parked(&self) -> Vec<i16> {
        let has_parked =
            |(shard, state): (&u8, &Shard)| (!state.parked.is_empty()).then_some((*shard).into());
        self.shards.iter().filter_map(has_parked).collect()
    }

    /// One call of the publisher; true if there is more to do in this pass.
    async fn retry_some(
        &mut self,
        session: &mut Session,
        pass: &mut Pass<'_>,
    ) -> Result<bool, Interrupted> {
        self.check_leases();
        pass.queue.retain(|retry| self.shards.contains_key(&retry.message.shard()));
        let Some((run, alone)) = self.next_run(&pass.queue) else { return Ok(false) };
        if alone && !pass.queue[0].counted {
            // It may end this process: what came of others must be known then.
            self.write_pass(session, pass).await?;
            if !self.count_ahead(session, &mut pass.queue[0]).await? {
                // It was changed meanwhile: what is behind it must wait for that.
                return Ok(false);
            }
        }
        let queue = &pass.queue;
        let messages: Vec<Message<'_>> = queue[..run].iter().map(|retry| retry.message).collect();
        let stamp = Stamp { repeat: Repeat::EventId, ..self.stamp.clone() };
        let limit = self.options.publish_timeout;
        match attempt(&mut self.publisher, &stamp, &messages, limit).await {
            Attempt::Contacts(contacts) => {
                self.answered(session).await?;
                self.verify(session, &contacts, None).await?;
                Ok(true)
            }
            Attempt::Unavailable(reason) => {
                self.evidence.silence();
                self.take_back(session, &queue[0]).await?;
                self.go_out(&reason);
                Ok(false)
            }
            Attempt::Unanswered(_) if run > 1 => {
                self.evidence.silence();
                self.retry_search.narrow(run);
                self.raise_epochs(session).await?;
                Ok(true)
            }
            Attempt::Unanswered(reason) => {
                self.raise_epochs(session).await?;
                self.retry_search.pass(1);
                self.put_off(session, &queue[0], reason).await?;
                Ok(false)
            }
            Attempt::Receipt(receipt) => {
                let verdicts = receipt.verdicts();
                if verdicts.iter().any(|verdict| *verdict != Verdict::Unattempted) {
                    self.answered(session).await?;
                    self.retry_search.pass(run);
                }
                let goes_on = self.take_in_retries(session, pass, run, verdicts).await?;
                self.raise_fenced(session, &receipt).await?;
                if let Some(unavailable) = receipt.unavailability() {
                    self.evidence.silence();
                    self.go_out(&storable(&unavailable.0));
                    return Ok(false);
                }
                self.come_back();
                Ok(goes_on)
            }
        }
    }

    /// How many of the first ones go out together, and whether that one is to be tried alone.
    fn next_run(&self, queue: &[Retry<'_>]) -> Option<(usize, bool)> {
        let is_alone =
            |retry: &Retry<'_>| retry.due.alone || self.tries_alone(retry.message.shard());
        if is_alone(queue.first()?) {
            return Some((1, true));
        }
        let together = queue.iter().take_while(|retry| !is_alone(retry)).count();
        Some((together.min(self.retry_search.width()), false))
    }

    /// Counts an attempt that is still to be made: it may end this process. False if the event is
    /// not as it was read.
    async fn count_ahead(
        &mut self,
        session: &mut Session,
        retry: &mut Retry<'_>,
    ) -> Result<bool, SessionError> {
        let error = retry.due.error.clone().unwrap_or_else(|| park::DEADLY.to_owned());
        let failure = self.failure(retry, Some(error));
        let failure = Failure { alone: true, ..failure };
        retry.counted = true;
        Ok(self.write_retries(session, Vec::new(), vec![failure]).await? > 0)
    }

    /// Takes back an attempt that was counted and not made.
    async fn take_back(
        &mut self,
        session: &mut Session,
        retry: &Retry<'_>,
    ) -> Result<(), SessionError> {
        if !retry.counted {
            return Ok(());
        }
        let Due { attempts, holds, ref error, .. } = retry.due;
        let failure = Failure {
            seq: retry.message.seq(),
            seen: attempts.saturating_add(1),
            attempts,
            pause: Some(std::time::Duration::ZERO),
            error: error.clone(),
            holds,
            alone: true,
        };
        self.write_retries(session, Vec::new(), vec![failure]).await?;
        Ok(())
    }

    /// There was no answer for this event alone. That is no attempt yet; the others go on.
    async fn put_off(
        &mut self,
        session: &mut Session,
        retry: &Retry<'_>,
        reason: String,
    ) -> Result<(), Interrupted> {
        let made = u16::try_from(retry.due.attempts).unwrap_or(u16::MAX);
        let options = self.options.retry_of(retry.message.event_type());
        let off = Failure {
            seq: retry.message.seq(),
            seen: retry.due.attempts.saturating_add(retry.counted.into()),
            attempts: retry.due.attempts,
            pause: Some(pause(made.max(1), options)),
            error: Some(reason.clone()),
            holds: retry.due.holds,
            alone: retry.due.alone || retry.counted,
        };
        let counted = Failure { alone: off.alone, ..self.failure(retry, Some(reason.clone())) };
        self.tell_fault(Fault::Unanswered, &retry.message, counted.attempts, &reason);
        self.write_retries(session, Vec::new(), vec![off]).await?;
        // No outage of the relay, whoever is at fault: the main path has its turn.
        self.evidence.suspect(counted);
        Ok(())
    }

    /// What one attempt more makes of an event.
    fn failure(&self, retry: &Retry<'_>, error: Option<String>) -> Failure {
        let Due { attempts: seen, holds, alone, .. } = retry.due;
        let attempts = seen.saturating_add(1);
        let options = self.options.retry_of(retry.message.event_type());
        let fate: Fate = fate(u16::try_from(attempts).unwrap_or(u16::MAX), options);
        // One that was parked as unordered stays so.
        let holds = holds && fate.holds;
        Failure { seq: retry.message.seq(), seen, attempts, pause: fate.pause, error, holds, alone }
    }

    /// The broker answered. Who failed alone right before has made an attempt.
    pub(super) async fn answered(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let Some(failure) = self.evidence.answer() else { return Ok(()) };
        let is_free = failure.pause.is_none() && !failure.holds;
        self.write_retries(session, Vec::new(), vec![failure]).await?;
        if is_free {
            self.release(session).await?;
        }
        Ok(())
    }

    /// Notes what became of the first ones, and leaves those in the queue that can still go out in
    /// this pass; true if there is time for that.
    async fn take_in_retries(
        &mut self,
        session: &mut Session,
        pass: &mut Pass<'_>,
        run: usize,
        verdicts: &[Verdict],
    ) -> Result<bool, SessionError> {
        let rest = pass.queue.split_off(run);
        let tried = std::mem::replace(&mut pass.queue, rest);
        let messages = tried.iter().map(|retry| &retry.message);
        self.health.acknowledged(fault::delivered(messages, verdicts));
        let (mut left, mut blocked) = (Vec::new(), HashSet::new());
        let known = pass.delivered.len() + pass.failures.len();
        for (retry, verdict) in tried.into_iter().zip(verdicts) {
            let message = &retry.message;
            match verdict {
                Verdict::Delivered => pass.delivered.push(message.seq()),
                Verdict::Rejected(reason) => {
                    let reason = storable(reason);
                    let failure = self.failure(&retry, Some(reason.clone()));
                    self.tell_fault(Fault::Rejected, message, failure.attempts, &reason);
                    let seen = failure.seen.saturating_add(retry.counted.into());
                    pass.failures.push(Failure { seen, ..failure });
                    if retry.due.holds {
                        blocked.insert((message.aggregate_type(), message.aggregate_id()));
                    }
                }
                Verdict::Unattempted => {
                    self.take_back(session, &retry).await?;
                    left.push(Retry { counted: false, ..retry });
                    continue;
                }
            }
            self.evidence.acquit(message.seq());
        }
        let has_done = pass.delivered.len() + pass.failures.len() > known;
        left.append(&mut pass.queue);
        left.retain(|Retry { message, due, .. }| {
            !due.holds || !blocked.contains(&(message.aggregate_type(), message.aggregate_id()))
        });
        pass.queue = left;
        let all_went = verdicts.iter().all(|verdict| *verdict == Verdict::Delivered);
        Ok(all_went || (has_done && pass.started.elapsed() < PASS))
    }

    /// Writes what came of the events of the pass up to now.
    async fn write_pass(
        &mut self,
        session: &mut Session,
        pass: &mut Pass<'_>,
    ) -> Result<(), SessionError> {
        let delivered = std::mem::take(&mut pass.delivered);
        let failures = std::mem::take(&mut pass.failures);
        if !delivered.is_empty() {
            info!(subscription = %self.who.subscription, events = delivered.len(), "parked events were delivered");
        }
        pass.freed |= !delivered.is_empty() || failures.iter().any(|failure| !failure.holds);
        self.write_retries(session, delivered, failures).await?;
        Ok(())
    }

    /// Returns how many of the failures were written.
    async fn write_retries(
        &mut self,
        session: &mut Session,
        delivered: Vec<i64>,
        failures: Vec<Failure>,
    ) -> Result<i64, SessionError> {
        if delivered.is_empty() && failures.is_empty() {
            return Ok(0);
        }
        let epochs: Vec<(u8, i64)> =
            self.shards.iter().map(|(shard, state)| (*shard, state.epoch)).collect();
        let settled = retry::settle(session, &self.who, &epochs, delivered, failures).await?;
        for (shard, _) in epochs {
            if !settled.shards.contains(&i16::from(shard)) {
                warn!(subscription = %self.who.subscription, shard, "the lease was lost");
                self.lose(shard);
            }
        }
        Ok(settled.failures)
    }

    /// What waits behind nothing any more is due, and an aggregate with nothing parked flows.
    async fn release(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let shards = self.shards_with_parked();
        if !shards.is_empty() {
            retry::promote(session, &self.who, shards.clone()).await?;
            self.reload_parked(session, shards).await?;
        }
        Ok(())
    }

    /// Looks again at what is parked if an operator changed it: what waits behind nothing any more
    /// is due, and an aggregate with nothing parked flows.
    pub(super) async fn heed_operators(
        &mut self,
        session: &mut Session,
        unasked: bool,
    ) -> Result<(), Interrupted> {
        // Read before what it speaks of.
        let subscription::State { revision, generation } = self.subscription_state(session).await?;
        // Another relay may have noticed that the database went back in time.
        self.stamp.generation = self.stamp.generation.max(generation);
        if revision == self.revision && !unasked {
            return Ok(());
        }
        self.release(session).await?;
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
                state.remember(parked);
            }
        }
        Ok(())
    }
}
