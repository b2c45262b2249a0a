//! The derive among names that look like its own, without a prelude and under strict lints.
#![no_implicit_prelude]
#![deny(warnings, unused, rust_2018_idioms, single_use_lifetimes, let_underscore_drop)]
#![deny(unused_qualifications, unreachable_pub, missing_docs, explicit_outlives_requirements)]
#![deny(clippy::all, clippy::pedantic, clippy::nursery)]
#![allow(dead_code, clippy::redundant_pub_crate, reason = "what the tests themselves do")]
#![forbid(unsafe_code)]

/// The user's own names are those that the expansion needs.
mod shadowed {
    pub(super) struct Result;
    pub(super) struct Option;
    pub(super) struct String;
    pub(super) struct Vec;
    pub(super) struct Cow;
    pub(super) struct Ok;
    pub(super) struct Err;
    pub(super) struct Some;
    pub(super) struct None;
    pub(super) struct Headers;
    pub(super) struct MissingAggregateId;
    #[allow(non_camel_case_types)]
    pub(super) struct str;
    #[allow(non_camel_case_types)]
    pub(super) struct u8;
    #[allow(non_camel_case_types)]
    pub(super) struct i16;
    pub(super) trait ToString {}
    pub(super) trait Display {}
    pub(super) trait Value {}
    pub(super) trait Serialize {}
    pub(super) mod std {}
    pub(super) mod core {}
    pub(super) mod serde {}
    pub(super) mod serde_json {}
    pub(super) mod outbox_diesel {}

    impl ToString for Result {}
    impl Display for Option {}
    impl Value for Ok {}
    impl Serialize for Err {}

    /// Its fields are named like the locals of an expansion.
    #[derive(::serde::Serialize, ::outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order", version = 2, topic = "orders", header("x" = self.event))]
    #[outbox(header("y" = headers(self)))]
    pub(super) struct OutboxEvent {
        #[outbox(aggregate_id)]
        pub(super) event: u32,
        #[outbox(header)]
        pub(super) headers: u32,
        #[outbox(header)]
        pub(super) topic: u32,
        #[outbox(dedup_key)]
        pub(super) key: u32,
        #[outbox(aggregate_id)]
        pub(super) conn: u32,
        #[outbox(header)]
        pub(super) payload: u32,
        #[outbox(header)]
        pub(super) self_: u32,
        #[outbox(header)]
        pub(super) f: u32,
        #[outbox(header)]
        pub(super) serializer: u32,
        #[outbox(header)]
        pub(super) json: u32,
        #[outbox(header)]
        pub(super) __outbox: u32,
    }

    const fn headers(event: &OutboxEvent) -> u32 {
        event.headers + 10
    }

    #[derive(::serde::Serialize, ::outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order")]
    pub(super) enum Event<const N: usize, T> {
        #[outbox(header("a" = headers), header("b" = json + field_json), dedup_key = inner)]
        Named {
            #[outbox(aggregate_id)]
            headers: u32,
            #[outbox(header)]
            json: u32,
            #[outbox(header)]
            inner: ::std::option::Option<T>,
            field_json: u32,
            #[outbox(header)]
            field_headers: u32,
        },
        #[outbox(aggregate_id = { N })]
        Unit,
        #[outbox(delegate)]
        Inner(OutboxEvent),
    }
}

mod linted {
    #![deny(deprecated)]

    #[deprecated = "replaced"]
    #[derive(::serde::Serialize, ::outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order")]
    struct Old {
        #[outbox(aggregate_id)]
        id: u32,
    }

    #[derive(::serde::Serialize, ::outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order", aggregate_id = (self.id + 1), header("h" = { self.id }))]
    pub(super) struct Young {
        #[deprecated = "replaced"]
        #[outbox(header)]
        old: u32,
        id: u32,
    }

    #[derive(::serde::Serialize, ::outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order")]
    pub(super) enum Both {
        #[deprecated = "replaced"]
        Old(#[outbox(aggregate_id)] u32),
        #[outbox(aggregate_id = 3 + 4, header("h" = unused), header("i" = used))]
        New { used: u32, unused: u32, third: u32 },
        #[outbox(aggregate_id = _0)]
        Tuple(u32, u32),
    }

    ::outbox_diesel::outbox_events! {
        pub(super) enum Listed {
            Young,
            Alternative(Both),
        }
    }

    impl Young {
        pub(super) const fn new(id: u32) -> Self {
            #[allow(deprecated)]
            Self { old: 1, id }
        }
    }
}

fn headers(event: &impl ::outbox_diesel::OutboxEvent) -> ::std::string::String {
    let mut headers = ::outbox_diesel::Headers::default();
    event.headers(&mut headers);
    ::std::format!("{:?}", headers.iter().map(|(_, value)| value).collect::<::std::vec::Vec<_>>())
}

use ::outbox_diesel::OutboxEvent as _;
use ::std::{assert_eq, default::Default as _, iter::Iterator as _};

#[test]
fn fields_named_like_locals_are_the_fields() {
    let event = shadowed::OutboxEvent {
        event: 1,
        headers: 2,
        topic: 3,
        key: 4,
        conn: 5,
        payload: 6,
        self_: 7,
        f: 8,
        serializer: 9,
        json: 10,
        __outbox: 11,
    };
    assert_eq!(event.aggregate_id().as_deref(), ::std::result::Result::Ok("1:5"));
    assert_eq!(event.dedup_key().as_deref(), ::std::option::Option::Some("4"));
    assert_eq!(headers(&event), r#"["1", "12", "2", "3", "6", "7", "8", "9", "10", "11"]"#);
    assert_eq!((event.topic(), event.event_version()), ("orders", 2));

    let outer = shadowed::Event::<3, u32>::Inner(event);
    assert_eq!(outer.aggregate_id().as_deref(), ::std::result::Result::Ok("1:5"));
    let named = shadowed::Event::<3, u32>::Named {
        headers: 1,
        json: 2,
        inner: ::std::option::Option::Some(3),
        field_json: 4,
        field_headers: 5,
    };
    assert_eq!(named.aggregate_id().as_deref(), ::std::result::Result::Ok("1"));
    assert_eq!(named.dedup_key().as_deref(), ::std::option::Option::Some("3"));
    assert_eq!(headers(&named), r#"["1", "6", "2", "3", "5"]"#);
    let unit = shadowed::Event::<3, u32>::Unit;
    assert_eq!(unit.aggregate_id().as_deref(), ::std::result::Result::Ok("3"));
}

#[test]
fn strict_lints_accept_the_expansion() {
    let new = linted::Young::new(6);
    assert_eq!(new.aggregate_id().as_deref(), ::std::result::Result::Ok("7"));
    assert_eq!(<linted::Listed as ::outbox_diesel::EventSet>::MEMBERS.len(), 2);
    let new = linted::Both::New { used: 1, unused: 2, third: 3 };
    assert_eq!(headers(&new), r#"["2", "1"]"#);
}
