//! What `#[derive(OutboxEvent)]` makes of a type.

use std::borrow::Cow;

use outbox_diesel::describe::{Described, DescribedEvent};
use outbox_diesel::{Headers, MissingAggregateId, OutboxEvent};
use serde::Serialize;

/// Has what an id needs and no more.
#[derive(Serialize)]
struct OrderId(u32);

impl std::fmt::Display for OrderId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "order-{}", self.0)
    }
}

fn id(event: &impl OutboxEvent) -> String {
    event.aggregate_id().expect("the id is there").into_owned()
}

fn headers(event: &impl OutboxEvent) -> String {
    let mut headers = Headers::default();
    event.headers(&mut headers);
    let pairs: Vec<_> = headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join(" ")
}

fn payload(event: &impl OutboxEvent) -> String {
    let mut json = Vec::new();
    event.write_payload(&mut json).expect("serde can write it");
    String::from_utf8(json).expect("JSON is UTF-8")
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order")]
struct OrderCreated {
    #[outbox(aggregate_id)]
    id: OrderId,
    total: u32,
}

#[test]
fn a_struct_that_says_only_its_aggregate_and_id_gets_the_defaults() {
    let event = OrderCreated { id: OrderId(7), total: 250 };
    assert_eq!(event.aggregate_type(), "order");
    assert_eq!(id(&event), "order-7");
    assert_eq!(event.event_type(), "order.created");
    assert_eq!(event.event_version(), 1);
    assert_eq!(event.topic(), "order");
    assert_eq!(event.dedup_key(), None);
    assert_eq!(headers(&event), "");
    assert_eq!(payload(&event), r#"{"id":7,"total":250}"#);
}

#[test]
fn every_option_of_a_struct_reaches_the_event() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", topic = "orders", event_type = "paid", version = 32767)]
    #[outbox(aggregate_id = self.order.0, header("source" = "checkout"))]
    #[outbox(header("cents" = self.euros * 100))]
    struct Paid {
        order: OrderId,
        #[outbox(dedup_key, header)]
        request: &'static str,
        #[outbox(header = "X-Tenant")]
        tenant: String,
        euros: u32,
    }
    let event = Paid { order: OrderId(7), request: "r1", tenant: "acme".to_owned(), euros: 3 };
    assert_eq!(event.topic(), "orders");
    assert_eq!(event.event_type(), "paid");
    assert_eq!(event.event_version(), i16::MAX);
    assert_eq!(id(&event), "7");
    assert_eq!(event.dedup_key().as_deref(), Some("r1"));
    assert_eq!(headers(&event), "source=checkout cents=300 request=r1 X-Tenant=acme");
}

#[test]
fn a_field_can_be_named_by_a_string_in_tuples_too_and_with_or_without_r() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "a", aggregate_id = "type", dedup_key = "r#match")]
    struct Raw {
        r#type: u8,
        r#match: u8,
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "a", aggregate_id = "1", dedup_key("0", "1"))]
    struct Tuple(u8, u8);

    let event = Raw { r#type: 1, r#match: 2 };
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("1", Some("2")));
    let event = Tuple(3, 4);
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("4", Some("3:4")));
}

#[test]
fn raw_identifiers_lose_their_prefix_on_the_wire() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "game")]
    struct r#Move {
        #[outbox(aggregate_id, header)]
        r#ref: Option<i64>,
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "game")]
    enum Game {
        r#Move {
            #[outbox(aggregate_id, header)]
            r#ref: Option<i64>,
            #[outbox(dedup_key)]
            r#type: u8,
        },
    }
    let event = r#Move { r#ref: Some(1) };
    assert_eq!(event.event_type(), "game.move");
    assert_eq!(headers(&event), "ref=1");
    assert_eq!(r#Move { r#ref: None }.aggregate_id(), Err(MissingAggregateId { field: "ref" }));
    let event = Game::r#Move { r#ref: Some(1), r#type: 2 };
    assert_eq!(event.event_type(), "game.move");
    assert_eq!(headers(&event), "ref=1");
    assert_eq!(payload(&event), r#"{"Move":{"ref":1,"type":2}}"#);
}

#[test]
fn ids_of_several_fields_never_meet() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order")]
    struct Marked<'a> {
        #[outbox(aggregate_id)]
        tenant: &'a str,
        #[outbox(aggregate_id)]
        id: &'a str,
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id("id", "tenant"))]
    struct Named<'a> {
        tenant: &'a str,
        id: &'a str,
    }
    let of = |tenant, own| id(&Marked { tenant, id: own });
    assert_eq!(of("acme", "7"), "acme:7");
    assert_eq!(of("a:b", "c"), r"a\:b:c");
    assert_eq!(of("a", "b:c"), r"a:b\:c");
    assert_eq!(of(r"a\", ":c"), r"a\\:\:c");
    assert_eq!(id(&Named { tenant: "acme", id: "7" }), "7:acme");

    let tricky = ["", ":", r"\", r"\:", r":\", r"\\", "a", "a:", ":a", r"a\"];
    let mut seen = std::collections::HashMap::new();
    for (first, second) in tricky.iter().flat_map(|a| tricky.iter().map(move |b| (*a, *b))) {
        assert_eq!(seen.insert(of(first, second), (first, second)), None);
    }
}

#[test]
fn an_id_of_one_field_is_not_escaped() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id("id"))]
    struct One {
        id: &'static str,
    }
    assert_eq!(id(&One { id: r"a:b\c" }), r"a:b\c");
}

