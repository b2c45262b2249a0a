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

#[test]
fn default_event_types_are_serdes_snake_case() {
    #[derive(Serialize, OutboxEvent)]
    #[serde(rename_all = "snake_case")]
    #[outbox(aggregate = "zoo", aggregate_id = { 1 })]
    #[allow(non_camel_case_types)]
    enum Name {
        OrderV2Created,
        HTTPFailed,
        Ipv4Seen,
        A1B2,
        Über,
        GrößeÄndern,
        r#Move,
        lower,
        Under_Score,
    }
    for event in [
        Name::OrderV2Created,
        Name::HTTPFailed,
        Name::Ipv4Seen,
        Name::A1B2,
        Name::Über,
        Name::GrößeÄndern,
        Name::Move,
        Name::lower,
        Name::Under_Score,
    ] {
        let serde = payload(&event);
        assert_eq!(event.event_type(), format!("zoo.{}", serde.trim_matches('"')));
    }
}

/// Serde is asked what it makes of each name; outbox, with another aggregate, must agree.
#[test]
fn rename_all_is_serdes_for_every_style() {
    macro_rules! agree {
        ($style:literal, $($name:ident),*) => {{
            #[derive(Serialize, OutboxEvent)]
            #[serde(rename_all = $style)]
            #[outbox(aggregate = "zoo", aggregate_id = { 1 }, rename_all = $style)]
            #[allow(non_camel_case_types)]
            enum Name { $($name),* }
            $(
                let serde = payload(&Name::$name);
                assert_eq!(
                    Name::$name.event_type(),
                    format!("zoo.{}", serde.trim_matches('"')),
                );
            )*
        }};
    }
    macro_rules! all {
        ($($style:literal)*) => {
            $(agree!($style, OrderV2Created, HTTPFailed, Ipv4Seen, A1B2, GrößeÄndern, r#Move, lower, Under_Score);)*
        };
    }
    all!("lowercase" "UPPERCASE" "PascalCase" "camelCase" "snake_case");
    all!("SCREAMING_SNAKE_CASE" "kebab-case" "SCREAMING-KEBAB-CASE");
    agree!("kebab-case", Über);
}

#[test]
fn rename_all_styles_what_happened_and_leaves_the_aggregate() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "purchase_order", aggregate_id = { 1 }, rename_all = "camelCase")]
    struct PurchaseOrderPaidInFull;
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = { 1 }, rename_all = "SCREAMING-KEBAB-CASE")]
    enum OrderEvent {
        OrderSentBack,
        #[outbox(event_type = "order.own")]
        Own,
    }
    assert_eq!(PurchaseOrderPaidInFull.event_type(), "purchase_order.paidInFull");
    assert_eq!(OrderEvent::OrderSentBack.event_type(), "order.SENT-BACK");
    assert_eq!(OrderEvent::Own.event_type(), "order.own");
}

#[test]
fn payload_limits_are_set_by_type_and_by_variant() {
    const LARGE: usize = 4 * 1024;
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = { 1 }, payload_limit = 64 * 1024)]
    struct Scanned;
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = { 1 }, payload_limit = 100)]
    enum OrderEvent {
        Paid,
        #[outbox(payload_limit = LARGE)]
        Scanned,
    }
    assert_eq!(Scanned.payload_limit(), 65_536);
    assert_eq!(OrderEvent::Paid.payload_limit(), 100);
    assert_eq!(OrderEvent::Scanned.payload_limit(), LARGE);
}

#[test]
fn writers_are_serialised_where_type_variant_or_inner_event_says_so() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "account", aggregate_id = { 1 }, serialize_writers)]
    struct Moved;
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "account", aggregate_id = { 1 })]
    enum AccountEvent {
        Opened,
        #[outbox(serialize_writers)]
        Closed,
        #[outbox(delegate)]
        Moved(Moved),
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "account", aggregate_id = { 1 }, serialize_writers)]
    enum All {
        Opened,
    }
    assert!(Moved.serialize_writers());
    assert!(!AccountEvent::Opened.serialize_writers());
    assert!(AccountEvent::Closed.serialize_writers());
    assert!(AccountEvent::Moved(Moved).serialize_writers());
    assert!(All::Opened.serialize_writers());
    assert!(Box::new(Moved.with_header("n", "v")).serialize_writers());
}

#[test]
fn a_pointer_to_an_event_is_that_event() {
    fn all(event: &impl OutboxEvent) -> (String, String, String) {
        (event.event_type().to_owned(), id(event), payload(event))
    }
    let event = || OrderCreated { id: OrderId(7), total: 1 };
    let expected = all(&event());
    assert_eq!(all(&Box::new(event())), expected);
    assert_eq!(all(&std::sync::Arc::new(event())), expected);
    assert_eq!(all(&std::rc::Rc::new(event())), expected);
    let boxed: Box<dyn OutboxEvent> = Box::new(event());
    assert_eq!(all(&boxed), expected);
    assert_eq!(all(&&event()), expected);
}

