//! Lanes: events of one aggregate go one after the other, those of different ones side by side.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::delivery::Delivery;
use super::entry::EntryId;

/// An entry of one of the consumer's streams.
pub(super) type Place = (usize, EntryId);

/// Aggregate type and id.
type Aggregate = (String, String);

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub(super) place: Place,
    pub(super) delivery: Delivery,
    /// It was delivered before, so that its tries must be counted in Redis before each.
    pub(super) redelivered: bool,
}

#[derive(Debug)]
struct Lane {
    /// In stream order. The first one is being tried, or waits for its next try.
    queue: VecDeque<Item>,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Ready,
    Running,
    Waiting,
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    by_aggregate: HashMap<Aggregate, Lane>,
    ready: VecDeque<Aggregate>,
    waiting: BTreeMap<(Instant, u64), Aggregate>,
    waited: u64,
    running: usize,
    /// Every entry that was read and is not settled yet, in a lane or past it.
    held: HashSet<Place>,
}

impl Lanes {
    /// Takes responsibility for an entry; false if it is held already.
    pub(super) fn hold(&mut self, place: Place) -> bool {
        self.held.insert(place)
    }

    /// The entry is settled, or somebody else's.
    pub(super) fn release(&mut self, place: Place) {
        self.held.remove(&place);
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn held_of(&self, stream: usize) -> impl Iterator<Item = EntryId> {
        self.held.iter().filter(move |place| place.0 == stream).map(|place| place.1)
    }

    pub(super) fn running(&self) -> usize {
        self.running
    }

    /// Queues an entry that is held behind the earlier ones of its aggregate.
    pub(super) fn push(&mut self, item: Item) {
        let aggregate = aggregate(&item.delivery);
        let lane = self.by_aggregate.entry(aggregate.clone()).or_insert_with(|| {
            self.ready.push_back(aggregate);
            Lane { queue: VecDeque::new(), state: State::Ready }
        });
        // Claimed entries can be older than what is queued. What is being tried stays first.
        let from = usize::from(lane.state != State::Ready);
        let later = lane.queue.iter().skip(from).position(|queued| item.place < queued.place);
        let at = later.map_or(lane.queue.len(), |later| from + later);
        lane.queue.insert(at, item);
    }

    /// The next event that can be tried. It is running until it is [`done`](Self::done) or
    /// [`failed`](Self::failed).
    pub(super) fn next(&mut self, now: Instant) -> Option<Item> {
        while let Some(due) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let aggregate = due.remove();
            if let Some(lane) = self.by_aggregate.get_mut(&aggregate) {
                lane.state = State::Ready;
                self.ready.push_back(aggregate);
            }
        }
        let aggregate = self.ready.pop_front()?;
        let lane = self.by_aggregate.get_mut(&aggregate)?;
        let item = lane.queue.front()?.clone();
        lane.state = State::Running;
        self.running += 1;
        Some(item)
    }

    /// When an event that waits for its next try is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((due, _), _)| *due)
    }

    /// The running event is past its lane; it is still held.
    pub(super) fn done(&mut self, delivery: &Delivery) {
        self.running -= 1;
        let aggregate = aggregate(delivery);
        if let Some(lane) = self.by_aggregate.get_mut(&aggregate) {
            lane.queue.pop_front();
            lane.state = State::Ready;
            if lane.queue.is_empty() {
                self.by_aggregate.remove(&aggregate);
            } else {
                self.ready.push_back(aggregate);
            }
        }
    }

    /// The running event is to be tried again. Its aggregate waits, and no other does.
    pub(super) fn failed(&mut self, again: Delivery, due: Instant) {
        self.running -= 1;
        let aggregate = aggregate(&again);
        if let Some(lane) = self.by_aggregate.get_mut(&aggregate) {
            lane.state = State::Waiting;
            if let Some(first) = lane.queue.front_mut() {
                first.delivery = again;
                first.redelivered = true;
            }
            self.waited += 1;
            self.waiting.insert((due, self.waited), aggregate);
        }
    }

    /// Drops what is not running and is somebody else's by now.
    pub(super) fn forget(&mut self, lost: &HashSet<Place>) {
        self.held.retain(|place| !lost.contains(place));
        for lane in self.by_aggregate.values_mut() {
            let running = usize::from(lane.state == State::Running);
            let mut nth = 0;
            lane.queue.retain(|item| {
                nth += 1;
                nth <= running || !lost.contains(&item.place)
            });
        }
        self.by_aggregate.retain(|_, lane| !lane.queue.is_empty());
        self.ready.retain(|aggregate| self.by_aggregate.contains_key(aggregate));
        self.waiting.retain(|_, aggregate| self.by_aggregate.contains_key(aggregate));
    }
}

fn aggregate(delivery: &Delivery) -> Aggregate {
    (delivery.aggregate_type().to_owned(), delivery.aggregate_id().to_owned())
}
