//! [`Catalogue`]: all events with topic, headers and schema.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ContractError, Kept, compare, variant};
use crate::describe::{Described, DescribedEvent, EventDescription};
use crate::event_set::{Both, End, EventSet, Leaf};

/// Where payloads refer to shared schemas, in the catalogue.
pub(super) const SCHEMAS: &str = "#/schemas/";

/// The events of a set, as they are in the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Catalogue {
    /// By type and version.
    pub events: Vec<EventContract>,
    /// What payloads refer to with `{ "$ref": "#/schemas/..." }`.
    pub schemas: BTreeMap<String, Value>,
}

/// One event in one version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventContract {
    /// What happened.
    pub event_type: String,
    /// The version of the payload's shape.
    pub event_version: i16,
    /// What kind of thing it happened to.
    pub aggregate_type: String,
    /// Where it is published.
    pub topic: String,
    /// The names of its headers, in order of name.
    pub headers: Vec<String>,
    /// JSON Schema (draft 7) of the payload.
    pub payload: Value,
}

impl Catalogue {
    /// The catalogue of a list of events.
    #[must_use]
    pub fn of<S: EventSet>() -> Self
    where
        S::Members: Schemas,
    {
        let settings = SchemaSettings::draft07().with(|it| it.definitions_path = "/schemas".into());
        let mut generator = settings.into_generator();
        let mut types = Vec::new();
        S::Members::collect(&mut generator, &mut types);
        let schemas: BTreeMap<String, Value> =
            generator.take_definitions(true).into_iter().collect();
        let mut events = Vec::new();
        for (described, schema) in types {
            add(&mut events, described, &schema, None, &schemas);
        }
        events.sort_by(|a, b| {
            (&a.event_type, a.event_version).cmp(&(&b.event_type, b.event_version))
        });
        Self { events, schemas }
    }

    /// Compares with the contract in this file, and writes what was added to it.
    ///
    /// # Errors
    /// See [`ContractError`]; the file is as it was.
    pub fn keep(&self, file: impl AsRef<Path>) -> Result<Kept, ContractError> {
        let old = Self::read(&file)?;
        let breaches = compare::breaches(&old, self);
        if !breaches.is_empty() {
            return Err(ContractError::Broken { file: file.as_ref().to_owned(), breaches });
        }
        if old == *self {
            return Ok(Kept::Unchanged);
        }
        self.write(file).map(|()| Kept::Written)
    }

    /// The contract in this file.
    ///
    /// # Errors
    /// When there is none.
    pub fn read(file: impl AsRef<Path>) -> Result<Self, ContractError> {
        let path = || file.as_ref().to_owned();
        let json = std::fs::read_to_string(&file).map_err(|source| match source.kind() {
            ErrorKind::NotFound => ContractError::Missing { file: path() },
            _ => ContractError::File { file: path(), source },
        })?;
        serde_json::from_str(&json)
            .map_err(|source| ContractError::Invalid { file: path(), source })
    }

    /// Writes the contract to this file, whatever was in it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, file: impl AsRef<Path>) -> Result<(), ContractError> {
        let path = || file.as_ref().to_owned();
        let mut json = serde_json::to_string_pretty(self)
            .map_err(|source| ContractError::Invalid { file: path(), source })?;
        json.push('\n');
        std::fs::write(&file, json).map_err(|source| ContractError::File { file: path(), source })
    }
}

/// The events of one type, or of the event inside one of its variants.
fn add(
    events: &mut Vec<EventContract>,
    described: &[Described],
    schema: &Value,
    outer: Option<(&str, &[&str])>,
    schemas: &BTreeMap<String, Value>,
) {
    for described in described {
        match described {
            Described::Event(event) => events.push(contract(event, schema, outer, schemas)),
            Described::Delegated { variant, events: inner, headers } => {
                let (variant, above) = outer.unwrap_or((variant, &[]));
                let headers = [headers, above].concat();
                add(events, inner, schema, Some((variant, &headers)), schemas);
            }
        }
    }
}

fn contract(
    event: &EventDescription,
    schema: &Value,
    outer: Option<(&str, &[&str])>,
    schemas: &BTreeMap<String, Value>,
) -> EventContract {
    let above = outer.map_or(&[][..], |(_, headers)| headers);
    let mut headers: Vec<String> =
        event.headers.iter().chain(above).map(|&header| header.to_owned()).collect();
    headers.sort();
    headers.dedup();
    // The payload is that of the listed type, so its own variant counts.
    let variant = outer.map(|(variant, _)| variant).or(event.variant);
    EventContract {
        event_type: event.event_type.to_owned(),
        event_version: event.event_version,
        aggregate_type: event.aggregate_type.to_owned(),
        topic: event.topic.to_owned(),
        headers,
        payload: variant.map_or_else(|| schema.clone(), |it| variant::of(schema, it, schemas)),
    }
}

/// What is collected: the events of a type, and its schema.
pub(super) type Type = (&'static [Described], Value);

/// A list whose types have a schema; see [`Catalogue::of`].
#[doc(hidden)]
pub trait Schemas {
    fn collect(generator: &mut SchemaGenerator, types: &mut Vec<Type>);
}

impl Schemas for End {
    fn collect(_: &mut SchemaGenerator, _: &mut Vec<Type>) {}
}

impl<L: Schemas, R: Schemas> Schemas for Both<L, R> {
    fn collect(generator: &mut SchemaGenerator, types: &mut Vec<Type>) {
        L::collect(generator, types);
        R::collect(generator, types);
    }
}

impl<E: DescribedEvent + HasSchema> Schemas for Leaf<E> {
    fn collect(generator: &mut SchemaGenerator, types: &mut Vec<Type>) {
        types.push((E::EVENTS, E::schema(generator)));
    }
}

/// What schemars can describe. `JsonSchema` itself would list every other type that has it.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no JSON Schema, as it does not implement `schemars::JsonSchema`",
    label = "every type of the list must have a schema for its contract",
    note = "add `#[derive(schemars::JsonSchema)]` to `{Self}`"
)]
pub trait HasSchema {
    fn schema(generator: &mut SchemaGenerator) -> Value;
}

#[diagnostic::do_not_recommend]
impl<E: schemars::JsonSchema> HasSchema for E {
    fn schema(generator: &mut SchemaGenerator) -> Value {
        generator.subschema_for::<E>().to_value()
    }
}
