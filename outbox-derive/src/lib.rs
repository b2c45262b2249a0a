//! `#[derive(OutboxEvent)]`, re-exported by `outbox-diesel`.

mod style;
mod name;

mod argument;
mod attr;

mod ast;
mod case;
mod check;

mod value;
mod body;
mod bounds;
mod describe;
mod expand;

#[cfg(test)]
mod snapshot;

use proc_macro2::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `OutboxEvent`, and `DescribedEvent`, for a struct or an enum.
///
/// The payload is what serde makes of the value, so the type derives `serde::Serialize` as well.
/// Everything else is said in `#[outbox(...)]`:
///
/// ```
/// use outbox_diesel::{Headers, OutboxEvent};
/// use serde::Serialize;
///
/// #[derive(Serialize, OutboxEvent)]
/// #[outbox(aggregate = "order", topic = "orders")]
/// struct OrderCreated {
///     #[outbox(aggregate_id)]
///     id: i64,
///     #[outbox(header)]
///     tenant: Option<String>,
///     total: u32,
/// }
///
/// #[derive(Serialize, OutboxEvent)]
/// #[outbox(aggregate = "order", aggregate_id = "order_id")]
/// enum OrderEvent {
///     Paid { order_id: i64, amount: u32 },
///     #[outbox(version = 2, header("reason" = reason.to_lowercase()))]
///     Cancelled { order_id: i64, reason: String },
///     #[outbox(delegate)]
///     Created(OrderCreated),
/// }
///
/// let created = OrderCreated { id: 7, tenant: Some("acme".into()), total: 250 };
/// assert_eq!(created.event_type(), "order.created");
/// assert_eq!(created.topic(), "orders");
/// assert_eq!(created.aggregate_id()?, "7");
///
/// let cancelled = OrderEvent::Cancelled { order_id: 7, reason: "LATE".into() };
/// let mut headers = Headers::default();
/// cancelled.headers(&mut headers);
/// assert_eq!(headers.get("reason"), Some("late"));
/// assert_eq!((cancelled.event_type(), cancelled.event_version()), ("order.cancelled", 2));
/// # Ok::<(), outbox_diesel::MissingAggregateId>(())
/// ```
///
/// # Options
///
/// | Option | On | Type | Default | Example |
/// |---|---|---|---|---|
/// | `aggregate` | struct, enum | name | required, unless all variants delegate | `aggregate = "order"` |
/// | `aggregate_id` | struct, enum, variant | source | required, here or on a field | `aggregate_id = "id"` |
/// | `aggregate_id` | field | | | `aggregate_id` |
/// | `event_type` | struct, variant | name | [see below](#default-event-types) | `event_type = "order.created"` |
/// | `rename_all` | struct, enum | style | `"snake_case"` | `rename_all = "kebab-case"` |
/// | `version` | struct, enum, variant | 1 to 32767 | 1 | `version = 2` |
/// | `upcast` | struct, variant | versions and types | | `upcast(1 = OrderCreatedV1)` |
/// | `topic` | struct, enum, variant | name | the aggregate | `topic = "orders"` |
/// | `dedup_key` | struct, enum, variant | source | no key | `dedup_key("tenant", "request")` |
/// | `dedup_key` | field | | | `dedup_key` |
/// | `header` | struct, enum, variant; repeatable | name and expression | | `header("tenant" = self.tenant)` |
/// | `header` | field | name | the field's name | `header = "tenant"` |
/// | `payload_limit` | struct, enum, variant | bytes | `PAYLOAD_LIMIT`, 1 MiB | `payload_limit = 4096` |
/// | `serialize_writers` | struct, enum, variant | | no lock | `serialize_writers` |
/// | `delegate` | variant | | | `delegate` |
/// | `crate` | struct, enum | path | `::outbox_diesel` | `crate = "platform::outbox_diesel"` |
///
/// - A **name** is a string literal of 1 to 255 bytes without control characters.
/// - A **style** is a word of serde's `rename_all`: [see below](#default-event-types).
/// - **Bytes** are an integer or a constant expression of type `usize`: `payload_limit = 64 * 1024`.
/// - A **source** is one of: a field, `"id"` (`"0"` in a tuple); several fields,
///   `aggregate_id("tenant", "id")`; or any expression that is not a bare literal,
///   `aggregate_id = self.id.0`. A constant is a block: `aggregate_id = { "ping" }`.
/// - An **expression** sees the event as `self`. On a variant it also sees the variant's fields,
///   as references, by name, or as `_0`, `_1` where they have none.
/// - An enum's options are defaults for its variants; what a variant or its fields say comes
///   first. Headers add up; of two with one name, the one nearer to the field wins.
/// - `delegate` is for a variant with one unnamed field that is an event itself. That event says
///   everything but the payload, which remains what serde makes of the enum; headers of the enum
///   come on top.
/// - `serialize_writers` makes emit wait for other transactions that emitted for the same
///   aggregate: see `OutboxEvent::serialize_writers`.
/// - `upcast` reads payloads of older versions as this one: the old type implements
///   `serde::Deserialize`, and this one `From` it. Only decoding an event set uses it. Inside a
///   variant that delegates it has no effect, as older payloads were of another enum: list the inner
///   type in the event set itself.
/// - `crate` is where `outbox_diesel` is found, when it is renamed or re-exported: the compiler
///   then says that it could not find `outbox_diesel` in the list of imported crates.
///
/// # Values
///
/// Ids, keys and headers are what `Display` makes of the value; where a type's `Display` hides
/// something, name what does not: `aggregate_id = self.id.expose()`. An `Option` is never turned
/// into text: with `None`, the aggregate id is an error (`MissingAggregateId`) and nothing is
/// emitted, a dedup key is no key, and a header is left out.
///
/// If several fields are marked `aggregate_id`, or named, they form one id: their texts in order,
/// with `:` between them, and with a `\` before each `:` and `\` in them. So (`a:b`, `c`) is
/// `a\:b:c` and (`a`, `b:c`) is `a:b\:c`. A single field is taken as it is. Dedup keys likewise;
/// if one part is `None`, there is no key.
///
/// # Default event types
///
/// The aggregate, a dot, and what happened: the name of the struct or variant, less the aggregate
/// if the name starts with it, in serde's `snake_case` (`_` before every uppercase letter but the
/// first, then ASCII letters lowercased). For the comparison both are put into `snake_case`, the
/// aggregate with `_` for what is not a letter or digit. Renaming the type renames its events on
/// the wire; `event_type` keeps the old name.
///
/// | Type or variant | Aggregate | Event type |
/// |---|---|---|
/// | `OrderCreated` | `order` | `order.created` |
/// | `Created` | `order` | `order.created` |
/// | `PaymentCaptured` | `order` | `order.payment_captured` |
/// | `Order` | `order` | `order.order` |
/// | `Order_` | `order` | `order.order_` |
/// | `OrderlyDone` | `order` | `order.orderly_done` |
/// | `OrderOrderCreated` | `order` | `order.order_created` |
/// | `OrderV2Created` | `order` | `order.v2_created` |
/// | `HTTPFailed` | `order` | `order.h_t_t_p_failed` |
/// | `HTTPFailed` | `HTTP` | `HTTP.failed` |
/// | `Ipv4Seen` | `host` | `host.ipv4_seen` |
/// | `A1B2` | `host` | `host.a1_b2` |
/// | `Über` | `order` | `order.Über` |
/// | `GrößeÄndern` | `order` | `order.größe_Ändern` |
/// | `r#Move` | `game` | `game.move` |
/// | `PurchaseOrderCreated` | `purchase_order` | `purchase_order.created` |
/// | `PurchaseOrderCreated` | `purchase-order` | `purchase-order.created` |
/// | `PurchaseOrderCreated` | `purchase.order` | `purchase.order.created` |
/// | `PurchaseOrderCreated` | `PurchaseOrder` | `PurchaseOrder.created` |
/// | `PurchaseOrderCreated` | `order` | `order.purchase_order_created` |
/// | `OrderCreated` | `shop.order` | `shop.order.order_created` |
/// | `Order_Created` | `order` | `order.created` |
///
/// `rename_all` puts what happened into another style, as serde would a variant of that name.
/// For the aggregate `order`:
///
/// | `rename_all` | `OrderV2Created` | `HTTPFailed` | `Ipv4Seen` | `A1B2` | `Über` |
/// |---|---|---|---|---|---|
/// | `lowercase` | `order.v2created` | `order.httpfailed` | `order.ipv4seen` | `order.a1b2` | `order.Über` |
/// | `UPPERCASE` | `order.V2CREATED` | `order.HTTPFAILED` | `order.IPV4SEEN` | `order.A1B2` | `order.ÜBER` |
/// | `PascalCase` | `order.V2Created` | `order.HTTPFailed` | `order.Ipv4Seen` | `order.A1B2` | `order.Über` |
/// | `camelCase` | `order.v2Created` | `order.hTTPFailed` | `order.ipv4Seen` | `order.a1B2` | `order.Über` |
/// | `snake_case` | `order.v2_created` | `order.h_t_t_p_failed` | `order.ipv4_seen` | `order.a1_b2` | `order.Über` |
/// | `SCREAMING_SNAKE_CASE` | `order.V2_CREATED` | `order.H_T_T_P_FAILED` | `order.IPV4_SEEN` | `order.A1_B2` | `order.ÜBER` |
/// | `kebab-case` | `order.v2-created` | `order.h-t-t-p-failed` | `order.ipv4-seen` | `order.a1-b2` | `order.Über` |
/// | `SCREAMING-KEBAB-CASE` | `order.V2-CREATED` | `order.H-T-T-P-FAILED` | `order.IPV4-SEEN` | `order.A1-B2` | `order.ÜBER` |
#[proc_macro_derive(OutboxEvent, attributes(outbox))]
pub fn derive_outbox_event(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input).unwrap_or_else(|mistakes| expand::fallback(&input, &mistakes)).into()
}

fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut errors = argument::Errors::default();
    let written = ast::Input::parse(input, &mut errors)?;
    let event = check::check(&written, &mut errors);
    errors.finish()?;
    Ok(expand::event(&event))
}
