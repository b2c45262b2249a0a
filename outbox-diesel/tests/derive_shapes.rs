//! What types the derive takes: generics, lifetimes, pointers, macros; and per-type limits.

use std::borrow::Cow;

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
    assert_eq!(id(&Any::<u8, OrderCreated>::Created(WithId { id: 4 })), "4");
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
