//! The context in which an event is emitted.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, TraceContextExt as _, TraceFlags};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::event::Headers;

/// Writes the current context into the headers, unless the event brings one of its own or there is
/// none.
pub(crate) fn inject(headers: &mut Headers) {
    if headers.get("traceparent").is_some() {
        return;
    }
    let Some(current) = current() else { return };
    let (trace, span) = (current.trace_id(), current.span_id());
    let flags = current.trace_flags() & TraceFlags::SAMPLED;
    headers.set("traceparent", format!("00-{trace:032x}-{span:016x}-{flags:02x}"));
    let state = current.trace_state().header();
    if !state.is_empty() {
        headers.set("tracestate", state);
    }
}

/// That of the current span of `tracing`, or else OpenTelemetry's own.
fn current() -> Option<SpanContext> {
    let of = |context: &Context| context.span().span_context().clone();
    let contexts = [of(&tracing::Span::current().context()), of(&Context::current())];
    contexts.into_iter().find(SpanContext::is_valid)
}
