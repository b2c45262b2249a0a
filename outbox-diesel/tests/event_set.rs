//! What `outbox_events!` makes of a list of event types.

use outbox_diesel::describe::{Described, DescribedEvent, EventDescription};
use outbox_diesel::{DecodeError, Decoded, EventSet, OutboxEvent, outbox_events};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "order", aggregate_id = "id", topic = "orders", header("shop" = "main"))]
#[serde(rename_all = "snake_case")]
enum OrderEvent {
    Created {
        id: i64,
    },
    #[outbox(version = 2, header("reason" = reason), upcast(1 = CancelledV1))]
    #[serde(rename = "called-off")]
    Cancelled {
        id: i64,
        reason: String,
    },
}

#[derive(Deserialize)]
struct CancelledV1 {
    id: i64,
}

impl From<CancelledV1> for OrderEvent {
    fn from(old: CancelledV1) -> Self {
        Self::Cancelled { id: old.id, reason: "unknown".to_owned() }
    }
}

mod payments {
    use super::{Deserialize, OutboxEvent, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
    #[outbox(aggregate = "payment", version = 3)]
    #[outbox(upcast(1 = Cents, 2 = Vec::<u8>))]
    pub(super) struct Captured {
        #[outbox(aggregate_id, header)]
        pub(super) id: i64,
        pub(super) cents: u32,
    }

    #[derive(Deserialize)]
    pub(super) struct Cents(u32);

    impl From<Cents> for Captured {
        fn from(Cents(cents): Cents) -> Self {
            Self { id: 0, cents }
        }
    }

    impl From<Vec<u8>> for Captured {
        fn from(bytes: Vec<u8>) -> Self {
            Self { id: 2, cents: bytes.len().try_into().unwrap_or(0) }
        }
    }
}

/// The old version is still emitted by somebody.
#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "payment", event_type = "payment.captured", version = 1)]
struct CapturedV1 {
    #[outbox(aggregate_id)]
    number: u8,
}

/// Two shapes that look alike.
#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(aggregate = "stock", aggregate_id = "item")]
#[serde(untagged)]
enum StockEvent {
    Taken { item: u8 },
    Returned { item: u8 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize, OutboxEvent)]
#[outbox(header("outer" = 1))]
enum Nested {
    #[outbox(delegate)]
    Stock(StockEvent),
}

outbox_events! {
    /// Everything.
    #[derive(Debug, PartialEq)]
    enum ShopEvent {
        OrderEvent,
        Payment(payments::Captured),
        CapturedV1,
        Nested,
    }
}

fn decode(event_type: &str, version: i16, payload: &str) -> Decoded<ShopEvent> {
    ShopEvent::decode(event_type, version, payload.as_bytes()).expect("it can be read")
}

#[test]
fn type_and_version_choose_the_struct() {
    assert_eq!(
        decode("order.created", 1, r#"{ "created": { "id": 7 } }"#),
        Decoded::Event(ShopEvent::OrderEvent(OrderEvent::Created { id: 7 }))
    );
    assert_eq!(
        decode("payment.captured", 3, r#"{ "id": 7, "cents": 250 }"#),
        Decoded::Event(ShopEvent::Payment(payments::Captured { id: 7, cents: 250 }))
    );
    assert_eq!(
        decode("stock.taken", 1, r#"{ "Stock": { "item": 7 } }"#).event(),
        Some(Nested::Stock(StockEvent::Taken { item: 7 }).into())
    );
}

#[test]
fn what_is_emitted_is_what_is_decoded() {
    let event = OrderEvent::Cancelled { id: 7, reason: "late".to_owned() };
    let mut payload = Vec::new();
    event.write_payload(&mut payload).expect("serde can write it");
    let decoded = ShopEvent::decode(event.event_type(), event.event_version(), &payload);
    assert_eq!(decoded.expect("it can be read").event(), Some(event.into()));
}

#[test]
fn unknown_types_and_versions_are_values_and_not_errors() {
    let unknown = |event_type: &str, event_version| Decoded::Unknown {
        event_type: event_type.to_owned(),
        event_version,
    };
    assert_eq!(decode("order.shipped", 1, "not even JSON"), unknown("order.shipped", 1));
    assert_eq!(decode("order.created", 2, "{}"), unknown("order.created", 2));
    assert_eq!(decode("order.created", 0, "{}"), unknown("order.created", 0));
}

#[test]
fn payloads_of_older_versions_are_upcast() {
    assert_eq!(
        decode("order.cancelled", 1, r#"{ "id": 7 }"#).event(),
        Some(OrderEvent::Cancelled { id: 7, reason: "unknown".to_owned() }.into())
    );
    assert_eq!(
        decode("payment.captured", 2, "[1, 2]").event(),
        Some(payments::Captured { id: 2, cents: 2 }.into())
    );
}

#[test]
fn a_version_that_is_listed_itself_is_not_upcast() {
    assert_eq!(
        decode("payment.captured", 1, r#"{ "number": 7 }"#).event(),
        Some(CapturedV1 { number: 7 }.into())
    );
}

#[test]
fn a_known_event_of_another_shape_is_an_error_that_names_it() {
    let error = ShopEvent::decode("order.created", 1, b"{}").expect_err("the id is missing");
    assert_eq!(error.to_string(), "the payload of `order.created` version 1 has another shape");
    let error = ShopEvent::decode("order.cancelled", 1, b"{}").expect_err("the id is missing");
    assert!(matches!(error, DecodeError::Payload { event_version: 1, .. }));
}

#[test]
fn an_untagged_enum_that_reads_another_event_is_an_error() {
    let error = ShopEvent::decode("stock.returned", 1, br#"{ "Stock": { "item": 7 } }"#);
    let error = error.expect_err("it looks like the first variant");
    assert!(matches!(error, DecodeError::OtherEvent { read, .. } if read == "stock.taken"));
}

#[test]
fn a_type_describes_its_events() {
    let [Described::Event(created), Described::Event(cancelled)] = OrderEvent::EVENTS else {
        panic!("two events")
    };
    let EventDescription { event_type, event_version, aggregate_type, topic, .. } = *created;
    assert_eq!((event_type, event_version), ("order.created", 1));
    assert_eq!((aggregate_type, topic), ("order", "orders"));
    assert_eq!((created.headers, created.variant), (&["shop"][..], Some("Created")));
    assert_eq!(
        (cancelled.headers, cancelled.variant),
        (&["shop", "reason"][..], Some("called-off"))
    );
    assert_eq!((cancelled.event_version, cancelled.upcasts), (2, &[1][..]));

    let [Described::Event(captured)] = payments::Captured::EVENTS else { panic!("one event") };
    assert_eq!((captured.headers, captured.variant), (&["id"][..], None));

    let [Described::Delegated { variant, events, headers }] = Nested::EVENTS else {
        panic!("one variant")
    };
    assert_eq!((*variant, events.len(), *headers), ("Stock", 2, &["outer"][..]));
}

#[test]
fn a_list_without_a_name_is_called_events_and_may_be_only_written() {
    #[allow(unreachable_pub, reason = "it plays a crate")]
    mod producer {
        use outbox_diesel::{OutboxEvent, outbox_events};

        #[derive(serde::Serialize, OutboxEvent)]
        #[outbox(aggregate = "a", aggregate_id = { 1 })]
        pub struct Pinged;
        outbox_events! { Pinged }
    }
    let _: producer::Events = producer::Pinged.into();
    assert_eq!(producer::Events::MEMBERS[0].0, "Pinged");
}

#[test]
fn hundreds_of_types_fit_in_one_list() {
    macro_rules! many {
        ($($name:ident)*) => {
            $(
                #[derive(Serialize, Deserialize, OutboxEvent)]
                #[outbox(aggregate = "a", aggregate_id = { 1 })]
                struct $name;
            )*
            outbox_events! { enum Many { $($name),* } }
        };
    }
    many! {
        A00 A01 A02 A03 A04 A05 A06 A07 A08 A09 A10 A11 A12 A13 A14 A15 A16 A17 A18 A19 A20 A21 A22 A23
        B00 B01 B02 B03 B04 B05 B06 B07 B08 B09 B10 B11 B12 B13 B14 B15 B16 B17 B18 B19 B20 B21 B22 B23
        C00 C01 C02 C03 C04 C05 C06 C07 C08 C09 C10 C11 C12 C13 C14 C15 C16 C17 C18 C19 C20 C21 C22 C23
        D00 D01 D02 D03 D04 D05 D06 D07 D08 D09 D10 D11 D12 D13 D14 D15 D16 D17 D18 D19 D20 D21 D22 D23
        E00 E01 E02 E03 E04 E05 E06 E07 E08 E09 E10 E11 E12 E13 E14 E15 E16 E17 E18 E19 E20 E21 E22 E23
        F00 F01 F02 F03 F04 F05 F06 F07 F08 F09 F10 F11 F12 F13 F14 F15 F16 F17 F18 F19 F20 F21 F22 F23
    }
    assert_eq!(Many::MEMBERS.len(), 144);
    let decoded = Many::decode("a.f23", 1, b"null").expect("it can be read");
    assert!(matches!(decoded, Decoded::Event(Many::F23(F23))));
}
