//! The event contract of a service, from its types to the file and back.
#![cfg(feature = "contract")]

use std::panic::catch_unwind;

use outbox_diesel::contract::{Catalogue, ContractError, Kept, assert_kept};
use outbox_diesel::{OutboxEvent, outbox_events};
use schemars::JsonSchema;
use serde::Serialize;

/// The service as it was released.
#[allow(dead_code, reason = "only their schemas are of interest")]
mod released {
    use super::{JsonSchema, OutboxEvent, Serialize, outbox_events};

    #[derive(Serialize, JsonSchema)]
    pub(super) struct Address {
        city: String,
        zip: String,
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Method {
        Card,
        Cash,
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = "id", topic = "orders", header("shop" = "main"))]
    #[serde(rename_all = "snake_case")]
    pub(super) enum OrderEvent {
        Created {
            id: i64,
            total: u32,
            note: Option<String>,
            to: Address,
        },
        #[outbox(header("by" = by))]
        Paid {
            id: i64,
            method: Method,
            by: String,
        },
        #[outbox(aggregate_id = _0)]
        #[serde(rename = "called-off")]
        Cancelled(i64),
        #[outbox(aggregate_id = { 1 })]
        Audited,
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(aggregate = "stock")]
    #[serde(tag = "what")]
    pub(super) enum StockEvent {
        Taken {
            #[outbox(aggregate_id)]
            item: u8,
        },
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(header("outer" = 1))]
    pub(super) enum Nested {
        #[outbox(delegate)]
        Stock(StockEvent),
    }

    outbox_events! { pub(super) enum Events { OrderEvent, Nested } }
}

/// The next release, one mistake in each event.
#[allow(dead_code, reason = "only their schemas are of interest")]
mod broken {
    use super::{JsonSchema, OutboxEvent, Serialize, outbox_events};

    #[derive(Serialize, JsonSchema)]
    pub(super) struct Address {
        city: u32,
        zip: String,
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Method {
        Card,
        Transfer,
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = "id", topic = "sales", header("shop" = "main"))]
    #[serde(rename_all = "snake_case")]
    pub(super) enum OrderEvent {
        Created {
            id: i64,
            sum: u32,
            note: String,
            to: Address,
            more: u8,
        },
        #[outbox(topic = "orders")]
        Paid {
            id: i64,
            method: Method,
            by: String,
        },
        #[outbox(aggregate_id = _0, topic = "orders")]
        #[serde(rename = "called-off")]
        Cancelled(String),
    }

    outbox_events! { pub(super) enum Events { OrderEvent } }
}

/// The next release as it should be.
#[allow(dead_code, reason = "only their schemas are of interest")]
mod careful {
    use super::{JsonSchema, OutboxEvent, Serialize, outbox_events};

    #[derive(Serialize, JsonSchema)]
    pub(super) struct Address {
        city: String,
        zip: String,
        country: Option<String>,
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub(super) enum Method {
        Card,
        Transfer,
        Cash,
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = "id", topic = "orders", header("shop" = "main"))]
    #[outbox(header("new" = 1))]
    #[serde(rename_all = "snake_case")]
    pub(super) enum OrderEvent {
        /// Documented now.
        Created {
            id: i64,
            total: u32,
            note: Option<String>,
            to: Address,
            #[serde(default)]
            more: u8,
        },
        #[outbox(header("by" = by))]
        Paid {
            id: i64,
            method: Method,
            by: String,
        },
        #[outbox(aggregate_id = _0, version = 2)]
        #[serde(rename = "called-off")]
        Cancelled(String),
        #[outbox(aggregate_id = { 1 })]
        Audited,
        Shipped {
            id: i64,
        },
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(aggregate = "stock")]
    #[serde(tag = "what")]
    pub(super) enum StockEvent {
        Taken {
            #[outbox(aggregate_id)]
            item: u8,
        },
    }

    #[derive(Serialize, JsonSchema, OutboxEvent)]
    #[outbox(header("outer" = 1))]
    pub(super) enum Nested {
        #[outbox(delegate)]
        Stock(StockEvent),
    }

    outbox_events! { pub(super) enum Events { OrderEvent, Nested } }
}

fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("events.json");
    (directory, file)
}

#[test]
fn an_unchanged_service_keeps_its_contract() {
    let (_directory, file) = file();
    let catalogue = Catalogue::of::<released::Events>();
    catalogue.write(&file).expect("it can be written");
    assert_eq!(catalogue.keep(&file).expect("nothing broke"), Kept::Unchanged);
    assert_kept::<released::Events>(&file);
}

#[test]
fn additions_pass_and_are_written() {
    let (_directory, file) = file();
    Catalogue::of::<released::Events>().write(&file).expect("it can be written");
    let catalogue = Catalogue::of::<careful::Events>();
    assert_eq!(catalogue.keep(&file).expect("nothing broke"), Kept::Written);
    assert_eq!(catalogue.keep(&file).expect("nothing broke"), Kept::Unchanged);
}

