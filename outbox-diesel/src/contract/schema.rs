//! Which changes of a JSON Schema break who reads what it describes.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

use super::variant::{alternatives, names, resolve, values};

type Schemas = BTreeMap<String, Value>;
/// Where, and what was done there: "field `total` was {removed}".
type Breach = (String, String);

/// All breaches, outermost first.
pub(super) fn breaches(old: (&Value, &Schemas), new: (&Value, &Schemas)) -> Vec<Breach> {
    let mut walk = Walk { old: old.1, new: new.1, seen: HashSet::new(), breaches: Vec::new() };
    walk.schema(old.0, new.0, "");
    walk.breaches
}

/// Keywords that allow less the larger, or the smaller, they are.
const LOWER: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
const UPPER: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];
/// Keywords that allow less whenever they change.
const OTHER: [&str; 3] = ["pattern", "multipleOf", "uniqueItems"];

struct Walk<'a> {
    old: &'a Schemas,
    new: &'a Schemas,
    /// Pairs of references that were compared, or are being: types may be recursive.
    seen: HashSet<(String, String)>,
    breaches: Vec<Breach>,
}

impl Walk<'_> {
    fn schema(&mut self, old: &Value, new: &Value, at: &str) {
        if let (Some(old), Some(new)) = (reference(old), reference(new))
            && !self.seen.insert((old.to_owned(), new.to_owned()))
        {
            return;
        }
        let (old, new) = (flat(old, self.old), flat(new, self.new));
        if self.types(&old, &new, at) {
            return;
        }
        self.values(&old, &new, at);
        self.bounds(&old, &new, at);
        self.fields(&old, &new, at);
        self.items(&old, &new, at);
        self.alternatives(&old, &new, at);
    }

    fn breach(&mut self, at: &str, rule: impl Into<String>) {
        self.breaches.push((at.to_owned(), rule.into()));
    }

    /// Whether the type has changed, after which nothing else is worth saying.
    fn types(&mut self, old: &Value, new: &Value, at: &str) -> bool {
        let (before, after) = (types(old), types(new));
        let rule = match (&before, &after) {
            _ if !nullable(old, self.old) && nullable(new, self.new) => "made nullable".to_owned(),
            (Some(before), Some(after)) if after == before => {
                let format = |schema: &Value| {
                    schema.get("format").and_then(Value::as_str).unwrap_or("any").to_owned()
                };
                if format(old) == format(new) {
                    return false;
                }
                format!("changed from {} to {}", format(old), format(new))
            }
            (Some(before), Some(after)) if after.is_subset(before) => {
                format!("narrowed from {} to {}", listed(before), listed(after))
            }
            (Some(before), Some(after)) => {
                format!("changed from {} to {}", listed(before), listed(after))
            }
            // Alternatives have their own types.
            _ if alternatives(old).is_some() || alternatives(new).is_some() => return false,
            (None, Some(after)) => format!("narrowed from anything to {}", listed(after)),
            (Some(before), None) => format!("changed from {} to anything", listed(before)),
            (None, None) => return false,
        };
        self.breach(at, rule);
        true
    }

    fn values(&mut self, old: &Value, new: &Value, at: &str) {
        match (values(old), values(new)) {
            (Some(before), Some(after)) => {
                for gone in before.iter().filter(|value| !after.contains(value)) {
                    self.breach(at, format!("narrowed: the value {gone} was removed"));
                }
            }
            (None, Some(after)) => {
                let after: Vec<_> = after.iter().map(ToString::to_string).collect();
                self.breach(at, format!("narrowed to the values {}", after.join(", ")));
            }
            (_, None) => {}
        }
    }

    fn bounds(&mut self, old: &Value, new: &Value, at: &str) {
        let number = |schema: &Value, key: &str| schema.get(key).and_then(Value::as_f64);
        for (keys, tighter) in [(LOWER, 1.0), (UPPER, -1.0)] {
            for key in keys {
                let Some(after) = number(new, key) else { continue };
                match number(old, key) {
                    Some(before) if (after - before) * tighter > 0.0 => {
                        self.breach(at, format!("narrowed: {key} from {before} to {after}"));
                    }
                    None => self.breach(at, format!("narrowed: {key} {after}")),
                    Some(_) => {}
                }
            }
        }
        for key in OTHER {
            if let Some(after) = new.get(key).filter(|after| old.get(key) != Some(after)) {
                self.breach(at, format!("narrowed: {key} {after}"));
            }
        }
    }

    fn fields(&mut self, old: &Value, new: &Value, at: &str) {
        let (before, after) = (fields(old), fields(new));
        let (needed, needs) = (required(old), required(new));
        let mut renamed = BTreeSet::new();
        for (name, schema) in &before {
            let at = within(at, name);
            if let Some(now) = after.get(name) {
                self.schema(schema, now, &at);
                match (needed.contains(name.as_str()), needs.contains(name.as_str())) {
                    (false, true) => self.breach(&at, "made required"),
                    (true, false) => self.breach(&at, "made optional"),
                    _ => {}
                }
                continue;
            }
            let same = after.iter().find(|(name, now)| {
                !before.contains_key(*name) && self.is_kept(schema, now) && !renamed.contains(*name)
            });
            match same {
                Some((now, _)) => {
                    self.breach(&at, format!("removed, or renamed to `{now}`"));
                    renamed.insert(now.clone());
                }
                None => self.breach(&at, "removed"),
            }
        }
        for name in needs {
            if !before.contains_key(name) && !renamed.contains(name) {
                let rule = "added as required, which older events lack; make it an `Option` or \
                            `#[serde(default)]`";
                self.breach(&within(at, name), rule);
            }
        }
        match (old.get("additionalProperties"), new.get("additionalProperties")) {
            (Some(Value::Bool(false)), Some(Value::Bool(false))) | (_, None) => {}
            (_, Some(Value::Bool(false))) => self.breach(at, "narrowed: no further fields"),
            (Some(before), Some(after)) => self.schema(before, after, &within(at, "*")),
            (None, Some(_)) => {}
        }
    }

    fn items(&mut self, old: &Value, new: &Value, at: &str) {
        match (old.get("items"), new.get("items")) {
            (Some(Value::Array(before)), Some(Value::Array(after))) => {
                for (index, (before, after)) in before.iter().zip(after).enumerate() {
                    self.schema(before, after, &format!("{at}[{index}]"));
                }
            }
            (Some(before), Some(after)) => self.schema(before, after, &format!("{at}[]")),
            (None, Some(_)) => self.breach(at, "narrowed: what it holds"),
            (_, None) => {}
        }
    }

    fn alternatives(&mut self, old: &Value, new: &Value, at: &str) {
        let both = (alternatives(old), alternatives(new));
        let (before, after) = match both {
            (None, None) => return,
            (before, after) => (
                before.map_or_else(|| std::slice::from_ref(old), Vec::as_slice),
                after.map_or_else(|| std::slice::from_ref(new), Vec::as_slice),
            ),
        };
        for alternative in before {
            if after.iter().any(|now| self.is_kept(alternative, now)) {
                continue;
            }
            let name = |schema: &Value| names(schema).first().map(|name| (*name).to_owned());
            let same = name(alternative)
                .and_then(|known| after.iter().find(|now| name(now).as_ref() == Some(&known)));
            match (same, before, after) {
                (Some(now), ..) | (None, [_], [now]) => self.schema(alternative, now, at),
                _ => {
                    let name = name(alternative).unwrap_or_else(|| summary(alternative, self.old));
                    self.breach(at, format!("narrowed: the alternative {name} was removed"));
                }
            }
        }
    }

    /// Whether one could stand for the other.
    fn is_kept(&self, old: &Value, new: &Value) -> bool {
        let seen = self.seen.clone();
        let mut walk = Walk { old: self.old, new: self.new, seen, breaches: Vec::new() };
        walk.schema(old, new, "");
        walk.breaches.is_empty()
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref").and_then(Value::as_str)
}