#[test]
fn lifetimes_of_any_name_and_number_work() {
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order")]
    struct Noted<'insert, 'de, 'conn: 'de> {
        #[outbox(aggregate_id)]
        id: Cow<'insert, str>,
        #[outbox(header)]
        kind: &'static str,
        #[outbox(dedup_key)]
        note: &'de str,
        #[outbox(header)]
        more: Option<&'conn str>,
    }
    let (text, note) = (String::from("7"), String::from("n"));
    let event = Noted { id: Cow::Borrowed(&text), kind: "k", note: &note, more: None };
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("7", Some("n")));
    assert_eq!(headers(&event), "kind=k");
}

#[test]
fn generic_events_get_the_bounds_they_need() {
    trait Named {
        type Id;
    }
    impl Named for u8 {
        type Id = u32;
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order")]
    struct Created<Id, D: Named, const N: usize, T = ()>
    where
        T: Clone,
        D::Id: Serialize,
    {
        #[outbox(aggregate_id)]
        id: Id,
        #[outbox(dedup_key)]
        key: Option<Id>,
        #[outbox(header)]
        kind: <D as Named>::Id,
        detail: T,
    }
    #[derive(Serialize, OutboxEvent)]
    enum Any<T, E> {
        #[outbox(delegate)]
        Created(WithId<T>),
        #[outbox(delegate)]
        Other(E),
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order")]
    struct WithId<T> {
        #[outbox(aggregate_id)]
        id: T,
    }
    #[derive(Serialize, OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = N)]
    struct Counted<const N: usize>;

    let event = Created::<_, u8, 3> { id: OrderId(1), key: Some(OrderId(2)), kind: 3, detail: () };
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("order-1", Some("order-2")));
    assert_eq!(headers(&event), "kind=3");
    assert_eq!(id(&Any::<u8, OrderEvent>::Created(WithId { id: 4 })), "4");
    assert_eq!(id(&Any::<u8, WithId<i8>>::Other(WithId { id: -4 })), "-4");
    assert_eq!(id(&Counted::<5>), "5");
}

#[test]
fn attributes_and_types_may_come_through_macro_rules() {
    macro_rules! event {
        ($name:ident, $ty:ty, $field:ident, $topic:expr, $version:literal, $id:expr, $of:expr) => {
            #[derive(Serialize, OutboxEvent)]
            #[outbox(aggregate = $topic, topic = $topic, version = $version, dedup_key = $id)]
            #[outbox(header($topic = $of), header("kind" = $of))]
            struct $name {
                #[outbox(aggregate_id)]
                $field: $ty,
            }
        };
    }
    event!(Created, Option<u8>, id, "orders", 2, "id", self.id);
    event!(Borrowed, Cow<'static, str>, text, "notes", 3, self.text.len(), self.text.as_ref());

    let event = Created { id: Some(7) };
    assert_eq!((event.topic(), event.event_version()), ("orders", 2));
    assert_eq!(event.event_type(), "orders.created");
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("7", Some("7")));
    assert_eq!(headers(&event), "orders=7 kind=7");
    let event = Created { id: None };
    assert_eq!(event.aggregate_id(), Err(MissingAggregateId { field: "id" }));
    assert_eq!((event.dedup_key(), headers(&event)), (None, String::new()));

    let event = Borrowed { text: "seven".into() };
    assert_eq!((id(&event).as_str(), event.dedup_key().as_deref()), ("seven", Some("5")));
    assert_eq!(headers(&event), "notes=seven kind=seven");
}

#[test]
fn whole_attributes_may_come_through_macro_rules() {
    macro_rules! event {
        ($(#[$meta:meta])* $name:ident { $($(#[$on_field:meta])* $field:ident: $ty:ty),* }) => {
            $(#[$meta])*
            struct $name { $($(#[$on_field])* $field: $ty),* }
        };
    }
    event! {
        #[derive(Serialize, OutboxEvent)]
        #[outbox(aggregate = "order", header("double" = self.id * 2))]
        Created { #[outbox(aggregate_id)] id: u8 }
    }
    assert_eq!(id(&Created { id: 7 }), "7");
    assert_eq!(headers(&Created { id: 7 }), "double=14");
}

#[test]
fn an_event_is_an_object_and_takes_more_headers() {
    let event = OrderCreated { id: OrderId(7), total: 1 };
    let object: &dyn OutboxEvent = &event;
    assert_eq!(object.event_type(), "order.created");
    assert_eq!(headers(&event.with_header("tenant", "acme")), "tenant=acme");
}
