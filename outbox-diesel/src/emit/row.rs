//! The row of an event, checked before any SQL is sent: a statement that the server refuses would
//! abort the caller's transaction.

use tracing::field::{Empty, display};
use tracing::{Span, debug_span};
use uuid::Uuid;

use crate::error::{EmitError, TextProblem};
use crate::event::{Headers, OutboxEvent};
use crate::statement::RawJson;

/// What the CHECKs of `outbox.events` allow for names and ids.
const TEXT_LIMIT: usize = 255;
/// `serde_json` parses no deeper, and neither do most parsers.
const DEPTH_LIMIT: usize = 128;
/// Headers are for routing and tracing.
const HEADERS_LIMIT: usize = 64 * 1024;

/// One event, ready to be inserted.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: Uuid,
    pub(crate) topic: String,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: String,
    pub(crate) event_version: i16,
    pub(crate) dedup_key: Option<String>,
    pub(crate) payload: RawJson,
    pub(crate) headers: RawJson,
    pub(crate) serialize_writers: bool,
}

/// The span of an emit of one event; what its row says is told by [`Row::tell`].
pub(crate) fn span<E: OutboxEvent + ?Sized>(event: &E) -> Span {
    debug_span!(
        "emit",
        event_type = event.event_type(),
        topic = event.topic(),
        event_id = Empty,
        aggregate_id = Empty
    )
}

impl Row {
    /// Says which event it is.
    pub(crate) fn tell(&self, span: &Span) {
        if !span.is_disabled() {
            span.record("event_id", display(self.id));
            span.record("aggregate_id", self.aggregate_id.as_str());
        }
    }

    pub(crate) fn new<E: OutboxEvent + ?Sized>(event: &E) -> Result<Self, EmitError> {
        let event_type = text("event type", event.event_type())?;
        let aggregate_type = text("aggregate type", event.aggregate_type())?;
        let aggregate_id = text("aggregate id", &event.aggregate_id()?)?;
        let topic = text("topic", event.topic())?;
        let dedup_key = event.dedup_key().map(|key| text("dedup key", &key)).transpose()?;
        let event_version = event.event_version();
        if event_version < 1 {
            return Err(EmitError::InvalidVersion(event_version));
        }

        let name = event_type.clone();
        let serialize = |source| EmitError::Serialize { event_type: name.clone(), source };
        let mut payload = Vec::with_capacity(256);
        event.write_payload(&mut payload).map_err(serialize)?;
        let mut headers = Headers::default();
        event.headers(&mut headers);
        #[cfg(feature = "opentelemetry")]
        crate::trace::inject(&mut headers);
        let headers = serde_json::to_vec(&headers).map_err(serialize)?;

        let parts =
            [("payload", &payload, event.payload_limit()), ("headers", &headers, HEADERS_LIMIT)];
        for (name, json, limit) in parts {
            if json.len() > limit {
                let bytes = json.len();
                return Err(EmitError::TooLarge { name, event_type, bytes, limit });
            }
        }
        // Derived events are valid; one that writes its payload by hand may err.
        serde_json::from_slice::<serde::de::IgnoredAny>(&payload).map_err(serialize)?;
        if depth(&payload) > DEPTH_LIMIT {
            return Err(EmitError::TooDeep { event_type, limit: DEPTH_LIMIT });
        }
        Ok(Self {
            id: Uuid::now_v7(),
            topic,
            aggregate_type,
            aggregate_id,
            event_type,
            event_version,
            dedup_key,
            payload: RawJson(payload),
            headers: RawJson(headers),
            serialize_writers: event.serialize_writers(),
        })
    }
}

fn text(name: &'static str, text: &str) -> Result<String, EmitError> {
    let problem = if text.is_empty() {
        TextProblem::Empty
    } else if text.len() > TEXT_LIMIT {
        TextProblem::TooLong(text.len())
    } else if text.contains('\0') {
        TextProblem::Nul
    } else {
        return Ok(text.to_owned());
    };
    Err(EmitError::InvalidText { name, problem })
}

/// How deep arrays and objects nest in a valid JSON text.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                // To the end of the string; an escaped quote does not end it.
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => _ = bytes.next(),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn brackets_inside_strings_do_not_nest() {
        assert_eq!(depth(br#""[[[""#), 0);
        assert_eq!(depth(br#"{"a\"[[": [1, {"b": "\\"}], "c": []}"#), 3);
        assert_eq!(depth(b"7"), 0);
    }
}