/// The schema with what it refers to, and all of `allOf`, in one object.
fn flat(schema: &Value, schemas: &Schemas) -> Value {
    let schema = resolve(schema, schemas);
    let Some(object) = schema.as_object() else { return Value::Object(Map::new()) };
    let mut flat_object = object.clone();
    let Some(Value::Array(parts)) = flat_object.remove("allOf") else { return schema.clone() };
    for part in parts {
        let Value::Object(part) = flat(&part, schemas) else { continue };
        for (key, value) in part {
            match (flat_object.get_mut(&key), value) {
                (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
                (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
                (Some(_), _) => {}
                (None, value) => _ = flat_object.insert(key, value),
            }
        }
    }
    Value::Object(flat_object)
}

fn types(schema: &Value) -> Option<BTreeSet<String>> {
    let of_value = |value: &Value| {
        let name = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        name.to_owned()
    };
    match schema.get("type") {
        Some(Value::String(name)) => Some(BTreeSet::from([name.clone()])),
        Some(Value::Array(names)) => {
            Some(names.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        _ => values(schema).map(|values| values.into_iter().map(of_value).collect()),
    }
}

/// Whether it says that it may be null.
fn nullable(schema: &Value, schemas: &Schemas) -> bool {
    let null = |schema: &Value| types(schema).is_some_and(|types| types.contains("null"));
    let any = alternatives(schema).into_iter().flatten();
    null(schema) || any.map(|alternative| resolve(alternative, schemas)).any(null)
}

fn fields(schema: &Value) -> BTreeMap<String, Value> {
    let fields = schema.get("properties").and_then(Value::as_object);
    fields.into_iter().flatten().map(|(name, schema)| (name.clone(), schema.clone())).collect()
}

fn required(schema: &Value) -> BTreeSet<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn within(at: &str, field: &str) -> String {
    if at.is_empty() { field.to_owned() } else { format!("{at}.{field}") }
}

fn listed(types: &BTreeSet<String>) -> String {
    types.iter().map(String::as_str).collect::<Vec<_>>().join(" or ")
}

fn summary(schema: &Value, schemas: &Schemas) -> String {
    let schema = resolve(schema, schemas);
    match (schema.get("title").and_then(Value::as_str), types(schema)) {
        (Some(title), _) => title.to_owned(),
        (None, Some(types)) => listed(&types),
        (None, None) => "of any type".to_owned(),
    }
}
