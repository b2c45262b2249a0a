//! What an orchestrator and Prometheus ask a relay by HTTP.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::routing::get;
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use outbox_diesel::Health;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Seconds: from a publish that waits for nothing to a backlog of half an hour.
const BUCKETS: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0,
];
/// How often what histograms were told is summed up, so that it does not wait for a scrape.
const UPKEEP: Duration = Duration::from_secs(1);

/// Records what the library counts from now on.
pub(crate) fn record() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new().set_buckets(BUCKETS)?.install_recorder()
}

/// Answers until cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    health: watch::Receiver<Health>,
    metrics: PrometheusHandle,
    cancelled: CancellationToken,
) -> std::io::Result<()> {
    let recorded = metrics.clone();
    let stopped = cancelled.clone();
    tokio::spawn(stopped.run_until_cancelled_owned(async move {
        let mut pace = tokio::time::interval(UPKEEP);
        loop {
            pace.tick().await;
            recorded.run_upkeep();
        }
    }));
    axum::serve(listener, routes(health).merge(scrape(metrics)))
        .with_graceful_shutdown(async move { cancelled.cancelled().await })
        .await
}

/// `/metrics`.
fn scrape(metrics: PrometheusHandle) -> Router {
    let answer = async |State(metrics): State<PrometheusHandle>| {
        ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
    };
    Router::new().route("/metrics", get(answer)).with_state(metrics)
}

/// `/healthz`: restart me if this fails. `/readyz`: whether events are delivered.
fn routes(health: watch::Receiver<Health>) -> Router {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).with_state(health)
}

/// An outage of the database or the broker is no reason to restart a relay.
async fn alive(State(health): State<watch::Receiver<Health>>) -> (StatusCode, &'static str) {
    match *health.borrow() {
        Health::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "stopped\n"),
        _ => (StatusCode::OK, "alive\n"),
    }
}

async fn ready(State(health): State<watch::Receiver<Health>>) -> (StatusCode, String) {
    let health = health.borrow();
    let status = match *health {
        Health::Running => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, format!("{}\n", describe(&health)))
}

/// The relay's state in one line.
pub(crate) fn describe(health: &Health) -> String {
    match health {
        Health::Starting => "starting".to_owned(),
        Health::Running => "running".to_owned(),
        Health::BrokerUnavailable { reason } => format!("the broker is unavailable: {reason}"),
        Health::Interrupted { cause } => format!("interrupted: {cause}"),
        Health::Stopping => "stopping".to_owned(),
        Health::Stopped => "stopped".to_owned(),
        other => format!("{other:?}"),
    }
}
