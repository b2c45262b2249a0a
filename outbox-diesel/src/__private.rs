//! What the expansion of `#[derive(OutboxEvent)]` names. Not public API.

pub use core::primitive::{bool, i16, str, u8, usize};
pub use core::{option::Option, result::Result, stringify};
pub use std::{borrow::Cow, fmt::Display, vec::Vec};

pub use serde;
pub use serde_json;

use std::fmt::{self, Write as _};

use crate::{Headers, MissingAggregateId};

/// The kinds of [`Value`]; without them, the impls would overlap.
pub struct Always;
pub struct Optional;
pub struct OptionalRef;

/// What can be an id, a key or a header. The compiler infers `Kind`, so that an `Option` is seen
/// as one behind any alias.
#[diagnostic::on_unimplemented(
    message = "this field or expression cannot be an id, a key or a header: `{Self}` has no text",
    label = "`{Self}` does not implement `Display`",
    note = "implement `std::fmt::Display` for the type (of an `Option`: for what it holds), or name \
            what has it, as in `#[outbox(aggregate_id = self.id.0)]`"
)]
pub trait Value<Kind> {
    fn display(&self) -> Option<&dyn Display>;
}

#[diagnostic::do_not_recommend]
impl<T: Display> Value<Always> for T {
    fn display(&self) -> Option<&dyn Display> {
        Some(self)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Display> Value<Optional> for Option<T> {
    fn display(&self) -> Option<&dyn Display> {
        self.as_ref().map(|value| value as &dyn Display)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Display> Value<OptionalRef> for &Option<T> {
    fn display(&self) -> Option<&dyn Display> {
        Value::<Optional>::display(*self)
    }
}

/// What serde can write. `Serialize` itself would list every other type that has it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no payload, as it does not implement `serde::Serialize`",
    label = "the payload of this event is what serde makes of it",
    note = "add `#[derive(serde::Serialize)]` to `{Self}`"
)]
pub trait Payload {
    fn write(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error>;
}

#[diagnostic::do_not_recommend]
impl<T: serde::Serialize> Payload for T {
    fn write(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(json, self)
    }
}

pub fn write_payload(json: &mut Vec<u8>, event: &impl Payload) -> Result<(), serde_json::Error> {
    event.write(json)
}

/// # Errors
/// Names the first part that is `None`.
pub fn aggregate_id(
    parts: &[(&'static str, Option<&dyn Display>)],
) -> Result<Cow<'static, str>, MissingAggregateId> {
    let there = |&(field, value): &(_, Option<_>)| value.ok_or(MissingAggregateId { field });
    let values: Vec<_> = parts.iter().map(there).collect::<Result<_, _>>()?;
    Ok(Cow::Owned(join(&values)))
}

/// No key if any part is `None`.
#[must_use]
pub fn dedup_key(parts: &[Option<&dyn Display>]) -> Option<Cow<'static, str>> {
    let values: Vec<_> = parts.iter().copied().collect::<Option<_>>()?;
    Some(Cow::Owned(join(&values)))
}

pub fn header(headers: &mut Headers, name: &'static str, value: Option<&dyn Display>) {
    if let Some(value) = value {
        headers.set(name, value.to_string());
    }
}

/// One part as it is; several with `:` between them, and with `\` before each `:` and `\` in them.
fn join(parts: &[&dyn Display]) -> String {
    if let [only] = parts {
        return only.to_string();
    }
    let mut joined = String::new();
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            joined.push(':');
        }
        write!(Escaped(&mut joined), "{part}").expect("the Display of an id does not fail");
    }
    joined
}

struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if matches!(character, ':' | '\\') {
                self.0.push('\\');
            }
            self.0.push(character);
        }
        Ok(())
    }
}

/// What an older version becomes. `From` itself would list every other type that has it.
#[diagnostic::on_unimplemented(
    message = "`{Old}` cannot become `{Self}`",
    label = "this older version has no way to today's",
    note = "write `impl From<{Old}> for {Self}`, and add `#[derive(serde::Deserialize)]` to `{Old}`"
)]
pub trait Upcast<Old>: Sized {
    /// # Errors
    /// What serde says if the payload has another shape.
    fn from_payload(payload: &[u8]) -> Result<Self, serde_json::Error>;
}

#[diagnostic::do_not_recommend]
impl<Old: serde::de::DeserializeOwned, New: From<Old>> Upcast<Old> for New {
    fn from_payload(payload: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice::<Old>(payload).map(New::from)
    }
}
