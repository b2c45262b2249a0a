//! What a relay knows of a shard that it leases.

use std::collections::{HashMap, HashSet};

use crate::lease::Claimed;
use crate::message::Message;
use crate::park::Parked;
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
    /// See `outbox.cursors.crashes`.
    pub(super) crashes: i16,
    /// The same, as the database has it.
    pub(super) settled_crashes: i16,
    /// How many events are to go well before the crashes are forgotten.
    pub(super) trial: usize,
    /// All that was due for a retry when it was adopted has been tried since.
    pub(super) retried: bool,
    /// Events that are parked: passed over.
    pub(super) parked: HashSet<i64>,
    /// Aggregates with parked events, and the position of the first one: later ones are parked too.
    pub(super) blocked: HashMap<(String, String), (i64, i64)>,
}

impl Shard {
    pub(super) fn new(claimed: &Claimed, trial: usize) -> Self {
        let place = Place { tick: claimed.tick, target: claimed.target, seq: claimed.seq };
        Self {
            epoch: claimed.epoch,
            settled: place,
            done: place,
            walk: UNSETTLED_DIFFS + 1,
            walk_to: 0,
            crashes: claimed.crashes,
            settled_crashes: claimed.crashes,
            trial,
            retried: false,
            parked: HashSet::new(),
            blocked: HashMap::new(),
        }
    }

    /// Whether it may step over ticks behind this one.
    pub(super) fn may_aim(&self, tick: i64) -> bool {
        self.walk == 0 && tick >= self.walk_to
    }

    /// Remembers that an event is parked that holds no other.
    pub(super) fn pass_over(&mut self, seq: i64) {
        self.parked.insert(seq);
    }

    /// Remembers that an event is parked, and others behind it.
    pub(super) fn block(&mut self, aggregate: (String, String), position: (i64, i64)) {
        self.parked.insert(position.1);
        let first = self.blocked.entry(aggregate).or_insert(position);
        *first = position.min(*first);
    }

    /// Whether the event must wait behind a parked one. Those before it were delivered: after a
    /// crash they are read again, and are not to be parked.
    pub(super) fn blocks(&self, message: &Message<'_>) -> bool {
        // The common case must not allocate a key.
        if self.blocked.is_empty() {
            return false;
        }
        let aggregate = (message.aggregate_type().to_owned(), message.aggregate_id().to_owned());
        self.blocked.get(&aggregate).is_some_and(|first| *first < (message.tick(), message.seq()))
    }

    /// Remembers what the database has parked.
    pub(super) fn remember(&mut self, parked: Parked) {
        if parked.holds {
            let aggregate = (parked.aggregate_type, parked.aggregate_id);
            self.block(aggregate, (parked.tick, parked.seq));
        } else {
            self.pass_over(parked.seq);
        }
    }

    /// So many events went well, with a crash behind us.
    pub(super) fn passed_trial(&mut self, events: usize) {
        self.trial = self.trial.saturating_sub(events);
        if self.trial == 0 {
            self.calm_down();
        }
    }

    /// Forgets crashes, unless a retry that is still to be made may have been the reason.
    pub(super) fn calm_down(&mut self) {
        if self.retried || self.parked.is_empty() {
            self.crashes = 0;
        }
    }
}
