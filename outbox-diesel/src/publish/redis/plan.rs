//! Plans a batch: one script call per stream, in as few flights as the aggregates' order allows.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use uuid::Uuid;

use super::stream::{StreamNaming, fence_key};
use crate::message::{Message, SHARDS};
use crate::publish::{Batch, Stamp};

/// Streams to remember. A program with a topic per customer must not grow for ever.
const MANY_STREAMS: usize = 4_096;

/// How many bytes of events travel at once, unless one event alone is larger. On their way they are
/// copied several times (packed, as an argument, into the client's buffer, into the socket's), and
/// the server does nothing else while it adds them.
const FLIGHT_BYTES: usize = 1024 * 1024;

/// Below every epoch.
const NEVER: i64 = -1;

pub(super) struct Stream {
    pub(super) key: String,
    pub(super) fence: String,
    /// The epoch under which each shard was last in contact, on this connection.
    contacted: [i64; SHARDS],
    /// The batch's last call to this stream.
    call: Option<usize>,
    /// The batch's shards in this stream that are not in contact.
    missing: u16,
}

/// Events of one stream that go out in one script call.
pub(super) struct Call {
    pub(super) flight: u32,
    pub(super) stream: usize,
    /// One bit per shard.
    pub(super) shards: u16,
    bytes: usize,
    /// Places in the batch, ascending.
    pub(super) events: Vec<u32>,
}

impl Call {
    fn new(flight: u32, stream: usize) -> Self {
        Self { flight, stream, shards: 0, bytes: 0, events: Vec::new() }
    }
}

/// The next calls to send together: of one flight, and not too many bytes.
pub(super) fn together<'a>(calls: &mut &'a [Call]) -> &'a [Call] {
    let mut bytes = 0;
    let fits = |call: &&Call| {
        bytes += call.bytes;
        call.flight == calls[0].flight && bytes <= FLIGHT_BYTES
    };
    let count = calls.iter().take_while(fits).count().max(1);
    let (next, rest) = calls.split_at(count);
    *calls = rest;
    next
}

/// Who may rely on the contacts that were made.
struct Identity {
    source: Uuid,
    subscription: String,
    generation: i64,
}

#[derive(Default)]
pub(super) struct Plan {
    streams: Vec<Stream>,
    by_name: HashMap<String, usize>,
    identity: Option<Identity>,
    hasher: RandomState,
    // Of the present batch, kept for their memory:
    name: String,
    places: Vec<usize>,
    aggregates: HashMap<u64, (usize, u32)>,
}

impl Plan {
    pub(super) fn stream(&self, nth: usize) -> &Stream {
        &self.streams[nth]
    }

    /// A new connection: whoever was shut out by the old one's contacts may be back.
    pub(super) fn forget_contacts(&mut self) {
        for stream in &mut self.streams {
            stream.contacted = [NEVER; SHARDS];
        }
    }

    /// Contacts hold for one source, subscription and generation.
    pub(super) fn identify(&mut self, stamp: &Stamp) {
        if !self.is_identified(stamp) {
            self.forget_contacts();
            self.identity = Some(Identity {
                source: stamp.source,
                subscription: stamp.subscription.clone(),
                generation: stamp.generation,
            });
        }
    }

    pub(super) fn is_identified(&self, stamp: &Stamp) -> bool {
        self.identity.as_ref().is_some_and(|known| {
            known.source == stamp.source
                && known.subscription == stamp.subscription
                && known.generation == stamp.generation
        })
    }

    /// Drops what is known about streams when it has become too much.
    pub(super) fn bound(&mut self) {
        if self.streams.len() > MANY_STREAMS {
            self.streams.clear();
            self.by_name.clear();
        }
    }

    pub(super) fn contacted(&mut self, stream: usize, shard: u8, epoch: i64) {
        self.streams[stream].contacted[usize::from(shard)] = epoch;
    }

