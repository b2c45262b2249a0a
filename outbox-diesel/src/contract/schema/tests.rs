use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::breaches;

/// What a change from one schema of the field `it` to another breaks.
fn change(old: &Value, new: &Value) -> Vec<String> {
    let object = |it: &Value| json!({ "type": "object", "properties": { "it": it } });
    found(&object(old), &object(new))
}

fn found(old: &Value, new: &Value) -> Vec<String> {
    let none = BTreeMap::new();
    let breaches = breaches((old, &none), (new, &none));
    breaches.into_iter().map(|(at, rule)| format!("{at}: {rule}")).collect()
}

#[test]
fn every_rule_names_the_field() {
    let int = |format: &str| json!({ "type": "integer", "format": format });
    let text = json!({ "type": "string" });
    let maybe = json!({ "type": ["string", "null"] });
    let values = |values: &[&str]| json!({ "type": "string", "enum": values });
    let table: [(Value, Value, &str); 19] = [
        (text.clone(), json!({ "type": "integer" }), "changed from string to integer"),
        (text.clone(), json!({}), "changed from string to anything"),
        (json!({}), text.clone(), "narrowed from anything to string"),
        (text.clone(), maybe.clone(), "made nullable"),
        (maybe, text.clone(), "narrowed from null or string to string"),
        (int("int32"), int("int64"), "changed from int32 to int64"),
        (int("uint32"), int("uint8"), "changed from uint32 to uint8"),
        (values(&["a", "b"]), values(&["b", "c"]), "narrowed: the value \"a\" was removed"),
        (text.clone(), values(&["a"]), "narrowed to the values \"a\""),
        (
            json!({ "type": "string", "maxLength": 9 }),
            json!({ "type": "string", "maxLength": 8 }),
            "narrowed: maxLength from 9 to 8",
        ),
        (
            json!({ "type": "integer", "minimum": 0 }),
            json!({ "type": "integer", "minimum": 1 }),
            "narrowed: minimum from 0 to 1",
        ),
        (text.clone(), json!({ "type": "string", "minLength": 1 }), "narrowed: minLength 1"),
        (text.clone(), json!({ "type": "string", "pattern": "^a" }), "narrowed: pattern \"^a\""),
        (
            json!({ "type": "array", "items": { "type": "string" } }),
            json!({ "type": "array", "items": { "type": "integer" } }),
            "[]changed from string to integer",
        ),
        (
            json!({ "type": "object", "properties": { "a": { "type": "string" } } }),
            json!({ "type": "object", "properties": { "b": { "type": "integer" } } }),
            ".aremoved",
        ),
        (
            json!({ "type": "object", "properties": { "a": { "type": "string" } } }),
            json!({ "type": "object", "properties": { "b": { "type": "string" } } }),
            ".aremoved, or renamed to `b`",
        ),
        (
            json!({ "type": "object" }),
            json!({ "type": "object", "additionalProperties": false }),
            "narrowed: no further fields",
        ),
        (
            json!({ "anyOf": [{ "type": "string" }, { "type": "integer" }] }),
            json!({ "anyOf": [{ "type": "string" }, { "type": "boolean" }] }),
            "narrowed: the alternative integer was removed",
        ),
        (text, json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] }), "made nullable"),
    ];
    for (old, new, rule) in table {
        let (below, rule) = match rule.find(char::is_alphabetic) {
            Some(start) if rule.starts_with('[') => rule.split_at(start),
            Some(start) if rule.starts_with('.') => rule.split_at(start + 1),
            _ => ("", rule),
        };
        assert_eq!(change(&old, &new), [format!("it{below}: {rule}")], "{old} -> {new}");
    }
}

#[test]
fn what_is_required_may_neither_come_nor_go() {
    let object = |required: &[&str]| {
        let text = json!({ "type": "string" });
        json!({ "type": "object", "properties": { "a": text, "b": text }, "required": required })
    };
    assert_eq!(found(&object(&["a"]), &object(&["a", "b"])), ["b: made required"]);
    assert_eq!(found(&object(&["a", "b"]), &object(&["a"])), ["b: made optional"]);
    let added = found(&json!({ "type": "object" }), &object(&["a"]));
    assert!(added[0].starts_with("a: added as required"), "{added:?}");
}

#[test]
fn additions_and_words_for_people_pass() {
    let table = [
        (
            json!({ "type": "object" }),
            json!({ "type": "object", "properties": { "a": { "type": "string" } } }),
        ),
        (json!({ "enum": ["a"] }), json!({ "enum": ["a", "b"] })),
        (json!({ "const": "a" }), json!({ "enum": ["b", "a"] })),
        (
            json!({ "type": "string" }),
            json!({ "type": "string", "title": "T", "description": "d", "default": "x" }),
        ),
        (
            json!({ "type": "string", "maxLength": 8, "pattern": "^a" }),
            json!({ "type": "string", "maxLength": 9 }),
        ),
        (
            json!({ "oneOf": [{ "const": "a" }] }),
            json!({ "oneOf": [{ "const": "b" }, { "const": "a" }] }),
        ),
        (
            json!({ "type": "object", "properties": {}, "additionalProperties": false }),
            json!({ "type": "object", "properties": {} }),
        ),
    ];
    for (old, new) in table {
        assert_eq!(change(&old, &new), [""; 0], "{old} -> {new}");
    }
}

#[test]
fn a_changed_alternative_is_followed_by_its_tag() {
    let of = |ty: &str| {
        json!({ "oneOf": [
            { "type": "object", "properties": { "kind": { "const": "card" }, "no": { "type": ty } } },
            { "type": "object", "properties": { "kind": { "const": "cash" } } },
        ] })
    };
    assert_eq!(change(&of("string"), &of("integer")), ["it.no: changed from string to integer"]);
}

#[test]
fn recursive_types_are_compared_once() {
    let tree = |of: &str| {
        let node = json!({ "type": "object", "properties": {
            "value": { "type": of },
            "next": { "anyOf": [{ "$ref": "#/schemas/Node" }, { "type": "null" }] },
        } });
        BTreeMap::from([("Node".to_owned(), node)])
    };
    let root = json!({ "$ref": "#/schemas/Node" });
    let (old, new) = (tree("string"), tree("integer"));
    assert_eq!(breaches((&root, &old), (&root, &old)), []);
    let found = breaches((&root, &old), (&root, &new));
    assert_eq!(found[0], ("value".to_owned(), "changed from string to integer".to_owned()));
}

#[test]
fn all_of_is_one_schema() {
    let schemas = BTreeMap::from([(
        "Base".to_owned(),
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] }),
    )]);
    let of = |ty: &str| json!({ "allOf": [{ "$ref": "#/schemas/Base" }], "properties": { "b": { "type": ty } } });
    let found = breaches((&of("string"), &schemas), (&of("integer"), &schemas));
    assert_eq!(found, [("b".to_owned(), "changed from string to integer".to_owned())]);
    let bare = json!({ "type": "object", "properties": { "b": { "type": "string" } } });
    let found = breaches((&of("string"), &schemas), (&bare, &schemas));
    assert_eq!(found, [("a".to_owned(), "removed".to_owned())]);
}