#[test]
fn every_breach_is_reported_with_event_field_and_rule() {
    let (_directory, file) = file();
    Catalogue::of::<released::Events>().write(&file).expect("it can be written");
    let before = std::fs::read_to_string(&file).expect("it was written");
    let error = Catalogue::of::<broken::Events>().keep(&file).expect_err("all of it broke");
    let ContractError::Broken { breaches, .. } = error else { panic!("{error}") };
    let lines: Vec<String> = breaches.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "`order.audited` version 1: the event was removed, and no higher version replaces it",
            "`order.cancelled` version 1: field `called-off` was changed from integer to string",
            "`order.created` version 1: the topic was changed from `orders` to `sales`",
            "`order.created` version 1: field `created.note` was narrowed from null or string to string",
            "`order.created` version 1: field `created.note` was made required",
            "`order.created` version 1: field `created.to.city` was changed from string to integer",
            "`order.created` version 1: field `created.total` was removed, or renamed to `sum`",
            "`order.created` version 1: field `created.more` was added as required, which older \
             events lack; make it an `Option` or `#[serde(default)]`",
            "`order.paid` version 1: the header `by` was removed",
            "`order.paid` version 1: field `paid.method` was narrowed: the value \"cash\" was removed",
            "`stock.taken` version 1: the event was removed, and no higher version replaces it",
        ]
    );
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), before);
}

#[test]
fn the_one_line_test_says_what_to_do() {
    let (_directory, file) = file();
    let message = |panic: Box<dyn std::any::Any + Send>| *panic.downcast::<String>().expect("text");
    let missing = catch_unwind(|| assert_kept::<released::Events>(&file)).map_err(message);
    assert!(missing.expect_err("no file").contains("OUTBOX_CONTRACT=accept cargo test"));

    Catalogue::of::<released::Events>().write(&file).expect("it can be written");
    let broken = catch_unwind(|| assert_kept::<broken::Events>(&file)).map_err(message);
    let broken = broken.expect_err("all of it broke");
    assert!(broken.contains("`order.paid` version 1: the header `by` was removed"), "{broken}");
    assert!(broken.contains("#[outbox(version = 2)]"), "{broken}");
}

#[test]
fn an_event_of_an_enum_has_the_schema_of_its_variant() {
    let catalogue = Catalogue::of::<released::Events>();
    let payload = |event_type: &str| {
        let event = catalogue.events.iter().find(|event| event.event_type == event_type);
        event.map(|event| event.payload.clone()).expect("the event is listed")
    };
    let required = |payload: &serde_json::Value| payload["required"].clone();
    assert_eq!(required(&payload("order.created")), serde_json::json!(["created"]));
    assert_eq!(required(&payload("order.cancelled")), serde_json::json!(["called-off"]));
    assert_eq!(payload("order.audited")["const"], "audited");
    assert_eq!(required(&payload("stock.taken")), serde_json::json!(["Stock"]));
    let headers: Vec<_> = catalogue.events.iter().map(|event| event.headers.join(" ")).collect();
    assert_eq!(headers, ["shop", "shop", "shop", "by shop", "outer"]);
}

#[test]
fn a_contract_that_is_no_contract_says_so() {
    let (_directory, file) = file();
    std::fs::write(&file, "<<<<<<<").expect("it can be written");
    let error = Catalogue::of::<released::Events>().keep(&file).expect_err("it is no JSON");
    assert!(matches!(error, ContractError::Invalid { .. }));
}

#[test]
fn the_asyncapi_document_is_valid() {
    let schema: serde_json::Value =
        serde_json::from_str(include_str!("contract/asyncapi-3.0.0.json")).expect("it is JSON");
    let validator = jsonschema::validator_for(&schema).expect("it is a JSON Schema");
    let document = Catalogue::of::<released::Events>().asyncapi("shop", "1.0.0");
    let errors: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert_eq!(errors, [""; 0], "{document:#}");

    // The validator is awake.
    let mut mistaken = document.clone();
    mistaken["operations"]["send.orders"]["action"] = "shout".into();
    assert!(!validator.is_valid(&mistaken));

    assert_eq!(document["channels"]["orders"]["address"], "orders");
    assert_no_dangling(&document, &document);
}

/// The official schema does not follow references.
fn assert_no_dangling(document: &serde_json::Value, part: &serde_json::Value) {
    if let Some(path) = part.get("$ref").and_then(serde_json::Value::as_str) {
        let pointer = path.strip_prefix('#').expect("references stay in the document");
        assert!(document.pointer(pointer).is_some(), "{path} is nowhere");
    }
    let inner = part.as_object().into_iter().flat_map(serde_json::Map::values);
    for part in inner.chain(part.as_array().into_iter().flatten()) {
        assert_no_dangling(document, part);
    }
}

#[test]
fn cloud_events_have_what_the_specification_requires() {
    let events = Catalogue::of::<released::Events>().cloud_events("https://shop.example");
    for event in &events {
        for required in ["id", "source", "specversion", "type"] {
            assert!(event[required].as_str().is_some_and(|value| !value.is_empty()));
        }
        let names = event.as_object().expect("attributes").keys();
        for name in names {
            let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            assert!(name.bytes().all(valid) && name.len() <= 20, "{name}");
        }
    }
    assert_eq!(events[3]["type"], "order.paid");
    assert_eq!(events[3]["by"], "{headers.by}");
}
