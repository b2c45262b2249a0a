//! What the broker remembers, looked at before anything is decided about an event.

use diesel::sql_types::{Array, BigInt};
use tokio::time::Instant;
use tracing::error;

use super::attempt::contact;
use super::reader::Reading;
use super::worker::Worker;
use crate::lease::Raise;
use crate::message::Message;
use crate::publish::{Batch, Contact, Publisher, Receipt, Repeat, Stamp};
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;
use crate::subscription;

const KNOWN_TICKS: &str = "SELECT tick, mark FROM outbox.ticks WHERE tick = ANY ($1::bigint[])";

impl<P: Publisher> Worker<P> {
    /// Makes first contact for these events, before they are parked: a call of a former owner may
    /// still deliver one of them. Returns what the broker remembers, or None if it is away.
    pub(super) async fn first_contact(
        &mut self,
        session: &mut Session,
        reading: &Reading,
        messages: &[Message<'_>],
    ) -> Result<Option<Vec<Contact>>, SessionError> {
        let mut all = Vec::new();
        loop {
            let repeat = Repeat::Position { mark: reading.mark };
            let stamp = Stamp { repeat, ..self.stamp.clone() };
            let batch = Batch::new(&stamp, messages);
            let limit = self.options.publish_timeout;
            let made = contact(&mut self.publisher, &batch, Instant::now() + limit, limit).await;
            match made {
                Ok(contacts) if contacts.is_empty() => return Ok(Some(all)),
                Ok(contacts) => {
                    self.verify(session, &contacts, Some((reading.tick, reading.mark))).await?;
                    all.extend(contacts);
                }
                Err(no_answer) => {
                    self.evidence.silence();
                    self.go_out(&no_answer.what);
                    return Ok(None);
                }
            }
        }
    }

    /// Whether the broker has the event; None if the broker is away. Under a new epoch, so that a call
    /// of unknown outcome that is still on its way arrives no more.
    pub(super) async fn has_arrived(
        &mut self,
        session: &mut Session,
        reading: &Reading,
        message: &Message<'_>,
    ) -> Result<Option<bool>, SessionError> {
        self.raise_epochs(session).await?;
        let generation = self.stamp.generation;
        let contacts = self.first_contact(session, reading, &[*message]).await?;
        Ok(contacts.map(|contacts| {
            contacts.iter().any(|contact| has_passed(contact, generation, message))
        }))
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
}

/// Whether the broker has this event, or a later one of its shard.
fn has_passed(contact: &Contact, generation: i64, message: &Message<'_>) -> bool {
    contact.position.is_some_and(|stored| {
        contact.shard == message.shard()
            && stored.generation == generation
            && (stored.tick, stored.seq) >= (message.tick(), message.seq())
    })
}
