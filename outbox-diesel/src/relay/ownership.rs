//! Which shards are ours: the fair share, claimed, adopted, released and lost.

use std::time::Instant;

use tracing::{info, warn};

use super::health::Health;
use super::shard::Shard;
use super::worker::{Interrupted, Worker};
use crate::lease::{self, Raise};
use crate::park;
use crate::publish::Publisher;
use crate::retry;
use crate::session::{Mode, Session, SessionError};

impl<P: Publisher> Worker<P> {
    /// Takes the fair share of the shards, no more and no less; true if it changed.
    pub(super) async fn balance(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let share = lease::fair_share(session, &self.who, self.options.lease).await?;
        let mut changed = self.adopt_own(session).await?;
        if self.shards.len() > share {
            self.settle(session, Mode::Durable).await?;
            let excess: Vec<u8> = self
                .shards
                .keys()
                .rev()
                .take(self.shards.len().saturating_sub(share))
                .copied()
                .collect();
            lease::release(session, &self.who, excess.iter().map(|s| i16::from(*s)).collect())
                .await?;
            for shard in excess {
                self.lose(shard);
            }
            changed = true;
        } else if self.shards.len() < share {
            let asked = Instant::now();
            let missing = share - self.shards.len();
            let claimed = lease::claim(session, &self.who, self.options.lease, missing).await?;
            if !claimed.is_empty() {
                // One of them may have been ours until its lease ran out just now.
                self.shards.retain(|shard, _| !claimed.contains(&i16::from(*shard)));
                self.leases.extend(claimed, asked, self.options.lease);
                self.adopt_own(session).await?;
                changed = true;
            }
        }
        if !self.is_ready && (share == 0 || !self.shards.is_empty()) {
            self.is_ready = true;
            self.health.set(Health::Running);
        }
        Ok(changed)
    }

    /// Brings our shards in line with what the database says is ours; true if they changed.
    pub(super) async fn adopt_own(&mut self, session: &mut Session) -> Result<bool, Interrupted> {
        let own = lease::reload(session, &self.who).await?;
        let is_own = |shard: u8, epoch: i64| {
            own.iter().any(|claimed| (claimed.shard, claimed.epoch) == (shard.into(), epoch))
        };
        let lost: Vec<u8> = self
            .shards
            .iter()
            .filter(|(shard, state)| !is_own(**shard, state.epoch))
            .map(|(shard, _)| *shard)
            .collect();
        for shard in &lost {
            warn!(subscription = %self.who.subscription, shard, "the lease was lost");
            self.lose(*shard);
        }
        let found: Vec<_> = own
            .into_iter()
            .filter(|claimed| {
                u8::try_from(claimed.shard).is_ok_and(|s| !self.shards.contains_key(&s))
            })
            .collect();
        self.adopt(session, &found).await?;
        Ok(!lost.is_empty() || !found.is_empty())
    }

    async fn adopt(
        &mut self,
        session: &mut Session,
        claimed: &[lease::Claimed],
    ) -> Result<(), Interrupted> {
        if claimed.is_empty() {
            return Ok(());
        }
        // An operator may have taken them away to move them, or made the subscription anew.
        let state = self.subscription_state(session).await?;
        self.stamp.generation = self.stamp.generation.max(state.generation);
        self.reader.forget_filters();
        self.replaying.is_likely = true;
        let numbers: Vec<i16> = claimed.iter().map(|claimed| claimed.shard).collect();
        retry::promote(session, &self.who, numbers.clone()).await?;
        let parked = park::load_parked(session, &self.who, numbers).await?;
        let mut raises = Vec::new();
        for claimed in claimed {
            let Ok(shard) = u8::try_from(claimed.shard) else { continue };
            let used = self.stamp.epochs[usize::from(shard)];
            if claimed.epoch <= used {
                raises.push(Raise { shard, epoch: claimed.epoch, above: used });
            }
            self.stamp.epochs[usize::from(shard)] = claimed.epoch;
            self.stamp.generation = claimed.generation;
            let trial = usize::from(self.options.batch_events);
            self.shards.insert(shard, Shard::new(claimed, trial));
        }
        for parked in parked {
            let Some(shard) = u8::try_from(parked.shard).ok().and_then(|s| self.shards.get_mut(&s))
            else {
                continue;
            };
            shard.remember(parked);
        }
        // The database went back in time if we have been here before: the publisher remembers its
        // contacts by epoch, and would make none under one that it knows.
        self.raise(session, &raises).await?;
        self.health.meter().leased(self.shards.len());
        info!(subscription = %self.who.subscription, shards = ?self.shards.keys().collect::<Vec<_>>(), "leases shards");
        Ok(())
    }

    /// Forgets a shard that is not ours any more.
    pub(super) fn lose(&mut self, shard: u8) {
        self.shards.remove(&shard);
        self.leases.forget(shard);
        self.health.meter().leased(self.shards.len());
        self.is_ready &= !self.shards.is_empty();
    }

    /// Raises the epochs of all our shards: calls under the old ones may still be on their way.
    pub(super) async fn raise_epochs(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let raises: Vec<Raise> = self
            .shards
            .iter()
            .map(|(shard, state)| Raise { shard: *shard, epoch: state.epoch, above: 0 })
            .collect();
        self.raise(session, &raises).await
    }

    /// Raises epochs; shards that are not ours any more are dropped.
    pub(super) async fn raise(
        &mut self,
        session: &mut Session,
        raises: &[Raise],
    ) -> Result<(), SessionError> {
        if raises.is_empty() {
            return Ok(());
        }
        let answer = lease::raise_epochs(session, &self.who, raises).await?;
        for raise in raises {
            let epoch = answer.iter().find(|(shard, _)| *shard == i16::from(raise.shard));
            match (epoch, self.shards.get_mut(&raise.shard)) {
                (Some((_, epoch)), Some(shard)) => {
                    shard.epoch = *epoch;
                    self.stamp.epochs[usize::from(raise.shard)] = *epoch;
                }
                _ => self.lose(raise.shard),
            }
        }
        Ok(())
    }
}
