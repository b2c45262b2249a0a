//! One trace, from the request that emits to the consumer.

use diesel_async::AsyncConnection as _;
use opentelemetry::trace::{SpanId, TraceId, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::consumer::{Delivery, HandlerError};
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_tests::{SOON, TestDatabase, TestEvent, TestRedis, eventually};
use redis::Client;
use tracing::{Instrument as _, info_span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::consumer::{consumer, stream};

/// What spans come to on the test's own thread.
struct Traces {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: tracing::subscriber::DefaultGuard,
}

impl Traces {
    fn keep() -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let level = tracing_subscriber::filter::LevelFilter::INFO;
        let guard = tracing_subscriber::registry().with(level).with(layer).set_default();
        Self { exporter, provider, _guard: guard }
    }

    /// Spans of this name that have ended.
    fn named(&self, name: &str) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        let spans = self.exporter.get_finished_spans().unwrap();
        spans.into_iter().filter(|span| span.name == name).collect()
    }
}

fn traceparent(database: &TestDatabase) -> Option<String> {
    let header: String =
        database.value("SELECT coalesce(max(headers ->> 'traceparent'), '') FROM outbox.events");
    (!header.is_empty()).then_some(header)
}

#[tokio::test]
async fn one_trace_runs_from_the_request_to_the_consumer() {
    let traces = Traces::keep();
    let (database, redis) = (TestDatabase::new(), TestRedis::new());
    let stream = stream(&redis).await;
    let client = Client::open(redis.url()).unwrap();
    let relay = database.relay(RedisPublisher::new(client).stream_prefix(redis.prefix())).await;
    let running = consumer(&redis.url(), &stream, "one")
        .on_any(async move |_: Delivery| {
            info_span!("charge").in_scope(|| ());
            Ok::<_, HandlerError>(())
        })
        .spawn()
        .unwrap();

    let mut conn = database.connect().await;
    conn.transaction(async |conn| conn.emit(&TestEvent::new("a")).await)
        .instrument(info_span!("request"))
        .await
        .unwrap();
    eventually(SOON, async || (!traces.named("handle").is_empty()).then_some(())).await;
    relay.shutdown().await;
    running.shutdown().await.unwrap();

    let request = &traces.named("request")[0];
    let (trace, span) = (request.span_context.trace_id(), request.span_context.span_id());
    assert_ne!(trace, TraceId::INVALID);
    assert_eq!(traceparent(&database), Some(format!("00-{trace:032x}-{span:016x}-01")));
    let publish = traces.named("publish");
    let links = |span: &SpanData| {
        let own = |link: &&opentelemetry::trace::Link| link.span_context.trace_id() == trace;
        span.links.iter().find(own).map_or(SpanId::INVALID, |link| link.span_context.span_id())
    };
    assert!(publish.iter().any(|publish| links(publish) == span), "{publish:?}");
    let handle = &traces.named("handle")[0];
    assert_eq!((handle.span_context.trace_id(), handle.parent_span_id), (trace, span));
    let charge = &traces.named("charge")[0];
    assert_eq!(charge.span_context.trace_id(), trace);
    assert_eq!(charge.parent_span_id, handle.span_context.span_id());
}

#[tokio::test]
async fn a_context_that_the_event_brings_is_left_alone() {
    let _traces = Traces::keep();
    let database = TestDatabase::new();
    let given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut conn = database.connect().await;
    let event = TestEvent::new("a").header("traceparent", given);
    conn.transaction(async |conn| conn.emit(&event).await)
        .instrument(info_span!("request"))
        .await
        .unwrap();
    assert_eq!(traceparent(&database).as_deref(), Some(given));
}

#[tokio::test]
async fn without_a_trace_an_event_has_no_header() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.transaction(async |conn| conn.emit(&TestEvent::new("a")).await).await.unwrap();
    assert_eq!(traceparent(&database), None);
}
