//! The contexts of events that were emitted elsewhere.

use std::str::FromStr as _;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Exporters keep no more links of a span.
#[cfg(feature = "relay")]
const LINKS: usize = 128;

/// Links the span to those that emitted the first events.
#[cfg(feature = "relay")]
pub(crate) fn link(span: &Span, messages: &[crate::message::Message<'_>]) {
    if span.is_disabled() {
        return;
    }
    // Events of one transaction mostly come together, and have one context.
    let mut last = None;
    for message in messages.iter().take(LINKS) {
        let Some((parent, state)) = message.trace_context() else { continue };
        if last.as_ref() != Some(&parent)
            && let Some(remote) = parse(&parent, state.as_deref())
        {
            span.add_link(remote);
            last = Some(parent);
        }
    }
}

/// Makes the span a child of the one that emitted the event.
#[cfg(feature = "consumer")]
pub(crate) fn follow(span: &Span, parent: Option<&str>, state: Option<&str>) {
    use opentelemetry::trace::TraceContextExt as _;

    let Some(remote) = parent.and_then(|parent| parse(parent, state)) else { return };
    // An error: no layer of OpenTelemetry is listening.
    span.set_parent(opentelemetry::Context::new().with_remote_span_context(remote)).ok();
}

/// `00-<trace id>-<span id>-<flags>`; later versions may append more.
fn parse(parent: &str, state: Option<&str>) -> Option<SpanContext> {
    let mut parts = parent.split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let widths = [version, trace, span, flags].map(str::len);
    if widths != [2, 32, 16, 2] || version == "ff" {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    let trace = TraceId::from_hex(trace).ok()?;
    let context = SpanContext::new(trace, SpanId::from_hex(span).ok()?, flags, true, state);
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_what_the_standard_allows_is_a_context() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = parse(parent, Some("vendor=value")).unwrap();
        assert!(context.is_sampled() && context.is_remote());
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.trace_state().get("vendor"), Some("value"));
        // A version to come.
        assert!(parse(&parent.replacen("00", "01", 1), None).is_some());
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c8031-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-xx",
        ] {
            assert_eq!(parse(wrong, None), None, "{wrong}");
        }
    }
}
