//! What a relay knows of a shard that it leases.

use std::collections::{HashMap, HashSet};

use crate::lease::Claimed;
use crate::message::Message;
use crate::settle::Place;

/// How many diffs an owner delivers, at most, beyond the last place that a crash of the server
/// cannot forget. A successor walks as many tick by tick before it steps over any, so that it
/// repeats the positions of what its predecessor had sent.
pub(super) const UNSETTLED_DIFFS: u32 = 32;

/// A shard of ours.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) epoch: i64,
    /// The cursor, as the database has it.
    pub(super) settled: Place,
    /// What was delivered or parked.
    pub(super) done: Place,
    /// Diffs to walk tick by tick.
    pub(super) walk: u32,
    /// The broker has something of this tick: walk up to it.
    pub(super) walk_to: i64,
    /// Events that are parked: passed over.
    pub(super) parked: HashSet<i64>,
    /// Aggregates with parked events, and the position of the first: later ones are parked too.
    pub(super) blocked: HashMap<(String, String), (i64, i64)>,
}

impl Shard {
    pub(super) fn new(claimed: &Claimed) -> Self {
        let place = Place { tick: claimed.tick, target: claimed.target, seq: claimed.seq };
        Self {
            epoch: claimed.epoch,
            settled: place,
            done: place,
            walk: UNSETTLED_DIFFS + 1,
            walk_to: 0,
            parked: HashSet::new(),
            blocked: HashMap::new(),
        }
    }

    /// Whether it may step over ticks behind this one.
    pub(super) fn may_aim(&self, tick: i64) -> bool {
        self.walk == 0 && tick >= self.walk_to
    }

    /// Remembers a parked event.
    pub(super) fn block(&mut self, tick: i64, seq: i64, aggregate: (String, String)) {
        self.parked.insert(seq);
        let first = self.blocked.entry(aggregate).or_insert((tick, seq));
        *first = (tick, seq).min(*first);
    }

    /// Whether the event must wait behind a parked one. One before it need not: it is read again
    /// after a crash before the settle, and the broker has it.
    pub(super) fn holds(&self, message: &Message<'_>) -> bool {
        // The common case must not allocate a key.
        if self.blocked.is_empty() {
            return false;
        }
        let aggregate = (message.aggregate_type().to_owned(), message.aggregate_id().to_owned());
        let first = self.blocked.get(&aggregate);
        first.is_some_and(|first| *first < (message.tick(), message.seq()))
    }
}
