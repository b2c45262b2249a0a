//! `outbox replay`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel_async::AsyncPgConnection;
use outbox_diesel::admin::{self, Progress};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Global;
use crate::failure::Failure;
use crate::screen::{DIM, Screen, WARN};
use crate::times::parse_time;

type Setter = fn(admin::Replay, String) -> admin::Replay;

/// What to do with replays.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Replay {
    /// Starts one: relays send the events once more, beside the stream, with the header outbox-replay.
    Start(Start),
    /// Tells how far one is.
    Status {
        /// The replay's id.
        id: Uuid,
    },
    /// Ends one.
    Cancel {
        /// The replay's id.
        id: Uuid,
    },
}

/// Which delivered events, and how fast.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// Whose.
    #[arg(long, default_value = "default", value_name = "NAME")]
    subscription: String,
    /// Only events emitted at this time or later: 2026-11-30T12:00:00Z, or 2h for two hours ago.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    since: Option<DateTime<Utc>>,
    /// Only events emitted before this time.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    until: Option<DateTime<Utc>>,
    /// Only those of this topic.
    #[arg(long)]
    topic: Option<String>,
    /// Only those of aggregates of this type.
    #[arg(long)]
    aggregate_type: Option<String>,
    /// Only those of aggregates with this id.
    #[arg(long)]
    aggregate_id: Option<String>,
    /// Only those of this event type.
    #[arg(long)]
    event_type: Option<String>,
    /// How many events a second, over all relays.
    #[arg(long, default_value_t = 100, value_name = "EVENTS")]
    per_second: u16,
    /// Also events that consumers' inboxes may have forgotten, and would handle once more: those
    /// older than 14 days whose id is no UUIDv7. Else they are refused.
    #[arg(long)]
    forgotten_too: bool,
    /// Wait for its end.
    #[arg(long)]
    wait: bool,
}

impl Start {
    fn replay(&self) -> admin::Replay {
        let mut replay = admin::Replay::of(self.subscription.clone()).per_second(self.per_second);
        if self.forgotten_too {
            replay = replay.forgotten_too();
        }
        if let Some(since) = self.since {
            replay = replay.since(since);
        }
        if let Some(until) = self.until {
            replay = replay.until(until);
        }
        let texts: [(&Option<String>, Setter); 4] = [
            (&self.topic, admin::Replay::topic),
            (&self.aggregate_type, admin::Replay::aggregate_type),
            (&self.aggregate_id, admin::Replay::aggregate_id),
            (&self.event_type, admin::Replay::event_type),
        ];
        for (value, set) in texts {
            if let Some(value) = value {
                replay = set(replay, value.clone());
            }
        }
        replay
    }
}

impl Replay {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        let (id, progress) = match self {
            Self::Start(start) => {
                let id = admin::replay(&mut conn, &start.replay()).await?;
                let progress = if start.wait {
                    wait(&mut conn, id, screen).await?
                } else {
                    admin::replay_progress(&mut conn, id).await?
                };
                (id, progress)
            }
            Self::Status { id } => (*id, admin::replay_progress(&mut conn, *id).await?),
            Self::Cancel { id } => (*id, admin::cancel_replay(&mut conn, *id).await?),
        };
        Ok(screen.show(|| value(id, &progress), |screen| show(id, &progress, screen))?)
    }
}

async fn wait(
    conn: &mut AsyncPgConnection,
    id: Uuid,
    screen: &Screen,
) -> Result<Progress, Failure> {
    let mut progress = admin::replay_progress(conn, id).await?;
    let length = u64::try_from(progress.left).unwrap_or(0);
    let bar = screen.bar(length);
    while progress.finished_at.is_none() {
        bar.set_position(length.saturating_sub(u64::try_from(progress.left).unwrap_or(0)));
        bar.set_message(format!("{} sent", progress.sent));
        tokio::time::sleep(Duration::from_millis(200)).await;
        progress = admin::replay_progress(conn, id).await?;
    }
    bar.finish_and_clear();
    Ok(progress)
}

fn value(id: Uuid, progress: &Progress) -> Value {
    json!({
        "id": id.to_string(), "subscription": progress.subscription, "sent": progress.sent, "refused": progress.refused,
        "error": progress.error, "left": progress.left, "cancelled": progress.cancelled,
        "finished_at": progress.finished_at.map(|at| at.to_rfc3339()),
    })
}

fn show(id: Uuid, progress: &Progress, screen: &Screen) -> std::io::Result<()> {
    let state = match (progress.finished_at, progress.cancelled) {
        (Some(_), true) => "cancelled",
        (Some(_), false) => "done",
        (None, _) => "under way",
    };
    screen.line(format_args!(
        "replay {id} of subscription {}: {state}, {} events sent, {} refused",
        progress.subscription, progress.sent, progress.refused
    ))?;
    if let Some(error) = &progress.error {
        screen.line(format_args!("{WARN}refused because{WARN:#}: {error}"))?;
    }
    if progress.finished_at.is_none() && screen.is_terminal() {
        screen.line(format_args!("{DIM}how far is it? outbox replay status {id}{DIM:#}"))?;
    }
    Ok(())
}
