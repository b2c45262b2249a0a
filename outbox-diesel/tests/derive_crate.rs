//! `#[outbox(crate = "...")]`, for a library that is renamed or re-exported.

/// Not the library, but shaped like it: had the expansion named `::outbox_diesel` anywhere, its
/// types would not fit.
#[allow(
    unreachable_pub,
    clippy::unnecessary_wraps,
    clippy::trivially_copy_pass_by_ref,
    reason = "it plays a library"
)]
mod platform {
    pub mod outbox {
        use std::borrow::Cow;

        pub const PAYLOAD_LIMIT: usize = 9;

        pub struct Headers(pub Vec<String>);
        #[derive(Debug)]
        pub struct MissingAggregateId;

        pub trait OutboxEvent {
            fn aggregate_type(&self) -> &str;
            fn aggregate_id(&self) -> Result<Cow<'_, str>, MissingAggregateId>;
            fn event_type(&self) -> &str;
            fn event_version(&self) -> i16;
            fn topic(&self) -> &str;
            fn dedup_key(&self) -> Option<Cow<'_, str>>;
            fn headers(&self, headers: &mut Headers);
            fn payload_limit(&self) -> usize {
                8
            }
            fn serialize_writers(&self) -> bool;
            fn write_payload(&self, json: &mut Vec<u8>)
            -> Result<(), __private::serde_json::Error>;
        }

        pub mod describe {
            pub trait DescribedEvent {
                const EVENTS: &'static [Described];
            }
            pub enum Described {
                Event(EventDescription),
                Delegated {
                    variant: &'static str,
                    events: &'static [Described],
                    headers: &'static [u8],
                },
            }
            pub struct EventDescription(pub &'static str);
            impl EventDescription {
                pub const fn new(event_type: &'static str, _: i16, _: &str) -> Self {
                    Self(event_type)
                }
                pub const fn topic(self, _: &str) -> Self {
                    self
                }
                pub const fn headers(self, _: &[&str]) -> Self {
                    self
                }
                pub const fn variant(self, _: &str) -> Self {
                    self
                }
            }
        }

        pub mod __private {
            pub use core::primitive::{bool, i16, str, u8, usize};
            pub use core::{option::Option, result::Result};
            pub use std::borrow::Cow;
            pub use std::vec::Vec;

            pub mod serde_json {
                #[derive(Debug)]
                pub struct Error;
            }

            pub fn write_payload<T>(_: &mut Vec<u8>, _: &T) -> Result<(), serde_json::Error> {
                Ok(())
            }

            pub trait Value {
                fn display(&self) -> &Self {
                    self
                }
            }
            impl<T> Value for T {}

            pub fn aggregate_id(
                parts: &[(&str, &u8)],
            ) -> Result<Cow<'static, str>, super::MissingAggregateId> {
                Ok(Cow::Owned(parts[0].1.to_string()))
            }
            pub fn dedup_key(parts: &[&u8]) -> Option<Cow<'static, str>> {
                Some(Cow::Owned(parts[0].to_string()))
            }
            pub fn header(headers: &mut super::Headers, name: &str, _: &u8) {
                headers.0.push(name.to_owned());
            }
        }
    }
}

#[allow(unreachable_pub, reason = "it plays a crate")]
mod app {
    use crate::platform as renamed;

    #[derive(outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order", crate = "renamed::outbox", version = 2, topic = "orders")]
    #[outbox(serialize_writers)]
    pub struct Created {
        #[outbox(aggregate_id, dedup_key, header)]
        pub id: u8,
    }

    #[derive(outbox_diesel::OutboxEvent)]
    #[outbox(aggregate = "order", crate = "crate::platform::outbox")]
    pub enum Event {
        #[outbox(delegate)]
        Created(Created),
        Paid {
            #[outbox(aggregate_id)]
            id: u8,
        },
    }
}

#[test]
fn the_crate_option_replaces_every_path_to_the_library() {
    use platform::outbox::{Headers, OutboxEvent};

    use platform::outbox::describe::{Described, DescribedEvent};

    let [Described::Delegated { variant: "Created", events: [created], headers: [] }, paid] =
        app::Event::EVENTS
    else {
        panic!("a delegated event and an own one")
    };
    for (described, event_type) in [(created, "order.created"), (paid, "order.paid")] {
        assert!(matches!(described, Described::Event(event) if event.0 == event_type));
    }

    let created = app::Event::Created(app::Created { id: 7 });
    let mut headers = Headers(Vec::new());
    created.headers(&mut headers);
    assert_eq!(headers.0, ["id"]);
    assert_eq!(created.aggregate_id().expect("the id is there"), "7");
    assert_eq!(created.dedup_key().expect("the key is there"), "7");
    assert_eq!((created.aggregate_type(), created.topic()), ("order", "orders"));
    assert_eq!((created.event_type(), created.event_version()), ("order.created", 2));
    assert_eq!((created.payload_limit(), app::Event::Paid { id: 8 }.payload_limit()), (8, 9));
    assert!(created.serialize_writers());
    created.write_payload(&mut Vec::new()).expect("nothing is written");
    assert_eq!(app::Event::Paid { id: 8 }.aggregate_id().expect("the id is there"), "8");
}
