//! What differs between the events that a test expects and those that were emitted.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use diesel::result::QueryResult;
use serde::Serialize;

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
    payload: serde_json::Value,
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

    fn of_emitted(event: EmittedEvent) -> Self {
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

pub(super) fn difference(
    expected: Result<Vec<Line>, String>,
    emitted: QueryResult<Vec<EmittedEvent>>,
) -> Result<(), String> {
    let expected = expected?;
    let emitted = emitted.map_err(|error| format!("outbox.events could not be read: {error}"))?;
    let emitted: Vec<_> = emitted.into_iter().map(Line::of_emitted).collect();
    if expected == emitted {
        return Ok(());
    }
    let mut message = format!(
        "the emitted events are not the expected ones ({} expected, {} emitted)",
        expected.len(),
        emitted.len()
    );
    for nth in 0..expected.len().max(emitted.len()) {
        let (expected, emitted) = (expected.get(nth), emitted.get(nth));
        if expected == emitted {
            continue;
        }
        let what = match (expected, emitted) {
            (Some(_), None) => "is missing",
            (None, _) => "was not expected",
            _ => "differs",
        };
        // Writing into a string does not fail.
        let _ = write!(message, "\n  event {} {what}", nth + 1);
        for (name, line) in [("expected", expected), ("emitted ", emitted)] {
            if let Some(line) = line {
                let json = serde_json::to_string(line).expect("its keys are strings");
                let _ = write!(message, "\n    {name} {json}");
            }
        }
    }
    Err(message)
}
