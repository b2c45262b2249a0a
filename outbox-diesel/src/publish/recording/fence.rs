//! The fence of the Redis scripts, in memory.

use std::collections::{BTreeSet, HashMap, HashSet};

use uuid::Uuid;

use crate::message::Message;
use crate::publish::{Batch, Contact, Repeat, Stamp, StoredPosition};

/// One field of a fence: who feeds which destination from which shard.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Field {
    topic: String,
    source: Uuid,
    subscription: String,
    shard: u8,
}

impl Field {
    fn of(stamp: &Stamp, message: &Message<'_>) -> Self {
        Self {
            topic: message.topic().to_owned(),
            source: stamp.source,
            subscription: stamp.subscription.clone(),
            shard: message.shard(),
        }
    }
}

/// The epochs and generations under which a connection has made its contacts.
#[derive(Default)]
pub(super) struct Known(HashMap<Field, (i64, i64)>);

impl Known {
    fn covers(&self, stamp: &Stamp, field: &Field) -> bool {
        let now = (stamp.epochs[usize::from(field.shard)], stamp.generation);
        self.0.get(field) == Some(&now)
    }

    pub(super) fn cover(&self, batch: &Batch<'_>) -> bool {
        let stamp = batch.stamp();
        batch.messages().iter().all(|message| self.covers(stamp, &Field::of(stamp, message)))
    }
}

#[derive(Default)]
struct Stored {
    epoch: i64,
    position: Option<StoredPosition>,
}

/// What the broker remembers to tell repeats and former owners.
#[derive(Default)]
pub(super) struct Fences {
    fields: HashMap<Field, Stored>,
    retried: HashSet<(Field, i64, Uuid)>,
}

impl Fences {
    /// What `contact.lua` does.
    pub(super) fn contact(&mut self, known: &mut Known, batch: &Batch<'_>) -> Vec<Contact> {
        let stamp = batch.stamp();
        let mut contacts = Vec::new();
        for message in batch.messages() {
            let field = Field::of(stamp, message);
            if known.covers(stamp, &field) {
                continue;
            }
            let epoch = stamp.epochs[usize::from(field.shard)];
            known.0.insert(field.clone(), (epoch, stamp.generation));
            let stored = self.fields.entry(field.clone()).or_default();
            contacts.push(Contact {
                destination: field.topic,
                shard: field.shard,
                epoch: stored.epoch,
                position: stored.position,
            });
            stored.epoch = stored.epoch.max(epoch);
        }
        contacts
    }

    /// Destinations and shards at which a later epoch or generation was seen.
    pub(super) fn refused(&self, batch: &Batch<'_>) -> BTreeSet<(String, u8)> {
        let stamp = batch.stamp();
        let mut refused = BTreeSet::new();
        for message in batch.messages() {
            let field = Field::of(stamp, message);
            let Some(stored) = self.fields.get(&field) else { continue };
            let generation = stored.position.map_or(0, |position| position.generation);
            if stored.epoch > stamp.epochs[usize::from(field.shard)]
                || generation > stamp.generation
            {
                refused.insert((field.topic, field.shard));
            }
        }
        refused
    }

    /// Whether the event was taken before; an error if that can't be told.
    pub(super) fn is_repeat(&self, stamp: &Stamp, message: &Message<'_>) -> Result<bool, String> {
        let field = Field::of(stamp, message);
        let Repeat::Position { mark } = stamp.repeat else {
            return Ok(self.retried.contains(&(field, stamp.generation, message.id())));
        };
        let stored = self.fields.get(&field).and_then(|stored| stored.position);
        match stored.filter(|stored| stored.generation == stamp.generation) {
            None => Ok(false),
            Some(stored) if stored.tick == message.tick() && stored.mark != mark => {
                Err(format!("{} holds another mark of the same tick", field.topic))
            }
            Some(stored) => Ok((message.tick(), message.seq()) <= (stored.tick, stored.seq)),
        }
    }

    /// Remembers that the event was taken.
    pub(super) fn store(&mut self, stamp: &Stamp, message: &Message<'_>) {
        let field = Field::of(stamp, message);
        let stored = self.fields.entry(field.clone()).or_default();
        stored.epoch = stored.epoch.max(stamp.epochs[usize::from(field.shard)]);
        match stamp.repeat {
            Repeat::Position { mark } => {
                stored.position = Some(StoredPosition {
                    generation: stamp.generation,
                    tick: message.tick(),
                    mark,
                    seq: message.seq(),
                });
            }
            Repeat::EventId => {
                self.retried.insert((field, stamp.generation, message.id()));
            }
        }
    }
}
