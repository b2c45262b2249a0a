//! [`TestEvent`]: an event of which everything can be said.

use std::borrow::Cow;
use std::fmt::Display;

use outbox_diesel::{Headers, MissingAggregateId, OutboxEvent, PAYLOAD_LIMIT};

/// An event as the test wants it, valid or not. The setters are named after what they set.
#[derive(Debug, Clone)]
pub struct TestEvent {
    aggregate_type: String,
    aggregate_id: Option<String>,
    event_type: String,
    event_version: i16,
    topic: Option<String>,
    dedup_key: Option<String>,
    headers: Headers,
    payload: String,
    payload_limit: usize,
}

impl TestEvent {
    /// `order.created` of the order with this id, with the payload `{}`.
    #[must_use]
    pub fn new(aggregate_id: impl Display) -> Self {
        Self {
            aggregate_type: "order".to_owned(),
            aggregate_id: Some(aggregate_id.to_string()),
            event_type: "order.created".to_owned(),
            event_version: 1,
            topic: None,
            dedup_key: None,
            headers: Headers::default(),
            payload: "{}".to_owned(),
            payload_limit: PAYLOAD_LIMIT,
        }
    }

    /// One without an aggregate id, which no emit takes.
    #[must_use]
    pub fn without_aggregate_id() -> Self {
        Self { aggregate_id: None, ..Self::new("") }
    }

    /// Sets the version of the payload's shape.
    #[must_use]
    pub fn event_version(mut self, event_version: i16) -> Self {
        self.event_version = event_version;
        self
    }

    /// Sets the largest payload that emit accepts.
    #[must_use]
    pub fn payload_limit(mut self, payload_limit: usize) -> Self {
        self.payload_limit = payload_limit;
        self
    }

    /// Sets the aggregate type.
    #[must_use]
    pub fn aggregate_type(mut self, aggregate_type: impl Into<String>) -> Self {
        self.aggregate_type = aggregate_type.into();
        self
    }

    /// Sets the event type.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = event_type.into();
        self
    }

    /// Sets the topic; without, it is the aggregate type.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    /// Sets the dedup key.
    #[must_use]
    pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
        self.dedup_key = Some(key.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Sets the payload to this text, whether it is JSON or not.
    #[must_use]
    pub fn payload(mut self, json: impl Into<String>) -> Self {
        self.payload = json.into();
        self
    }
}

impl OutboxEvent for TestEvent {
    fn aggregate_type(&self) -> &str {
        &self.aggregate_type
    }
    fn aggregate_id(&self) -> Result<Cow<'_, str>, MissingAggregateId> {
        self.aggregate_id.as_deref().map(Cow::from).ok_or(MissingAggregateId { field: "id" })
    }
    fn event_type(&self) -> &str {
        &self.event_type
    }
    fn event_version(&self) -> i16 {
        self.event_version
    }
    fn topic(&self) -> &str {
        self.topic.as_deref().unwrap_or(&self.aggregate_type)
    }
    fn dedup_key(&self) -> Option<Cow<'_, str>> {
        self.dedup_key.as_deref().map(Cow::from)
    }
    fn headers(&self, headers: &mut Headers) {
        for (name, value) in self.headers.iter() {
            headers.set(name, value);
        }
    }
    fn payload_limit(&self) -> usize {
        self.payload_limit
    }
    fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        json.extend_from_slice(self.payload.as_bytes());
        Ok(())
    }
}
