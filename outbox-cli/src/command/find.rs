//! `outbox find`.

use outbox_diesel::admin::{self, Found, Place};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Global;
use crate::failure::Failure;
use crate::screen::{HEAD, Screen};

/// Finds an event by its id, and tells where it stands in each subscription. An id that is no UUIDv7
/// has the whole log read.
#[derive(Debug, clap::Args)]
pub(crate) struct Find {
    /// The event's id.
    event_id: Uuid,
}

impl Find {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        let spinner = screen.spinner("reading the log");
        let found = admin::find(&mut conn, self.event_id).await;
        spinner.finish_and_clear();
        let found = found?;
        Ok(screen.show(|| value(&found), |screen| show(&found, screen))?)
    }
}

fn value(found: &Found) -> Value {
    let place = |place: &Place| {
        json!({
            "subscription": place.subscription, "status": place.status.as_str(), "attempts": place.attempts,
            "next_attempt_at": place.next_attempt_at.map(|at| at.to_rfc3339()),
            "error": place.error, "reason": place.reason,
        })
    };
    json!({
        "event_id": found.event_id.to_string(), "seq": found.seq, "shard": found.shard, "topic": found.topic,
        "aggregate_type": found.aggregate_type, "aggregate_id": found.aggregate_id,
        "event_type": found.event_type, "event_version": found.event_version, "dedup_key": found.dedup_key,
        "payload": found.payload, "headers": found.headers, "created_at": found.created_at.to_rfc3339(),
        "places": found.places.iter().map(place).collect::<Vec<_>>(),
    })
}

fn show(found: &Found, screen: &Screen) -> std::io::Result<()> {
    let facts = [
        ("event", found.event_id.to_string()),
        ("type", format!("{} (version {})", found.event_type, found.event_version)),
        ("aggregate", format!("{} {}", found.aggregate_type, found.aggregate_id)),
        ("topic", found.topic.clone()),
        ("emitted", found.created_at.to_rfc3339()),
        ("seq, shard", format!("{}, {}", found.seq, found.shard)),
        ("dedup key", found.dedup_key.clone().unwrap_or_default()),
        ("headers", found.headers.clone()),
        ("payload", found.payload.clone()),
    ];
    facts
        .iter()
        .try_for_each(|(name, fact)| screen.line(format_args!("{HEAD}{name:<12}{HEAD:#}{fact}")))?;
    let row = |place: &Place| {
        let why = place.reason.as_ref().or(place.error.as_ref());
        vec![
            place.subscription.clone(),
            place.status.to_string(),
            place.attempts.to_string(),
            place.next_attempt_at.map(|at| at.to_rfc3339()).unwrap_or_default(),
            why.cloned().unwrap_or_default(),
        ]
    };
    screen.line("")?;
    screen.table(
        &["SUBSCRIPTION", "STATUS", "ATTEMPTS", "NEXT ATTEMPT", "WHY"],
        found.places.iter().map(row).collect(),
    )
}
