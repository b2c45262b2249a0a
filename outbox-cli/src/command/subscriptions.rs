//! `outbox subscriptions`.

use outbox_diesel::admin::{self, SkipPlan};
use outbox_diesel::subscription::{self, Start};
use serde_json::{Value, json};

use super::status::{number, subscription_value};
use crate::Global;
use crate::failure::Failure;
use crate::screen::{GOOD, Screen, WARN};
use crate::times::parse_time;

/// What to do with subscriptions: named groups of relays, each with its own cursors and failures.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subscriptions {
    /// Lists them.
    List,
    /// Creates one. An existing one is left as it is.
    Create {
        /// Its name.
        name: String,
        /// Begin with what commits from `now` on, with the `earliest` event that is kept, or at a time.
        #[arg(long, default_value = "now", value_parser = parse_start, value_name = "WHERE")]
        start: Start,
        /// Only these topics. Default: all.
        #[arg(long = "topic", value_name = "TOPIC")]
        topics: Vec<String>,
    },
    /// Removes one with its cursors. What it has not delivered, it never will.
    Remove {
        /// Its name.
        name: String,
        /// Really.
        #[arg(long)]
        yes: bool,
    },
    /// Moves one back: it delivers again all from there on, with the same event ids.
    Rewind {
        /// Its name.
        name: String,
        /// To the `earliest` event that is kept, or to a time.
        #[arg(long, value_parser = parse_start, value_name = "WHERE")]
        to: Start,
        /// Really.
        #[arg(long)]
        yes: bool,
    },
    /// Changes which topics one gets, of what commits from now on.
    Topics {
        /// Its name.
        name: String,
        /// Only these.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        topics: Vec<String>,
        /// All of them.
        #[arg(long)]
        all: bool,
    },
    /// Moves one forward, past events that nobody wants any more. Shows the plan; --yes does it.
    Skip {
        /// Its name.
        name: String,
        /// To what commits from `now` on, or after a time.
        #[arg(long, default_value = "now", value_parser = parse_start, value_name = "WHERE")]
        to: Start,
        /// Do it.
        #[arg(long)]
        yes: bool,
    },
}

fn parse_start(text: &str) -> Result<Start, String> {
    match text {
        "now" => Ok(Start::Now),
        "earliest" => Ok(Start::Earliest),
        time => parse_time(time)
            .map(Start::Since)
            .map_err(|hint| format!("write now, earliest or a time: {hint}")),
    }
}

impl Subscriptions {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        let conn = &mut conn;
        match self {
            Self::List => {
                let subscriptions = admin::overview(conn).await?.subscriptions;
                let values = || subscriptions.iter().map(subscription_value).collect();
                let row = |s: &admin::SubscriptionOverview| {
                    let topics = s
                        .topics
                        .as_ref()
                        .map_or_else(|| "all".to_owned(), |topics| topics.join(" "));
                    vec![
                        s.name.clone(),
                        topics,
                        s.pending.to_string(),
                        s.dead.to_string(),
                        s.created_at.to_rfc3339(),
                    ]
                };
                let rows = subscriptions.iter().map(row).collect();
                screen.show(values, |screen| {
                    screen.table(&["NAME", "TOPICS", "PENDING", "DEAD", "CREATED AT"], rows)
                })?;
            }
            Self::Create { name, start, topics } => {
                let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
                let created = subscription::create(conn, name, *start, &topics).await?;
                let text = if created {
                    format!(
                        "created {name}; run its relays with: outbox relay --subscription {name}"
                    )
                } else {
                    format!("{name} exists, and was left as it is")
                };
                screen.show(
                    || json!({ "name": name, "created": created }),
                    |screen| screen.line(text),
                )?;
            }
            Self::Remove { name, yes } => {
                confirm(
                    *yes,
                    &format!("{name} would be removed: what it has not delivered, it never will"),
                )?;
                if !subscription::remove(conn, name).await? {
                    return Err(admin::AdminError::NoSubscription(name.clone()).into());
                }
                screen.show(
                    || json!({ "name": name, "removed": true }),
                    |screen| screen.line(format_args!("removed {name}")),
                )?;
            }
            Self::Rewind { name, to, yes } => {
                confirm(
                    *yes,
                    &format!("{name} would deliver again what it has delivered since then"),
                )?;
                let from = subscription::rewind(conn, name, *to).await?.to_rfc3339();
                screen.show(
                    || json!({ "name": name, "from": from }),
                    |screen| screen.line(format_args!("{name} delivers again all from {from} on")),
                )?;
            }
            Self::Topics { name, topics, all: _ } => {
                let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
                let changed = subscription::set_topics(conn, name, &topics).await?;
                let text = match (changed, topics.is_empty()) {
                    (false, _) => format!("{name} gets these already"),
                    (true, true) => format!("{name} gets all topics of what commits from now on"),
                    (true, false) => {
                        format!("{name} gets {} of what commits from now on", topics.join(", "))
                    }
                };
                screen.show(
                    || json!({ "name": name, "topics": topics, "changed": changed }),
                    |screen| screen.line(text),
                )?;
            }
            Self::Skip { name, to, yes } => skip(conn, name, *to, *yes, screen).await?,
        }
        Ok(())
    }
}

fn confirm(yes: bool, what: &str) -> Result<(), Failure> {
    if yes {
        Ok(())
    } else {
        Err(Failure::usage(what).advice("nothing was done; give --yes to do it"))
    }
}

async fn skip(
    conn: &mut diesel_async::AsyncPgConnection,
    name: &str,
    to: Start,
    yes: bool,
    screen: &Screen,
) -> Result<(), Failure> {
    let plan = admin::plan_skip(conn, name, to).await?;
    if !yes {
        let value = || plan_value(&plan, false);
        return Ok(screen.show(value, |screen| {
            screen.line(format_args!(
                "{WARN}{} events{WARN:#} of subscription {name} would not be delivered: it would go on with what commits after {}",
                plan.events,
                plan.to.to_rfc3339()
            ))?;
            screen.line("nothing was done; give --yes to do it")
        })?);
    }
    let events = admin::skip(conn, &plan).await?;
    let value = || {
        let mut value = plan_value(&plan, true);
        value["events"] = number(events);
        value
    };
    Ok(screen.show(value, |screen| {
        screen.line(format_args!("{GOOD}skipped{GOOD:#} {events} events of subscription {name}"))
    })?)
}

fn plan_value(plan: &SkipPlan, done: bool) -> Value {
    json!({ "name": plan.subscription, "to": plan.to.to_rfc3339(), "events": number(plan.events), "done": done })
}
