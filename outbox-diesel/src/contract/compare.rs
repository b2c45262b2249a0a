//! Which changes of an event break its consumers.

use std::fmt;

use super::catalogue::{Catalogue, EventContract};
use super::schema;

/// A change that breaks consumers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Breach {
    /// The event.
    pub event_type: String,
    /// Its version.
    pub event_version: i16,
    /// The field of the payload, `customer.name` or `lines[].price`; `None` for the event itself.
    pub field: Option<String>,
    /// What is not allowed.
    pub rule: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` version {}: ", self.event_type, self.event_version)?;
        match &self.field {
            Some(field) => write!(f, "field `{field}` was {}", self.rule),
            None => write!(f, "{}", self.rule),
        }
    }
}

/// All changes that break consumers of the old catalogue.
pub(super) fn breaches(old: &Catalogue, new: &Catalogue) -> Vec<Breach> {
    old.events.iter().flat_map(|event| of_event(event, old, new)).collect()
}

fn of_event(before: &EventContract, old: &Catalogue, new: &Catalogue) -> Vec<Breach> {
    let breach = |field: Option<String>, rule: String| Breach {
        event_type: before.event_type.clone(),
        event_version: before.event_version,
        field,
        rule,
    };
    let of_type = || new.events.iter().filter(|event| event.event_type == before.event_type);
    let Some(after) = of_type().find(|event| event.event_version == before.event_version) else {
        if of_type().any(|event| event.event_version > before.event_version) {
            return Vec::new();
        }
        return vec![breach(
            None,
            "the event was removed, and no higher version replaces it".into(),
        )];
    };
    let mut breaches = Vec::new();
    let names = [
        ("topic", &before.topic, &after.topic),
        ("aggregate", &before.aggregate_type, &after.aggregate_type),
    ];
    for (name, before, after) in names {
        if before != after {
            let rule = format!("the {name} was changed from `{before}` to `{after}`");
            breaches.push(breach(None, rule));
        }
    }
    for header in before.headers.iter().filter(|header| !after.headers.contains(header)) {
        breaches.push(breach(None, format!("the header `{header}` was removed")));
    }
    let payload = schema::breaches((&before.payload, &old.schemas), (&after.payload, &new.schemas));
    breaches.extend(payload.into_iter().map(|(field, rule)| {
        if field.is_empty() {
            breach(None, format!("the payload was {rule}"))
        } else {
            breach(Some(field), rule)
        }
    }));
    breaches
}
