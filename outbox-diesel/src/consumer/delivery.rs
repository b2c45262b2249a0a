//! What a handler is given.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::entry::{Entry, EntryId, Fields};

/// One event as it came, at one of the times that it is tried. Cheap to clone.
#[derive(Clone)]
pub struct Delivery {
    parts: Arc<Parts>,
    attempt: u32,
}

struct Parts {
    stream: Arc<str>,
    entry: EntryId,
    fields: Fields,
    event_id: Uuid,
    event_version: i16,
    headers: Map<String, Value>,
    created_at: Option<DateTime<Utc>>,
    texts: String,
    topic: Range<usize>,
    aggregate_type: Range<usize>,
    aggregate_id: Range<usize>,
    event_type: Range<usize>,
    dedup_key: Range<usize>,
    payload: usize,
}

impl Delivery {
    /// The event's id: what an [`Inbox`](crate::inbox::Inbox) goes by.
    #[must_use]
    pub fn event_id(&self) -> Uuid {
        self.parts.event_id
    }

    /// Where it was published; empty if the producer does not say.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.parts.texts[self.parts.topic.clone()]
    }

    /// What kind of thing it happened to.
    #[must_use]
    pub fn aggregate_type(&self) -> &str {
        &self.parts.texts[self.parts.aggregate_type.clone()]
    }

    /// Which one of them.
    #[must_use]
    pub fn aggregate_id(&self) -> &str {
        &self.parts.texts[self.parts.aggregate_id.clone()]
    }

    /// What happened.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.parts.texts[self.parts.event_type.clone()]
    }

    /// The version of the payload's shape; 1 if the producer does not say.
    #[must_use]
    pub fn event_version(&self) -> i16 {
        self.parts.event_version
    }

    /// The producer's dedup key.
    #[must_use]
    pub fn dedup_key(&self) -> Option<&str> {
        Some(&self.parts.texts[self.parts.dedup_key.clone()]).filter(|key| !key.is_empty())
    }

    /// The payload, byte for byte.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.parts.fields[self.parts.payload].1
    }

    /// The payload, parsed.
    ///
    /// # Errors
    /// [`InvalidPayload`], which tells no part of the payload.
    pub fn payload_as<T: DeserializeOwned>(&self) -> Result<T, InvalidPayload> {
        serde_json::from_slice(self.payload())
            .map_err(|error| InvalidPayload::new(self.event_type().to_owned(), &error))
    }

    /// The value of a header, if it is a text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(Value::as_str)
    }

    /// The trace that it was emitted in.
    pub(super) fn trace_id(&self) -> Option<&str> {
        crate::trace::trace_id(self.header("traceparent")?)
    }

    /// All headers.
    #[must_use]
    pub fn headers(&self) -> &Map<String, Value> {
        &self.parts.headers
    }

    /// When it was emitted, if the producer says. Information only.
    #[must_use]
    pub fn created_at(&self) -> Option<DateTime<Utc>> {
        self.parts.created_at
    }

    /// The stream it was read from.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.parts.stream
    }

    /// Its place in the stream.
    #[must_use]
    pub fn entry_id(&self) -> EntryId {
        self.parts.entry
    }

    /// Which try this is, from 1 on, over all consumers of the group. A crash counts as a try of
    /// whatever was being handled.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    pub(super) fn with_attempt(&self, attempt: u32) -> Self {
        Self { parts: Arc::clone(&self.parts), attempt }
    }

    pub(super) fn fields(&self) -> &[(Vec<u8>, Vec<u8>)] {
        &self.parts.fields
    }

    /// Reads an entry's fields, and gives them back if they are no event.
    pub(super) fn read(
        stream: &Arc<str>,
        entry: &Entry,
        fields: Fields,
    ) -> Result<Self, (Malformed, Fields)> {
        match Parts::read(stream, entry.id, &fields) {
            Ok(mut parts) => {
                parts.fields = fields;
                Ok(Self { parts: Arc::new(parts), attempt: entry.deliveries.max(1) })
            }
            Err(malformed) => Err((malformed, fields)),
        }
    }
}

impl fmt::Debug for Delivery {
    /// Without payload and headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("stream", &self.parts.stream)
            .field("entry", &self.parts.entry.to_string())
            .field("event_id", &self.parts.event_id)
            .field("event_type", &self.event_type())
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

impl Parts {
    fn read(
        stream: &Arc<str>,
        entry: EntryId,
        fields: &[(Vec<u8>, Vec<u8>)],
    ) -> Result<Self, Malformed> {
        let find = |name: &str| fields.iter().position(|(known, _)| known == name.as_bytes());
        let text = |name: &'static str| match find(name) {
            None => Ok(None),
            Some(at) => match std::str::from_utf8(&fields[at].1) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(Malformed::Unreadable(name)),
            },
        };
        let needed = |name: &'static str| match text(name)? {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(Malformed::Missing(name)),
        };
        let event_id =
            Uuid::try_parse(needed("event_id")?).map_err(|_| Malformed::Unreadable("event_id"))?;
        let payload = find("payload").ok_or(Malformed::Missing("payload"))?;
        let event_version = match text("event_version")? {
            None => 1,
            Some(version) => version.parse().map_err(|_| Malformed::Unreadable("event_version"))?,
        };
        let headers = match text("headers")? {
            None | Some("") => Map::new(),
            Some(headers) => {
                serde_json::from_str(headers).map_err(|_| Malformed::Unreadable("headers"))?
            }
        };
        let created_at = match text("created_at")? {
            None | Some("") => None,
            Some(time) => Some(time.parse().map_err(|_| Malformed::Unreadable("created_at"))?),
        };
        let mut texts = String::new();
        let mut keep = |text: &str| {
            let from = texts.len();
            texts.push_str(text);
            from..texts.len()
        };
        let topic = keep(text("topic")?.unwrap_or_default());
        let aggregate_type = keep(needed("aggregate_type")?);
        let aggregate_id = keep(needed("aggregate_id")?);
        let event_type = keep(needed("event_type")?);
        let dedup_key = keep(text("dedup_key")?.unwrap_or_default());
        Ok(Self {
            stream: Arc::clone(stream),
            entry,
            fields: Vec::new(),
            event_id,
            event_version,
            headers,
            created_at,
            texts,
            topic,
            aggregate_type,
            aggregate_id,
            event_type,
            dedup_key,
            payload,
        })
    }
}

/// Why an entry is no event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// A field that every event has is not there, or empty.
    #[error("the field {0} is missing")]
    Missing(&'static str),
    /// A field is there and cannot be read.
    #[error("the field {0} cannot be read")]
    Unreadable(&'static str),
}

/// A payload is not what its handler expects. Tells where, and nothing of what it holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the payload of the event of type {event_type} {what} (line {line}, column {column})")]
pub struct InvalidPayload {
    event_type: String,
    what: &'static str,
    line: usize,
    column: usize,
}

impl InvalidPayload {
    pub(super) fn new(event_type: String, error: &serde_json::Error) -> Self {
        let what = match error.classify() {
            serde_json::error::Category::Data => "has another shape than its handler expects",
            _ => "is not JSON",
        };
        Self { event_type, what, line: error.line(), column: error.column() }
    }
}