#[test]
fn none_is_an_error_as_id_and_nothing_as_key_or_header() {
    type Aliased = Option<u8>;
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", dedup_key("key", "tenant"))]
    struct Created<'a> {
        #[outbox(aggregate_id)]
        tenant: &'a str,
        #[outbox(aggregate_id)]
        id: core::option::Option<&'a str>,
        key: Aliased,
        #[outbox(header)]
        user: &'a Option<u8>,
    }
    let there = Created { tenant: "acme", id: Some("7"), key: Some(1), user: &Some(2) };
    assert_eq!(id(&there), "acme:7");
    assert_eq!(there.dedup_key().as_deref(), Some("1:acme"));
    assert_eq!(headers(&there), "user=2");

    let absent = Created { tenant: "acme", id: None, key: None, user: &None };
    assert_eq!(absent.aggregate_id(), Err(MissingAggregateId { field: "id" }));
    assert_eq!(absent.dedup_key(), None);
    assert_eq!(headers(&absent), "");
}

#[test]
fn none_from_an_expression_names_the_expression() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "a", aggregate_id = self.parents.first(), dedup_key = self.key())]
    struct Adopted {
        parents: Vec<u8>,
    }
    impl Adopted {
        fn key(&self) -> Option<u8> {
            self.parents.get(1).copied()
        }
    }
    let event = Adopted { parents: vec![1, 2] };
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("1", Some("2")));
    let event = Adopted { parents: vec![] };
    assert_eq!(event.aggregate_id(), Err(MissingAggregateId { field: "self.parents.first()" }));
    assert_eq!(event.dedup_key(), None);
}

#[test]
fn unit_structs_and_empty_enums_are_events() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "health", aggregate_id = { "ping" }, header("n" = 1 + 1))]
    struct Ping;
    #[derive(Serialize, OutboxEvent)]
    enum Never {}
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "health", topic = "t")]
    enum NeverOf {}
    fn assert_event<E: OutboxEvent>() {}

    assert_eq!(id(&Ping), "ping");
    assert_eq!(headers(&Ping), "n=2");
    assert_eq!(payload(&Ping), "null");
    assert_event::<Never>();
    assert_event::<NeverOf>();
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "cart", aggregate_id = "cart", topic = "carts", dedup_key = { "once" })]
#[outbox(header("shop" = "main"), header("kind" = self.kind()))]
enum CartEvent {
    Opened {
        cart: u8,
    },
    #[outbox(topic = "carts.moved", version = 3, event_type = "moved", aggregate_id = from.max(to))]
    #[outbox(header("from" = from), header("kind" = "own"))]
    Moved {
        from: u8,
        to: u8,
    },
    #[outbox(dedup_key("1", "0"))]
    Merged(#[outbox(aggregate_id, header = "shop")] u8, u8),
    #[outbox(aggregate_id = _0 + _1)]
    Added(u8, u8),
    #[outbox(aggregate_id = self.kind())]
    Braced {},
    #[outbox(aggregate_id = { 0 })]
    Parens(),
    #[outbox(aggregate_id = { 1 })]
    Unit,
    #[outbox(delegate)]
    Order(OrderEvent),
}

impl CartEvent {
    fn kind(&self) -> &'static str {
        if matches!(self, CartEvent::Braced {}) { "braced" } else { "cart" }
    }
}

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "order", topic = "orders", version = 2, header("shop" = "inner"))]
#[serde(tag = "what")]
enum OrderEvent {
    Created {
        #[outbox(aggregate_id, dedup_key)]
        id: Option<u8>,
    },
}

