//! What an event is: [`OutboxEvent`], which `#[derive(OutboxEvent)]` implements.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

/// Default of [`OutboxEvent::payload_limit`]: 1 MiB. Brokers and consumers buffer whole events.
pub const PAYLOAD_LIMIT: usize = 1024 * 1024;

/// A domain event that can be emitted.
///
/// Derive it; write it by hand only where names are not known at compile time. The methods say
/// what the row in `outbox.events` will hold. They are called once per emit, before any SQL, so
/// an error here leaves the caller's transaction as it was.
///
/// The trait is object safe, so events of several types go into one
/// `conn.emit_all(&[&created as &dyn OutboxEvent, &paid])`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an outbox event",
    label = "this type does not implement `OutboxEvent`",
    note = "add `#[derive(serde::Serialize, outbox_diesel::OutboxEvent)]` to `{Self}`, and \
            `#[outbox(aggregate = \"...\")]` with one field marked `#[outbox(aggregate_id)]`"
)]
pub trait OutboxEvent {
    /// The kind of thing the event happened to, for example `order`. 1 to 255 bytes.
    fn aggregate_type(&self) -> &str;

    /// Which one of them. Events with equal aggregate type and id keep their order.
    /// 1 to 255 bytes.
    ///
    /// # Errors
    /// [`MissingAggregateId`] when an optional id is `None`: such an event would have no order.
    fn aggregate_id(&self) -> Result<Cow<'_, str>, MissingAggregateId>;

    /// What happened, for example `order.created`. 1 to 255 bytes.
    fn event_type(&self) -> &str;

    /// The version of the payload's shape, 1 or above. Default: 1.
    fn event_version(&self) -> i16 {
        1
    }

    /// Where the event is published. Default: the aggregate type. 1 to 255 bytes.
    fn topic(&self) -> &str {
        self.aggregate_type()
    }

    /// A second emit with an equal key, within the time that keys are kept (7 days by default),
    /// is a duplicate and inserts nothing. Default: none. 1 to 255 bytes.
    fn dedup_key(&self) -> Option<Cow<'_, str>> {
        None
    }

    /// Adds headers, in order. Default: none.
    fn headers(&self, headers: &mut Headers) {
        let _ = headers;
    }

    /// The largest payload that emit accepts, in bytes of JSON. Default: [`PAYLOAD_LIMIT`], 1 MiB.
    fn payload_limit(&self) -> usize {
        PAYLOAD_LIMIT
    }

    /// Whether emit takes a lock on the aggregate, held until the transaction ends. Default: no.
    ///
    /// Events of one aggregate come out in the order of its changes only if its writers wait for
    /// each other. Most applications see to that: they lock the aggregate's row (`SELECT … FOR
    /// UPDATE`, or the `UPDATE` itself) and emit afterwards. Where there is no such row, the lock
    /// of emit takes its place: whoever emits second waits until the first one's transaction ends,
    /// so a later event never commits first. It is an advisory transaction lock, in `pg_locks`
    /// under class 1869968482.
    ///
    /// The lock makes writers wait for each other, and so it can make them wait in a circle:
    /// - One `emit_all` takes its locks in one order, so two of them cannot.
    /// - Several emits in one transaction can: one that emits for A and then B, and another for B
    ///   and then A. PostgreSQL ends one of them with an error (`deadlock detected`); its
    ///   transaction must be run again. Emit for several aggregates in one `emit_all`, or always
    ///   in the same order, for example by id.
    /// - The same holds between this lock and row locks: take both in the same order everywhere.
    ///   Emitting last in a transaction, after its row locks, is such an order.
    fn serialize_writers(&self) -> bool {
        false
    }

    /// Appends the payload, one JSON value, exactly as serde serialises the event.
    ///
    /// # Errors
    /// What serde reports; emit wraps it.
    fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error>;

    /// Wraps the event so that it also carries this header; an equal name is replaced.
    ///
    /// ```
    /// # use outbox_diesel::OutboxEvent;
    /// # #[derive(serde::Serialize, OutboxEvent)]
    /// # #[outbox(aggregate = "order")]
    /// # struct OrderCreated { #[outbox(aggregate_id)] id: i64 }
    /// let event = OrderCreated { id: 7 }.with_header("tenant", "acme");
    /// assert_eq!(event.event_type(), "order.created");
    /// ```
    fn with_header(self, name: impl Into<String>, value: impl Into<String>) -> WithHeader<Self>
    where
        Self: Sized,
    {
        WithHeader { event: self, name: name.into(), value: value.into() }
    }
}

/// The aggregate id of an event is an `Option` and was `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the aggregate id field `{field}` is None; set it, or give the event an id that is always there"
)]
pub struct MissingAggregateId {
    /// The field that holds the id.
    pub field: &'static str,
}

/// Headers of one event: names and values are strings, order is kept, a name occurs once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Sets a header; an earlier value of the same name is replaced in its place.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value of a header.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl serde::Serialize for Headers {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// An event with one more header, made by [`OutboxEvent::with_header`].
#[derive(Debug, Clone)]
pub struct WithHeader<E> {
    event: E,
    name: String,
    value: String,
}

impl<E: OutboxEvent> OutboxEvent for WithHeader<E> {
    fn aggregate_type(&self) -> &str {
        self.event.aggregate_type()
    }
    fn aggregate_id(&self) -> Result<Cow<'_, str>, MissingAggregateId> {
        self.event.aggregate_id()
    }
    fn event_type(&self) -> &str {
        self.event.event_type()
    }
    fn event_version(&self) -> i16 {
        self.event.event_version()
    }
    fn topic(&self) -> &str {
        self.event.topic()
    }
    fn dedup_key(&self) -> Option<Cow<'_, str>> {
        self.event.dedup_key()
    }
    fn headers(&self, headers: &mut Headers) {
        self.event.headers(headers);
        headers.set(self.name.as_str(), self.value.as_str());
    }
    fn payload_limit(&self) -> usize {
        self.event.payload_limit()
    }
    fn serialize_writers(&self) -> bool {
        self.event.serialize_writers()
    }
    fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        self.event.write_payload(json)
    }
}

/// A pointer to an event is that event.
macro_rules! event_behind {
    ($($pointer:ty),*) => {
        $(
            #[diagnostic::do_not_recommend]
            impl<E: OutboxEvent + ?Sized> OutboxEvent for $pointer {
                fn aggregate_type(&self) -> &str {
                    (**self).aggregate_type()
                }
                fn aggregate_id(&self) -> Result<Cow<'_, str>, MissingAggregateId> {
                    (**self).aggregate_id()
                }
                fn event_type(&self) -> &str {
                    (**self).event_type()
                }
                fn event_version(&self) -> i16 {
                    (**self).event_version()
                }
                fn topic(&self) -> &str {
                    (**self).topic()
                }
                fn dedup_key(&self) -> Option<Cow<'_, str>> {
                    (**self).dedup_key()
                }
                fn headers(&self, headers: &mut Headers) {
                    (**self).headers(headers);
                }
                fn payload_limit(&self) -> usize {
                    (**self).payload_limit()
                }
                fn serialize_writers(&self) -> bool {
                    (**self).serialize_writers()
                }
                fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
                    (**self).write_payload(json)
                }
            }
        )*
    };
}

event_behind!(&E, Box<E>, Arc<E>, Rc<E>);
