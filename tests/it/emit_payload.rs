//! What was emitted is what is stored, byte for byte.

use std::collections::BTreeMap;

use diesel::Connection as _;
use diesel_async::AsyncConnection as _;
use outbox_diesel::{
    AsyncEmit, Emit, EmitError, Headers, MissingAggregateId, OutboxEvent, TextProblem,
};
use outbox_tests::{TestDatabase, TestEvent};
use serde::Serialize;
use serde_json::value::RawValue;

/// An event as the derive makes one: the payload is what serde says.
struct Serialized<T>(T);

impl<T: Serialize> OutboxEvent for Serialized<T> {
    fn aggregate_type(&self) -> &'static str {
        "order"
    }
    fn aggregate_id(&self) -> Result<std::borrow::Cow<'_, str>, MissingAggregateId> {
        Ok("1".into())
    }
    fn event_type(&self) -> &'static str {
        "order.created"
    }
    fn write_payload(&self, json: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        serde_json::to_writer(json, &self.0)
    }
}

fn emit(database: &TestDatabase, event: &impl OutboxEvent) -> Result<(), EmitError> {
    database.sync().transaction(|conn| conn.emit(event).map(|_| ()))
}

const LAST_PAYLOAD: &str = "SELECT payload::text FROM outbox.events ORDER BY seq DESC LIMIT 1";

#[test]
fn payload_bytes_are_exact() {
    let database = TestDatabase::new();
    let raw = r#"{"b":1,"a":2,"b":3,"n":1.10}"#;
    emit(&database, &Serialized(RawValue::from_string(raw.to_owned()).unwrap())).unwrap();
    assert_eq!(database.value::<String>(LAST_PAYLOAD), raw);

    let spaced = "{ \"é\" : \"\\u0000 \\ud800 \\u00e9\",\n\t\"x\": 1e999 } ";
    emit(&database, &TestEvent::new(1).payload(spaced)).unwrap();
    assert_eq!(database.value::<String>(LAST_PAYLOAD), spaced);
}