#[test]
fn an_enum_gives_defaults_that_its_variants_override() {
    let event = CartEvent::Opened { cart: 7 };
    assert_eq!((event.aggregate_type(), event.topic()), ("cart", "carts"));
    assert_eq!((event.event_type(), event.event_version()), ("cart.opened", 1));
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("7", Some("once")));
    assert_eq!(headers(&event), "shop=main kind=cart");

    let event = CartEvent::Moved { from: 1, to: 2 };
    assert_eq!((event.aggregate_type(), event.topic()), ("cart", "carts.moved"));
    assert_eq!((event.event_type(), event.event_version()), ("moved", 3));
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("2", Some("once")));
    assert_eq!(headers(&event), "shop=main kind=own from=1");

    let event = CartEvent::Merged(3, 4);
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("3", Some("4:3")));
    assert_eq!(headers(&event), "shop=3 kind=cart");

    assert_eq!(id(&CartEvent::Added(3, 4)), "7");
    assert_eq!(id(&CartEvent::Braced {}), "braced");
    assert_eq!(id(&CartEvent::Parens()), "0");
    assert_eq!(id(&CartEvent::Unit), "1");
    assert_eq!(CartEvent::Unit.event_type(), "cart.unit");
}

#[test]
fn a_delegating_variant_answers_as_its_inner_event_and_is_serialised_as_the_outer() {
    let event = CartEvent::Order(OrderEvent::Created { id: Some(9) });
    assert_eq!((event.aggregate_type(), event.topic()), ("order", "orders"));
    assert_eq!((event.event_type(), event.event_version()), ("order.created", 2));
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("9", Some("9")));
    assert_eq!(headers(&event), "shop=main kind=cart");
    assert_eq!(payload(&event), r#"{"Order":{"what":"Created","id":9}}"#);

    let event = CartEvent::Order(OrderEvent::Created { id: None });
    assert_eq!(event.aggregate_id(), Err(MissingAggregateId { field: "id" }));
    assert_eq!(event.dedup_key(), None);
}

#[test]
fn a_delegating_variant_has_the_payload_limit_of_its_inner_event() {
    #[derive(Serialize)]
    struct Small;
    impl OutboxEvent for Small {
        fn aggregate_type(&self) -> &'static str {
            "small"
        }
        fn aggregate_id(&self) -> Result<Cow<'_, str>, MissingAggregateId> {
            Ok("1".into())
        }
        fn event_type(&self) -> &'static str {
            "small.seen"
        }
        fn payload_limit(&self) -> usize {
            5
        }
        fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
            serde_json::to_writer(json, self)
        }
    }
    impl DescribedEvent for Small {
        const EVENTS: &'static [Described] = &[];
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "any", aggregate_id = { 1 })]
    enum Any {
        Own,
        #[outbox(delegate)]
        Small(Small),
    }
    assert_eq!(Any::Small(Small).payload_limit(), 5);
    assert_eq!(Any::Own.payload_limit(), outbox_diesel::PAYLOAD_LIMIT);
}

#[test]
fn an_enum_that_only_delegates_needs_no_aggregate() {
    #[derive(Serialize, OutboxEvent)]
    #[serde(untagged)]
    enum Any {
        #[outbox(delegate)]
        Cart(CartEvent),
        #[outbox(delegate)]
        Order(OrderEvent),
    }
    let event = Any::Order(OrderEvent::Created { id: Some(9) });
    assert_eq!((event.aggregate_type(), event.event_type()), ("order", "order.created"));
    assert_eq!(headers(&event), "shop=inner");
    assert_eq!(payload(&event), r#"{"what":"Created","id":9}"#);
    let event = Any::Cart(CartEvent::Order(OrderEvent::Created { id: Some(9) }));
    assert_eq!((event.aggregate_type(), event.event_version()), ("order", 2));
}

#[test]
fn two_variants_may_share_an_event_type_in_two_versions() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = "0")]
    enum OrderEvent {
        #[outbox(event_type = "order.created")]
        CreatedV1(u8),
        #[outbox(version = 2)]
        Created(u8),
    }
    let (old, new) = (OrderEvent::CreatedV1(1), OrderEvent::Created(1));
    assert_eq!(old.event_type(), new.event_type());
    assert_eq!((old.event_version(), new.event_version()), (1, 2));
}
