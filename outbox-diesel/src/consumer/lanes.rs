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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::super::entry::Entry;
    use super::*;

    fn item(aggregate: &str, ms: u64) -> Item {
        let id = EntryId { ms, seq: 0 };
        let fields = [
            ("event_id", "01a22cdb-ab0e-70bd-b9d8-b7a4eea1d353"),
            ("aggregate_type", "order"),
            ("aggregate_id", aggregate),
            ("event_type", "order.created"),
            ("payload", "{}"),
        ];
        let fields = fields.map(|(name, value)| (name.into(), value.into())).to_vec();
        let entry = Entry { id, fields: None, deliveries: 1 };
        let delivery = Delivery::read(&Arc::from("orders"), &entry, fields).expect("an event");
        Item { place: (0, id), delivery, redelivered: false }
    }

    fn lanes(items: &[(&str, u64)]) -> Lanes {
        let mut lanes = Lanes::default();
        for (aggregate, ms) in items {
            let item = item(aggregate, *ms);
            assert!(lanes.hold(item.place));
            lanes.push(item);
        }
        lanes
    }

    fn next(lanes: &mut Lanes) -> Option<(u64, Delivery)> {
        lanes.next(Instant::now()).map(|item| (item.place.1.ms, item.delivery))
    }

    #[test]
    fn one_event_of_an_aggregate_runs_at_a_time_and_others_beside_it() {
        let mut lanes = lanes(&[("a", 1), ("a", 2), ("b", 3)]);
        let (first, a) = next(&mut lanes).expect("a's first");
        let (third, b) = next(&mut lanes).expect("b's");
        assert_eq!((first, third), (1, 3));
        assert!(next(&mut lanes).is_none());
        lanes.done(&b);
        assert!(next(&mut lanes).is_none());
        lanes.done(&a);
        assert_eq!(next(&mut lanes).map(|next| next.0), Some(2));
    }

    #[test]
    fn a_claimed_older_event_goes_before_those_that_have_not_begun() {
        let mut lanes = lanes(&[("a", 5), ("a", 7), ("a", 6), ("a", 4)]);
        let mut order = Vec::new();
        while let Some((ms, delivery)) = next(&mut lanes) {
            if order.is_empty() {
                // The first one is running: this one comes next.
                lanes.push(item("a", 3));
            }
            order.push(ms);
            lanes.done(&delivery);
        }
        assert_eq!(order, [4, 3, 5, 6, 7]);
    }

    #[test]
    fn a_failed_event_waits_at_the_head_of_its_aggregate_only() {
        let mut lanes = lanes(&[("a", 1), ("a", 2), ("b", 3)]);
        let (_, a) = next(&mut lanes).expect("a's first");
        let due = Instant::now() + Duration::from_millis(1);
        lanes.failed(a.with_attempt(2), due);
        assert_eq!(lanes.next_due(), Some(due));
        lanes.push(item("a", 0));
        assert_eq!(next(&mut lanes).map(|next| next.0), Some(3));
        let again = lanes.next(due).expect("due");
        assert_eq!((again.place.1.ms, again.delivery.attempt(), again.redelivered), (1, 2, true));
    }

    #[test]
    fn what_is_somebody_elses_is_dropped_but_not_what_runs() {
        let mut lanes = lanes(&[("a", 1), ("a", 2), ("b", 3), ("c", 4)]);
        let (_, a) = next(&mut lanes).expect("a's first");
        let lost = [1, 2, 3].map(|ms| (0, EntryId { ms, seq: 0 }));
        lanes.forget(&lost.into_iter().collect());
        assert_eq!((lanes.held(), lanes.running()), (1, 1));
        assert_eq!(next(&mut lanes).map(|next| next.0), Some(4));
        lanes.done(&a);
        assert!(next(&mut lanes).is_none());
    }
}
