//! An event on its way out: [`Message`] borrows from the [`Chunk`] it was read into; a
//! [`Batch`](crate::publish::Batch) of messages is what a publisher gets.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Shards per subscription. Fixed: the shard of an event is a stored column.
pub const SHARDS: usize = 16;

/// Events as they were read: all bytes in one buffer, one fixed-size entry per event, no
/// allocation per event.
#[derive(Default)]
pub struct Chunk {
    text: String,
    entries: Vec<Entry>,
}

struct Entry {
    tick: i64,
    seq: i64,
    id: Uuid,
    created_at: DateTime<Utc>,
    start: usize,
    /// Ends of topic, aggregate type, aggregate id, event type, dedup key, payload and headers,
    /// counted from `start`.
    ends: [u32; 7],
    has_dedup_key: bool,
    shard: u8,
    event_version: i16,
}

/// One event's columns, to be copied into a [`Chunk`].
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a> {
    /// The tick that made the event visible.
    pub tick: i64,
    /// Place within the tick.
    pub seq: i64,
    /// 0 to 15.
    pub shard: u8,
    /// The event's id.
    pub id: Uuid,
    /// The topic.
    pub topic: &'a str,
    /// The aggregate's type.
    pub aggregate_type: &'a str,
    /// The aggregate's id.
    pub aggregate_id: &'a str,
    /// What happened.
    pub event_type: &'a str,
    /// Version of the payload's shape.
    pub event_version: i16,
    /// The producer's dedup key.
    pub dedup_key: Option<&'a str>,
    /// The payload's JSON text.
    pub payload: &'a str,
    /// The headers' JSON text, an object.
    pub headers: &'a str,
    /// When the event was emitted, by the database's clock.
    pub created_at: DateTime<Utc>,
}

impl Chunk {
    /// Copies one event in.
    pub fn push(&mut self, fields: Fields<'_>) {
        let start = self.text.len();
        let mut ends = [0; 7];
        let texts = [
            fields.topic,
            fields.aggregate_type,
            fields.aggregate_id,
            fields.event_type,
            fields.dedup_key.unwrap_or_default(),
            fields.payload,
            fields.headers,
        ];
        for (end, text) in ends.iter_mut().zip(texts) {
            self.text.push_str(text);
            *end =
                u32::try_from(self.text.len() - start).expect("PostgreSQL bounds a row at 1 GiB");
        }
        self.entries.push(Entry {
            tick: fields.tick,
            seq: fields.seq,
            id: fields.id,
            created_at: fields.created_at,
            start,
            ends,
            has_dedup_key: fields.dedup_key.is_some(),
            shard: fields.shard,
            event_version: fields.event_version,
        });
    }

    /// Forgets the events and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    /// How many events it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of the events' texts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// The events in order.
    #[must_use]
    pub fn messages(&self) -> impl ExactSizeIterator<Item = Message<'_>> {
        self.entries.iter().map(|entry| Message { text: &self.text[entry.start..], entry })
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("len", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

/// One event on its way to a broker.
#[derive(Clone, Copy)]
pub struct Message<'a> {
    text: &'a str,
    entry: &'a Entry,
}

impl<'a> Message<'a> {
    fn nth(&self, nth: usize) -> &'a str {
        let from = if nth == 0 { 0 } else { self.entry.ends[nth - 1] as usize };
        &self.text[from..self.entry.ends[nth] as usize]
    }

    /// The event's id, a UUIDv7 where this crate emitted it: the consumers' dedup key.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.entry.id
    }

    /// Where to publish.
    #[must_use]
    pub fn topic(&self) -> &'a str {
        self.nth(0)
    }

    /// The aggregate's type.
    #[must_use]
    pub fn aggregate_type(&self) -> &'a str {
        self.nth(1)
    }

    /// The aggregate's id: the partition key for brokers that have one.
    #[must_use]
    pub fn aggregate_id(&self) -> &'a str {
        self.nth(2)
    }

    /// What happened.
    #[must_use]
    pub fn event_type(&self) -> &'a str {
        self.nth(3)
    }

    /// Version of the payload's shape.
    #[must_use]
    pub fn event_version(&self) -> i16 {
        self.entry.event_version
    }

    /// The producer's dedup key.
    #[must_use]
    pub fn dedup_key(&self) -> Option<&'a str> {
        self.entry.has_dedup_key.then(|| self.nth(4))
    }

    /// The payload's JSON text, byte for byte as it was emitted.
    #[must_use]
    pub fn payload(&self) -> &'a str {
        self.nth(5)
    }

    /// The headers' JSON text, an object of strings.
    #[must_use]
    pub fn headers(&self) -> &'a str {
        self.nth(6)
    }

    /// When the event was emitted, by the database's clock. Information only.
    #[must_use]
    pub fn created_at(&self) -> DateTime<Utc> {
        self.entry.created_at
    }

    /// The shard of its aggregate, 0 to 15.
    #[must_use]
    pub fn shard(&self) -> u8 {
        self.entry.shard
    }

    /// The tick that made it visible: the first part of its position.
    #[must_use]
    pub fn tick(&self) -> i64 {
        self.entry.tick
    }

    /// Its place within the tick: the second part of its position.
    #[must_use]
    pub fn seq(&self) -> i64 {
        self.entry.seq
    }

    /// The trace that it was emitted in, by its header `traceparent`. For what fails only: it parses
    /// the headers.
    pub(crate) fn trace_id(&self) -> Option<String> {
        let headers: HashMap<&str, Cow<'_, str>> = serde_json::from_str(self.headers()).ok()?;
        let trace_id = headers.get("traceparent")?.split('-').nth(1)?;
        let is_one = trace_id.len() == 32 && trace_id.bytes().all(|b| b.is_ascii_hexdigit());
        is_one.then(|| trace_id.to_owned())
    }

    /// Bytes of its texts.
    #[cfg(feature = "redis")]
    pub(crate) fn bytes(&self) -> usize {
        self.entry.ends[6] as usize
    }

    /// Whether the other event is one of the same aggregate, whose order counts.
    #[must_use]
    pub fn same_aggregate(&self, other: &Message<'_>) -> bool {
        self.aggregate_id() == other.aggregate_id()
            && self.aggregate_type() == other.aggregate_type()
    }
}

impl fmt::Debug for Message<'_> {
    /// Without payload and headers: they may hold personal data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("event_id", &self.id())
            .field("event_type", &self.event_type())
            .field("topic", &self.topic())
            .field("aggregate_type", &self.aggregate_type())
            .field("aggregate_id", &self.aggregate_id())
            .field("position", &(self.tick(), self.seq()))
            .finish_non_exhaustive()
    }
}
