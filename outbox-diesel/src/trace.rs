//! Trace: the W3C context that travels in an event's headers `traceparent` and `tracestate`.

#[cfg(all(feature = "opentelemetry", feature = "emit"))]
mod context;
#[cfg(all(feature = "opentelemetry", any(feature = "relay", feature = "consumer")))]
mod remote;

#[cfg(all(feature = "opentelemetry", feature = "emit"))]
pub(crate) use self::context::inject;
#[cfg(all(feature = "opentelemetry", feature = "consumer"))]
pub(crate) use self::remote::follow;
#[cfg(all(feature = "opentelemetry", feature = "relay"))]
pub(crate) use self::remote::link;

/// The trace id of a header `traceparent`.
#[cfg(any(feature = "relay", feature = "consumer"))]
pub(crate) fn trace_id(traceparent: &str) -> Option<&str> {
    let trace_id = traceparent.split('-').nth(1)?;
    let is_one = trace_id.len() == 32 && trace_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then_some(trace_id)
}
