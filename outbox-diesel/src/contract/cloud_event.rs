//! The attributes that an event has in CloudEvents.

use serde_json::{Value, json};

use super::catalogue::{Catalogue, EventContract};

impl Catalogue {
    /// The CloudEvents 1.0 attributes of each event, in the catalogue's order. A text in braces is
    /// the field of the published message that holds the value.
    ///
    /// | Attribute | Value |
    /// |---|---|
    /// | `specversion` | `1.0` |
    /// | `id` | `event_id` |
    /// | `source` | as given: a URI of this service, unique with `id` |
    /// | `type` | the event type |
    /// | `subject` | `aggregate_id` |
    /// | `time` | `created_at` |
    /// | `datacontenttype` | `application/json` |
    /// | `partitionkey` (an extension of the specification) | `aggregate_id` |
    /// | `eventversion`, `aggregatetype`, `topic` (extensions) | the version, aggregate, topic |
    ///
    /// Headers whose names are valid for CloudEvents, such as `traceparent`, are extensions too; the
    /// data is the payload.
    ///
    /// ```
    /// # use outbox_diesel::{OutboxEvent, contract::Catalogue, outbox_events};
    /// # #[derive(serde::Serialize, schemars::JsonSchema, OutboxEvent)]
    /// # #[outbox(aggregate = "order", aggregate_id = "0")]
    /// # struct OrderCreated(i64);
    /// # outbox_events! { enum ShopEvent { OrderCreated } }
    /// let events = Catalogue::of::<ShopEvent>().cloud_events("https://shop.example");
    /// assert_eq!(events[0]["type"], "order.created");
    /// assert_eq!(events[0]["subject"], "{aggregate_id}");
    /// ```
    #[must_use]
    pub fn cloud_events(&self, source: &str) -> Vec<Value> {
        self.events.iter().map(|event| attributes(event, source)).collect()
    }
}

pub(super) fn attributes(event: &EventContract, source: &str) -> Value {
    let mut attributes = json!({
        "specversion": "1.0",
        "id": "{event_id}",
        "source": source,
        "type": event.event_type,
        "subject": "{aggregate_id}",
        "time": "{created_at}",
        "datacontenttype": "application/json",
        "partitionkey": "{aggregate_id}",
        "eventversion": event.event_version,
        "aggregatetype": event.aggregate_type,
        "topic": event.topic,
    });
    for header in event.headers.iter().filter(|header| is_name(header)) {
        if attributes.get(header).is_none() {
            attributes[header] = format!("{{headers.{header}}}").into();
        }
    }
    attributes
}

/// CloudEvents names attributes with lower-case letters and digits, and reserves `data`.
fn is_name(header: &str) -> bool {
    header != "data"
        && header.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}
