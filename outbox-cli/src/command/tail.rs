//! `outbox tail`.

use outbox_diesel::publish::OwnedMessage;
use outbox_diesel::tail;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::Global;
use crate::failure::{Failure, chain};
use crate::screen::{DIM, HEAD, Screen};

/// Follows events as they commit, each once and those of a transaction together, without touching
/// any subscription. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
pub(crate) struct Tail {
    /// Only these topics.
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Only these event types.
    #[arg(long = "event-type", value_name = "TYPE")]
    event_types: Vec<String>,
    /// Only this aggregate id.
    #[arg(long, value_name = "ID")]
    aggregate_id: Option<String>,
    /// Show payloads too. JSON always has them.
    #[arg(long)]
    payload: bool,
    /// End after so many events.
    #[arg(long, value_name = "EVENTS")]
    limit: Option<u64>,
}

impl Tail {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let target = global.target()?;
        drop(target.open().await?);
        let mut tail = tail::Tail::from_now(target.pool().await?).await?;
        if screen.is_terminal() {
            screen.line(format_args!("{DIM}following what commits from now on{DIM:#}"))?;
        }
        let mut shown = 0;
        loop {
            let events = tokio::select! {
                events = tail.next() => events?,
                interrupted = tokio::signal::ctrl_c() => return Ok(interrupted?),
            };
            for event in events.iter().filter(|event| self.wants(event)) {
                self.show(event, screen)?;
                shown += 1;
                if self.limit.is_some_and(|limit| shown >= limit) {
                    return Ok(());
                }
            }
        }
    }

    fn wants(&self, event: &OwnedMessage) -> bool {
        let is_among =
            |words: &[String], word: &str| words.is_empty() || words.iter().any(|w| w == word);
        is_among(&self.topics, event.topic())
            && is_among(&self.event_types, event.event_type())
            && self.aggregate_id.as_ref().is_none_or(|id| id == event.aggregate_id())
    }

    fn show(&self, event: &OwnedMessage, screen: &Screen) -> Result<(), Failure> {
        if screen.is_json() {
            return Ok(screen.line(Line::json(event)?)?);
        }
        let payload = if self.payload { format!(" {}", event.payload()) } else { String::new() };
        Ok(screen.line(format_args!(
            "{DIM}{}{DIM:#} {HEAD}{}{HEAD:#} {} {} {DIM}{} {}{DIM:#}{payload}",
            event.created_at().format("%H:%M:%S%.3f"),
            event.event_type(),
            event.aggregate_type(),
            event.aggregate_id(),
            event.topic(),
            event.id(),
        ))?)
    }
}

/// An event as a line of JSON, with payload and headers as they were emitted.
#[derive(Serialize)]
struct Line<'a> {
    event_id: String,
    seq: i64,
    topic: &'a str,
    aggregate_type: &'a str,
    aggregate_id: &'a str,
    event_type: &'a str,
    event_version: i16,
    dedup_key: Option<&'a str>,
    created_at: String,
    payload: &'a RawValue,
    headers: &'a RawValue,
}

impl Line<'_> {
    fn json(event: &OwnedMessage) -> Result<String, Failure> {
        // PostgreSQL takes JSON that serde_json does not: deeper nesting, for example.
        let raw = |text| serde_json::from_str::<&RawValue>(text);
        let unreadable = |error: serde_json::Error| {
            Failure::new(format!("event {} cannot be shown as JSON: {}", event.id(), chain(&error)))
        };
        let line = Line {
            event_id: event.id().to_string(),
            seq: event.seq(),
            topic: event.topic(),
            aggregate_type: event.aggregate_type(),
            aggregate_id: event.aggregate_id(),
            event_type: event.event_type(),
            event_version: event.event_version(),
            dedup_key: event.dedup_key(),
            created_at: event.created_at().to_rfc3339(),
            payload: raw(event.payload()).map_err(unreadable)?,
            headers: raw(event.headers()).map_err(unreadable)?,
        };
        // A line break within a payload is whitespace: it may be a space as well.
        let line = serde_json::to_string(&line).map_err(unreadable)?;
        Ok(line.replace(['\n', '\r'], " "))
    }
}
