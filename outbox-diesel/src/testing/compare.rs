//! What differs between the events that a test expects and those that were emitted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use diesel::result::QueryResult;
use serde::Serialize;
use serde_json::Value;

use super::EmittedEvent;
use crate::emit::row::Row;
use crate::error::EmitError;
use crate::event::OutboxEvent;

/// All of an event but what is new each time, printed as one line of JSON.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Line {
    event_type: String,
    event_version: i16,
    aggregate_type: String,
    aggregate_id: String,
    topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_key: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    payload: Value,
}

impl Line {
    /// As emit would insert it.
    fn of_expected(event: &dyn OutboxEvent) -> Result<Self, EmitError> {
        let row = Row::new(event)?;
        let parsed = |source| EmitError::Serialize { event_type: row.event_type.clone(), source };
        Ok(Self {
            headers: serde_json::from_slice(&row.headers.0).map_err(parsed)?,
            payload: serde_json::from_slice(&row.payload.0).map_err(parsed)?,
            event_type: row.event_type,
            event_version: row.event_version,
            aggregate_type: row.aggregate_type,
            aggregate_id: row.aggregate_id,
            topic: row.topic,
            dedup_key: row.dedup_key,
        })
    }

    pub(super) fn of_emitted(event: EmittedEvent) -> Self {
        Self {
            event_type: event.event_type,
            event_version: event.event_version,
            aggregate_type: event.aggregate_type,
            aggregate_id: event.aggregate_id,
            topic: event.topic,
            dedup_key: event.dedup_key,
            headers: event.headers,
            payload: event.payload,
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("its keys are strings")
    }

    fn json(&self) -> Value {
        serde_json::to_value(self).expect("its keys are strings")
    }

    #[cfg(feature = "relay")]
    pub(super) fn of_message(message: &crate::publish::OwnedMessage) -> Result<Self, String> {
        let parsed = |error| format!("event {} is not JSON: {error}", message.id());
        Ok(Self {
            event_type: message.event_type().to_owned(),
            event_version: message.event_version(),
            aggregate_type: message.aggregate_type().to_owned(),
            aggregate_id: message.aggregate_id().to_owned(),
            topic: message.topic().to_owned(),
            dedup_key: message.dedup_key().map(str::to_owned),
            headers: serde_json::from_str(message.headers()).map_err(parsed)?,
            payload: serde_json::from_str(message.payload()).map_err(parsed)?,
        })
    }
}

/// What emit would insert for these events.
pub(super) fn lines<'a>(
    expected: impl Iterator<Item = &'a dyn OutboxEvent>,
) -> Result<Vec<Line>, String> {
    expected
        .zip(1..)
        .map(|(event, nth)| {
            Line::of_expected(event)
                .map_err(|error| format!("expected event {nth} could not be emitted: {error}"))
        })
        .collect()
}

/// Those of the database, or why they could not be read.
pub(super) fn emitted(emitted: QueryResult<Vec<EmittedEvent>>) -> Result<Vec<Line>, String> {
    let emitted = emitted.map_err(|error| format!("outbox.events could not be read: {error}"))?;
    Ok(emitted.into_iter().map(Line::of_emitted).collect())
}

/// Compares event by event; `done` is what was done with those found.
pub(super) fn difference(
    done: &str,
    expected: Result<Vec<Line>, String>,
    found: Result<Vec<Line>, String>,
) -> Result<(), String> {
    let (expected, found) = (expected?, found?);
    if expected == found {
        return Ok(());
    }
    let mut message = format!(
        "the {done} events are not the expected ones ({} expected, {} {done})",
        expected.len(),
        found.len()
    );
    let width = done.len().max("expected".len());
    for nth in 0..expected.len().max(found.len()) {
        let (expected, found) = (expected.get(nth), found.get(nth));
        if expected == found {
            continue;
        }
        let what = match (expected, found) {
            (Some(_), None) => "is missing",
            (None, _) => "was not expected",
            _ => "differs",
        };
        // Writing into a string does not fail.
        let _ = write!(message, "\n  event {} {what}", nth + 1);
        for (name, line) in [("expected", expected), (done, found)] {
            if let Some(line) = line {
                let _ = write!(message, "\n    {name:width$} {}", line.text());
            }
        }
        if let (Some(expected), Some(found)) = (expected, found) {
            for unlike in unlike("", &expected.json(), &found.json()) {
                let _ = write!(message, "\n    {unlike}");
            }
        }
    }
    Err(message)
}

/// Where two values differ, with what stands there: the largest parts that are not objects.
fn unlike(path: &str, expected: &Value, found: &Value) -> Vec<String> {
    if expected == found {
        return Vec::new();
    }
    let (Value::Object(left), Value::Object(right)) = (expected, found) else {
        return vec![format!("{path}: {expected} expected, not {found}")];
    };
    let names: BTreeSet<_> = left.keys().chain(right.keys()).collect();
    let of = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    names
        .into_iter()
        .flat_map(|name| match (left.get(name), right.get(name)) {
            (Some(expected), Some(found)) => unlike(&of(name), expected, found),
            (Some(expected), None) => {
                vec![format!("{}: {expected} expected, is missing", of(name))]
            }
            (None, Some(found)) => vec![format!("{}: {found} not expected", of(name))],
            (None, None) => Vec::new(),
        })
        .collect()
}
