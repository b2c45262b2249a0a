//! The catalogue as an AsyncAPI 3.0 document.

use serde_json::{Map, Value, json};

use super::catalogue::{Catalogue, EventContract, SCHEMAS};
use super::cloud_event;

impl Catalogue {
    /// An AsyncAPI 3.0 document: a channel per topic, a message per event and version, and the
    /// schemas. `x-cloudevents` of a message has its [CloudEvents attributes](Self::cloud_events),
    /// with the document's title as their source.
    ///
    /// ```
    /// # use outbox_diesel::{OutboxEvent, contract::Catalogue, outbox_events};
    /// # #[derive(serde::Serialize, schemars::JsonSchema, OutboxEvent)]
    /// # #[outbox(aggregate = "order", aggregate_id = "0", topic = "orders")]
    /// # struct OrderCreated(i64);
    /// # outbox_events! { enum ShopEvent { OrderCreated } }
    /// let document = Catalogue::of::<ShopEvent>().asyncapi("shop", "1.0.0");
    /// assert_eq!(document["channels"]["orders"]["address"], "orders");
    /// ```
    #[must_use]
    pub fn asyncapi(&self, title: &str, version: &str) -> Value {
        let (mut channels, mut operations) = (Map::new(), Map::new());
        let (mut messages, mut schemas) = (Map::new(), Map::new());
        for event in &self.events {
            let (channel, message) = (key(&event.topic), message_key(event));
            messages.insert(message.clone(), message_of(event, title));

            let known = channels
                .entry(channel.clone())
                .or_insert_with(|| json!({ "address": event.topic, "messages": {} }));
            known["messages"][&message] = reference(&format!("components/messages/{message}"));

            let send = operations.entry(format!("send.{channel}")).or_insert_with(|| {
                json!({
                    "action": "send",
                    "channel": reference(&format!("channels/{channel}")),
                    "messages": [],
                })
            });
            if let Some(list) = send["messages"].as_array_mut() {
                list.push(reference(&format!("channels/{channel}/messages/{message}")));
            }
        }
        for (name, schema) in &self.schemas {
            schemas.insert(key(name), moved(schema));
        }
        json!({
            "asyncapi": "3.0.0",
            "info": { "title": title, "version": version },
            "defaultContentType": "application/json",
            "channels": channels,
            "operations": operations,
            "components": { "messages": messages, "schemas": schemas },
        })
    }
}

fn message_of(event: &EventContract, source: &str) -> Value {
    let headers: Map<String, Value> =
        event.headers.iter().map(|name| (name.clone(), json!({ "type": "string" }))).collect();
    json!({
        "name": event.event_type,
        "title": format!("{} version {}", event.event_type, event.event_version),
        "contentType": "application/json",
        "headers": { "type": "object", "properties": headers },
        "payload": moved(&event.payload),
        "x-event-version": event.event_version,
        "x-aggregate-type": event.aggregate_type,
        "x-cloudevents": cloud_event::attributes(event, source),
    })
}

fn message_key(event: &EventContract) -> String {
    format!("{}.v{}", key(&event.event_type), event.event_version)
}

/// AsyncAPI names things with letters, digits, `.`, `-` and `_`; other characters become their code,
/// so that different names stay different.
fn key(name: &str) -> String {
    let part = |character: char| match character {
        '.' | '-' | '_' => character.to_string(),
        _ if character.is_ascii_alphanumeric() => character.to_string(),
        _ => format!("_x{:x}_", u32::from(character)),
    };
    name.chars().map(part).collect()
}

fn reference(path: &str) -> Value {
    json!({ "$ref": format!("#/{path}") })
}

/// The schema with its references moved to where AsyncAPI has them.
fn moved(schema: &Value) -> Value {
    match schema {
        Value::Object(object) => {
            let moved = object.iter().map(|(name, value)| {
                let referred = value.as_str().and_then(|path| path.strip_prefix(SCHEMAS));
                match referred.filter(|_| name == "$ref") {
                    Some(referred) => {
                        (name.clone(), format!("#/components/schemas/{}", key(referred)).into())
                    }
                    None => (name.clone(), moved(value)),
                }
            });
            Value::Object(moved.collect())
        }
        Value::Array(list) => list.iter().map(moved).collect(),
        other => other.clone(),
    }
}
