//! What an orchestrator asks a relay by HTTP.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use outbox_diesel::Health;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Answers until cancelled.
pub(crate) async fn serve(
    listener: TcpListener,
    health: watch::Receiver<Health>,
    cancelled: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, routes(health))
        .with_graceful_shutdown(async move { cancelled.cancelled().await })
        .await
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
