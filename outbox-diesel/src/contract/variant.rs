//! The part of an enum's schema that is one variant, however serde represents the enum.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::catalogue::SCHEMAS;

/// The schema of one variant; that of the whole enum where its parts have no names (untagged).
pub(super) fn of(schema: &Value, variant: &str, schemas: &BTreeMap<String, Value>) -> Value {
    let whole = resolve(schema, schemas);
    if let Some(value) = values(whole).into_iter().flatten().find(|value| is(value, variant)) {
        return json!({ "type": "string", "const": value });
    }
    let found = alternatives(whole).into_iter().flatten().find_map(|alternative| {
        if let Some(value) = values(alternative).into_iter().flatten().find(|it| is(it, variant)) {
            return Some(json!({ "type": "string", "const": value }));
        }
        names(alternative).iter().any(|name| same(name, variant)).then(|| alternative.clone())
    });
    found.unwrap_or_else(|| schema.clone())
}

/// What a schema refers to, if it does.
pub(super) fn resolve<'a>(
    mut schema: &'a Value,
    schemas: &'a BTreeMap<String, Value>,
) -> &'a Value {
    // A type that is nothing but itself would not end.
    for _ in 0..64 {
        let name = schema.get("$ref").and_then(Value::as_str);
        match name.and_then(|name| name.strip_prefix(SCHEMAS)).and_then(|name| schemas.get(name)) {
            Some(referred) => schema = referred,
            None => break,
        }
    }
    schema
}

pub(super) fn alternatives(schema: &Value) -> Option<&Vec<Value>> {
    ["oneOf", "anyOf"].iter().find_map(|key| schema.get(key)).and_then(Value::as_array)
}

/// The values that `enum` or `const` allows.
pub(super) fn values(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.iter().collect()),
        (None, None) => None,
    }
}

/// What tells an alternative from others: the constants in its fields, or its only field.
pub(super) fn names(alternative: &Value) -> Vec<&str> {
    let Some(fields) = alternative.get("properties").and_then(Value::as_object) else {
        return alternative.get("const").and_then(Value::as_str).into_iter().collect();
    };
    let mut names: Vec<&str> = fields
        .values()
        .filter_map(|field| values(field).filter(|values| values.len() == 1))
        .filter_map(|values| values[0].as_str())
        .collect();
    if let (1, Some(field)) = (fields.len(), fields.keys().next()) {
        names.push(field);
    }
    names
}

fn is(value: &Value, variant: &str) -> bool {
    value.as_str().is_some_and(|name| same(name, variant))
}

/// Equal but for `rename_all`.
fn same(name: &str, variant: &str) -> bool {
    let folded = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    folded(name) == folded(variant)
}