    /// Finds each event's stream.
    pub(super) fn place(&mut self, prefix: &str, naming: &StreamNaming, messages: &[Message<'_>]) {
        self.places.clear();
        for (nth, message) in messages.iter().enumerate() {
            let place = match nth.checked_sub(1) {
                Some(last) if naming.same_stream(&messages[last], message) => self.places[last],
                _ => self.find(prefix, naming, message),
            };
            self.places.push(place);
        }
    }

    /// The streams of the batch with shards that are not in contact. [`place`](Self::place) comes
    /// first.
    pub(super) fn missing_contacts(&mut self, batch: &Batch<'_>) -> Vec<(usize, u16)> {
        let mut touched = Vec::new();
        for (place, message) in self.places.iter().zip(batch.messages()) {
            let shard = usize::from(message.shard());
            let stream = &mut self.streams[*place];
            if stream.contacted[shard] != batch.stamp().epochs[shard] {
                if stream.missing == 0 {
                    touched.push(*place);
                }
                stream.missing |= 1 << shard;
            }
        }
        touched
            .into_iter()
            .map(|place| (place, std::mem::take(&mut self.streams[place].missing)))
            .collect()
    }

    /// The batch's calls, by flight. [`place`](Self::place) comes first.
    pub(super) fn calls(&mut self, batch: &Batch<'_>) -> Vec<Call> {
        let several = self.places.windows(2).any(|pair| pair[0] != pair[1]);
        self.aggregates.clear();
        let mut calls: Vec<Call> = Vec::new();
        for ((nth, message), place) in (0_u32..).zip(batch.messages()).zip(&self.places) {
            let stream = &mut self.streams[*place];
            let flown = stream.call.map_or(0, |call| {
                let is_full = calls[call].bytes + message.bytes() > FLIGHT_BYTES;
                calls[call].flight + u32::from(is_full)
            });
            // A stream's positions ascend, so an event is never in an earlier flight than the one
            // before it. Nor is it in the flight of its aggregate's last one in another stream:
            // that one may yet fail.
            let flight = if several {
                let aggregate =
                    self.hasher.hash_one((message.aggregate_type(), message.aggregate_id()));
                let flight = match self.aggregates.get(&aggregate) {
                    Some((last, flight)) => flown.max(flight + u32::from(last != place)),
                    None => flown,
                };
                self.aggregates.insert(aggregate, (*place, flight));
                flight
            } else {
                flown
            };
            let call = match stream.call {
                Some(call) if calls[call].flight == flight => call,
                _ => {
                    calls.push(Call::new(flight, *place));
                    calls.len() - 1
                }
            };
            stream.call = Some(call);
            calls[call].shards |= 1 << message.shard();
            calls[call].bytes += message.bytes();
            calls[call].events.push(nth);
        }
        for call in &calls {
            self.streams[call.stream].call = None;
        }
        calls.sort_by_key(|call| call.flight);
        calls
    }

    fn find(&mut self, prefix: &str, naming: &StreamNaming, message: &Message<'_>) -> usize {
        self.name.clear();
        self.name.push_str(prefix);
        naming.write_name(&mut self.name, message);
        if let Some(place) = self.by_name.get(&self.name) {
            return *place;
        }
        self.streams.push(Stream {
            key: self.name.clone(),
            fence: fence_key(&self.name),
            contacted: [NEVER; SHARDS],
            call: None,
            missing: 0,
        });
        self.by_name.insert(self.name.clone(), self.streams.len() - 1);
        self.streams.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Chunk, Fields};
    use crate::publish::Repeat;

    /// Places of the events that travel together, for events of these topics and many bytes.
    fn flights(topics: &[&str], bytes: usize) -> Vec<Vec<u32>> {
        let payload = "x".repeat(bytes);
        let mut chunk = Chunk::default();
        for (seq, topic) in (1..).zip(topics) {
            chunk.push(Fields {
                tick: 1,
                seq,
                shard: 0,
                id: Uuid::nil(),
                topic,
                aggregate_type: "",
                aggregate_id: topic,
                event_type: "",
                event_version: 1,
                dedup_key: None,
                payload: &payload,
                headers: "",
                created_at: chrono::DateTime::UNIX_EPOCH,
            });
        }
        let stamp = Stamp {
            source: Uuid::nil(),
            subscription: String::new(),
            generation: 1,
            epochs: [0; SHARDS],
            repeat: Repeat::Position { mark: 1 },
        };
        let messages: Vec<Message<'_>> = chunk.messages().collect();
        let batch = Batch::new(&stamp, &messages);
        let mut plan = Plan::default();
        plan.place("", &StreamNaming::PerTopic, &messages);
        let calls = plan.calls(&batch);
        let mut rest = calls.as_slice();
        let mut flights = Vec::new();
        while !rest.is_empty() {
            let flight = together(&mut rest);
            flights.push(flight.iter().flat_map(|call| call.events.clone()).collect());
        }
        flights
    }

    #[test]
    fn small_events_travel_together_whatever_their_streams() {
        assert_eq!(flights(&["a", "b", "a", "b"], 100), [[0, 2, 1, 3]]);
    }

    #[test]
    fn what_travels_together_is_bounded_by_bytes() {
        let third = FLIGHT_BYTES / 3;
        assert_eq!(flights(&["a"; 7], third), [vec![0, 1], vec![2, 3], vec![4, 5], vec![6]]);
        assert_eq!(flights(&["a", "b", "c", "a"], third), [vec![0, 3], vec![1, 2]]);
        // One that is larger than that goes alone.
        assert_eq!(flights(&["a", "b", "a"], 2 * FLIGHT_BYTES), [[0], [1], [2]]);
    }
}