#[tokio::test]
async fn asynchronous_payload_bytes_are_exact_in_slices_too() {
    let database = TestDatabase::new();
    let payloads = [r#"{"b":1,"a":2,"b":3,"n":1.10}"#, r#"["{\"quoted\", \\ }", null ]"#, "7"];
    let events = payloads.map(|payload| TestEvent::new(1).payload(payload));
    let mut conn = database.connect().await;
    conn.transaction(async |conn| conn.emit_all(&events).await).await.unwrap();
    let stored: Vec<String> =
        database.value("SELECT ARRAY(SELECT payload::text FROM outbox.events ORDER BY seq)");
    assert_eq!(stored, payloads);
}

#[test]
fn integers_above_2_to_the_53_are_exact() {
    #[derive(Serialize)]
    struct Large {
        unsigned: u64,
        signed: i128,
    }
    let database = TestDatabase::new();
    emit(&database, &Serialized(Large { unsigned: u64::MAX, signed: i128::MIN })).unwrap();
    assert_eq!(
        database.value::<String>(LAST_PAYLOAD),
        r#"{"unsigned":18446744073709551615,"signed":-170141183460469231731687303715884105728}"#
    );
}

#[test]
fn names_and_ids_are_data_whatever_they_hold() {
    let database = TestDatabase::new();
    for text in ["'; DROP TABLE outbox.events; --", "\"we\"b\"", "$1", "{a,\"b\"}", "Ünïcode 🦀\\"]
    {
        let event = TestEvent::new(text)
            .aggregate_type(text)
            .event_type(text)
            .topic(text)
            .dedup_key(text)
            .header(text, text)
            .payload(serde_json::to_string(text).unwrap());
        let slice = [event.clone(), event.clone().dedup_key(format!("{text} again"))];
        database
            .sync()
            .transaction::<_, EmitError, _>(|conn| {
                conn.emit(&event)?;
                conn.emit_all(&slice)
            })
            .unwrap();
        for column in ["topic", "aggregate_type", "aggregate_id", "event_type"] {
            let query = format!("SELECT ARRAY(SELECT {column} FROM outbox.events ORDER BY seq)");
            assert_eq!(database.value::<Vec<String>>(&query), [text, text], "{column}");
        }
        let keys: Vec<String> =
            database.value("SELECT ARRAY(SELECT dedup_key FROM outbox.events ORDER BY seq)");
        assert_eq!(keys, [text.to_owned(), format!("{text} again")]);
        let headers: String = database.value("SELECT min(headers::text) FROM outbox.events");
        let headers: BTreeMap<String, String> = serde_json::from_str(&headers).unwrap();
        assert_eq!(headers, BTreeMap::from([(text.to_owned(), text.to_owned())]));
        database.sql("TRUNCATE outbox.events");
    }
}

#[test]
fn headers_keep_their_order_and_default_to_an_empty_object() {
    let database = TestDatabase::new();
    let headers = "SELECT headers::text FROM outbox.events ORDER BY seq DESC LIMIT 1";
    emit(&database, &TestEvent::new(1)).unwrap();
    assert_eq!(database.value::<String>(headers), "{}");
    let event = TestEvent::new(1).header("z", "1").with_header("a", "2").with_header("z", "3");
    emit(&database, &event).unwrap();
    assert_eq!(database.value::<String>(headers), r#"{"z":"3","a":"2"}"#);
}

#[test]
fn texts_have_1_to_255_bytes_and_no_nul() {
    type Setter = fn(&str) -> TestEvent;
    let setters: [(&str, Setter); 5] = [
        ("aggregate id", |text| TestEvent::new(text)),
        ("aggregate type", |text| TestEvent::new(1).aggregate_type(text).topic("t")),
        ("event type", |text| TestEvent::new(1).event_type(text)),
        ("topic", |text| TestEvent::new(1).topic(text)),
        ("dedup key", |text| TestEvent::new(1).dedup_key(text)),
    ];
    let database = TestDatabase::new();
    let (fits, too_long) = ("ä".repeat(127) + "x", "ä".repeat(128));
    for (expected, with) in setters {
        emit(&database, &with(&fits)).unwrap();
        let refused = [
            ("", TextProblem::Empty),
            (too_long.as_str(), TextProblem::TooLong(256)),
            ("a\0b", TextProblem::Nul),
        ];
        for (text, why) in refused {
            match emit(&database, &with(text)) {
                Err(EmitError::InvalidText { name, problem }) => {
                    assert_eq!((name, problem), (expected, why));
                }
                other => panic!("{expected} {text:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_payload_has_at_most_its_limit_of_bytes() {
    let database = TestDatabase::new();
    let sized = |bytes: usize| TestEvent::new(1).payload(format!("\"{}\"", "x".repeat(bytes - 2)));
    emit(&database, &sized(1024 * 1024)).unwrap();
    let refused = emit(&database, &sized(1024 * 1024 + 1));
    let Err(EmitError::TooLarge { name: "payload", bytes: 1_048_577, limit: 1_048_576, .. }) =
        refused
    else {
        panic!("{refused:?}");
    };
    emit(&database, &sized(1024 * 1024 + 1).payload_limit(2 << 20)).unwrap();
    assert!(emit(&database, &sized(8).payload_limit(7)).is_err());
}

#[test]
fn headers_have_at_most_64_kib() {
    let database = TestDatabase::new();
    // {"n":"…"}
    let sized = |bytes: usize| TestEvent::new(1).header("n", &"x".repeat(bytes - 8));
    emit(&database, &sized(64 * 1024)).unwrap();
    let refused = emit(&database, &sized(64 * 1024 + 1));
    assert!(matches!(refused, Err(EmitError::TooLarge { name: "headers", .. })), "{refused:?}");
}

#[test]
fn a_payload_nests_at_most_128_levels() {
    let database = TestDatabase::new();
    let nested = |depth| TestEvent::new(1).payload("[".repeat(depth) + &"]".repeat(depth));
    emit(&database, &nested(128)).unwrap();
    let refused = emit(&database, &nested(129));
    assert!(matches!(refused, Err(EmitError::TooDeep { limit: 128, .. })), "{refused:?}");
}

#[test]
fn versions_start_at_1() {
    let database = TestDatabase::new();
    emit(&database, &TestEvent::new(1).event_version(i16::MAX)).unwrap();
    for version in [0, -1] {
        let refused = emit(&database, &TestEvent::new(1).event_version(version));
        assert!(matches!(refused, Err(EmitError::InvalidVersion(v)) if v == version));
    }
}

#[test]
fn an_event_that_serde_refuses_names_itself_and_the_cause() {
    let database = TestDatabase::new();
    let keyed_by_lists = BTreeMap::from([(vec![1], 1)]);
    let refused = emit(&database, &Serialized(keyed_by_lists)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the event of type order.created could not be serialised to JSON"
    );
    let cause = std::error::Error::source(&refused).unwrap();
    assert_eq!(cause.to_string(), "key must be a string");
}

#[test]
fn a_header_that_is_set_twice_keeps_its_place() {
    let mut headers = Headers::default();
    headers.set("a", "1");
    headers.set("b", "2");
    headers.set("a", "3");
    assert_eq!(headers.iter().collect::<Vec<_>>(), [("a", "3"), ("b", "2")]);
}

#[test]
fn a_payload_that_is_no_json_is_refused_before_the_server_sees_it() {
    let database = TestDatabase::new();
    database
        .sync()
        .transaction(|conn| {
            for payload in ["{nope", "", "1 2", "\"\u{1}\"", "{\"a\":}"] {
                let refused = conn.emit(&TestEvent::new(1).payload(payload));
                assert!(matches!(refused, Err(EmitError::Serialize { .. })), "{payload}");
            }
            conn.emit(&TestEvent::new("good"))
        })
        .unwrap();
    assert_eq!(database.emitted(), ["good"]);
}
