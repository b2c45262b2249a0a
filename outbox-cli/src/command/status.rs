//! `outbox status`.

use std::io;
use std::time::Duration;

use chrono::{DateTime, Utc};
use outbox_diesel::admin::{
    self, Events, Overview, Partition, ShardOverview, SubscriptionOverview,
};
use serde_json::{Value, json};

use super::partitions;
use crate::Global;
use crate::failure::Failure;
use crate::screen::{BAD, DIM, GOOD, HEAD, Screen, WARN};
use crate::times::{ago, parse_duration};

/// Shows how far every subscription is, who works on what, and the partitions. Costs the same
/// however large the log is.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    /// Only this subscription.
    #[arg(long, env = "OUTBOX_SUBSCRIPTION", value_name = "NAME")]
    subscription: Option<String>,
    /// Show all shards; else only those that are behind or have no owner.
    #[arg(long)]
    shards: bool,
    /// Show it again and again, with this pause.
    #[arg(long, value_parser = parse_duration, value_name = "DURATION", num_args = 0..=1, default_missing_value = "2s")]
    watch: Option<Duration>,
}

impl Status {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        let mut conn = global.target()?.open().await?;
        loop {
            let mut overview = admin::overview(&mut conn).await?;
            let partitions = admin::partitions(&mut conn).await?;
            if let Some(name) = &self.subscription {
                overview.subscriptions.retain(|subscription| subscription.name == *name);
                overview.relays.retain(|relay| relay.subscription == *name);
                if overview.subscriptions.is_empty() {
                    return Err(admin::AdminError::NoSubscription(name.clone()).into());
                }
            }
            if self.watch.is_some() && screen.is_terminal() {
                screen.line("\x1b[2J\x1b[H")?;
            }
            screen.show(
                || value(&overview, &partitions),
                |screen| self.show(&overview, &partitions, screen),
            )?;
            let Some(pause) = self.watch else { return Ok(()) };
            tokio::time::sleep(pause).await;
        }
    }

    fn show(
        &self,
        overview: &Overview,
        partitions: &[Partition],
        screen: &Screen,
    ) -> io::Result<()> {
        let log = &overview.log;
        let seq = log.last_seq.map_or_else(|| "unknown".to_owned(), |seq| seq.to_string());
        screen.line(format_args!(
            "{HEAD}log{HEAD:#}  at seq {seq}, {:.1} events/s emitted over the last minute, newest tick {} ago",
            log.emitted_per_second,
            ago(log.newest_tick_at, log.now)
        ))?;
        screen.line(format_args!("\n{HEAD}subscriptions{HEAD:#}"))?;
        screen.table(
            &[
                "NAME",
                "TOPICS",
                "DELIVERED/S",
                "PENDING",
                "OLDEST",
                "RETRYING",
                "HELD",
                "DEAD",
                "SHARDS",
                "RELAYS",
            ],
            overview.subscriptions.iter().map(|s| subscription_row(s, overview)).collect(),
        )?;
        self.show_shards(overview, screen)?;
        screen.line(format_args!("\n{HEAD}relays{HEAD:#}"))?;
        show_relays(overview, screen)?;
        screen.line(format_args!("\n{HEAD}partitions{HEAD:#}"))?;
        partitions::show(partitions, screen)?;
        let hint = "why is nothing delivered? outbox doctor";
        if screen.is_terminal() {
            screen.line(format_args!("\n{DIM}{hint}{DIM:#}"))
        } else {
            Ok(())
        }
    }

    fn show_shards(&self, overview: &Overview, screen: &Screen) -> io::Result<()> {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for subscription in &overview.subscriptions {
            for run in self.runs(&subscription.shards) {
                rows.push(shard_row(&subscription.name, run, overview));
            }
        }
        if rows.is_empty() {
            return screen.line(format_args!(
                "{GOOD}every shard has an owner and nothing before it{GOOD:#} (all of them: --shards)"
            ));
        }
        screen.line(format_args!("\n{HEAD}shards{HEAD:#}"))?;
        let head = ["SUBSCRIPTION", "SHARD", "OWNER", "LEASE", "PENDING", "OLDEST", "DELIVERED TO"];
        screen.table(&head, rows)
    }

    /// What to show: shards that are behind one by one, those without an owner together.
    fn runs<'a>(&self, shards: &'a [ShardOverview]) -> Vec<&'a [ShardOverview]> {
        if self.shards {
            return shards.chunks(1).collect();
        }
        let is_quiet = |shard: &ShardOverview| shard.pending == Events::Exactly(0);
        shards
            .chunk_by(|one, other| one.owner == other.owner && is_quiet(one) && is_quiet(other))
            .filter(|run| run[0].owner.is_none() || !is_quiet(&run[0]))
            .collect()
    }
}

fn age(at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> String {
    at.map_or_else(|| "-".to_owned(), |at| ago(at, now))
}

fn subscription_row(subscription: &SubscriptionOverview, overview: &Overview) -> Vec<String> {
    let owned = subscription.shards.iter().filter(|shard| shard.owner.is_some()).count();
    let live =
        |relay: &&admin::RelayOverview| relay.is_live && relay.subscription == subscription.name;
    vec![
        subscription.name.clone(),
        subscription.topics.as_ref().map_or_else(|| "all".to_owned(), |topics| topics.join(" ")),
        format!("{:.1}", subscription.delivered_per_second),
        subscription.pending.to_string(),
        age(subscription.oldest_pending_at, overview.log.now),
        subscription.retrying.to_string(),
        subscription.held.to_string(),
        subscription.dead.to_string(),
        format!("{owned}/{}", subscription.shards.len()),
        overview.relays.iter().filter(live).count().to_string(),
    ]
}

fn shard_row(subscription: &str, run: &[ShardOverview], overview: &Overview) -> Vec<String> {
    let now = overview.log.now;
    let (shard, last) = (&run[0], &run[run.len() - 1]);
    let host = shard.owner.map(|owner| {
        overview
            .relays
            .iter()
            .find(|relay| relay.id == owner)
            .map_or_else(|| owner.to_string(), |relay| relay.host.clone())
    });
    let lease = match (shard.owner, shard.leased_until) {
        (Some(_), Some(until)) => format!("{} left", ago(now, until)),
        _ => "none".to_owned(),
    };
    vec![
        subscription.to_owned(),
        if run.len() == 1 {
            shard.shard.to_string()
        } else {
            format!("{}-{}", shard.shard, last.shard)
        },
        host.unwrap_or_else(|| "nobody".to_owned()),
        lease,
        shard.pending.to_string(),
        age(shard.oldest_pending_at, now),
        shard.delivered_to.format("%Y-%m-%d %H:%M:%S").to_string(),
    ]
}

fn show_relays(overview: &Overview, screen: &Screen) -> io::Result<()> {
    if overview.relays.is_empty() {
        return screen.line(format_args!("{BAD}none{BAD:#}: outbox relay"));
    }
    let now = overview.log.now;
    let row = |relay: &admin::RelayOverview| {
        let state = if relay.is_live { relay.state.clone() } else { "gone".to_owned() };
        vec![
            relay.subscription.clone(),
            relay.host.clone(),
            state,
            ago(relay.state_since, now),
            ago(relay.seen_at, now),
            relay.shards.to_string(),
            relay.version.clone(),
            relay.id.to_string(),
        ]
    };
    let rows = overview.relays.iter().map(row).collect();
    screen.table(
        &["SUBSCRIPTION", "HOST", "STATE", "SINCE", "SEEN", "SHARDS", "VERSION", "ID"],
        rows,
    )?;
    let reasons = overview.relays.iter().filter(|relay| relay.is_live);
    let mut reasons =
        reasons.filter_map(|relay| relay.reason.as_ref().map(|reason| (relay, reason)));
    reasons.try_for_each(|(relay, reason)| {
        screen.line(format_args!("{WARN}{}{WARN:#}: {reason}", relay.host))
    })?;
    let mut sleepless = overview.relays.iter().filter(|relay| relay.is_live);
    sleepless.try_for_each(|relay| match &relay.sleepless {
        Some(why) => screen.line(format_args!("{WARN}{}{WARN:#} polls: {why}", relay.host)),
        None => Ok(()),
    })
}

/// A number of events, and whether it was counted.
pub(super) fn number(events: Events) -> Value {
    match events {
        Events::Exactly(number) => json!({ "events": number, "is": "exact" }),
        Events::AtMost(number) => json!({ "events": number, "is": "at_most" }),
        Events::MoreThan(number) => json!({ "events": number, "is": "more_than" }),
    }
}

fn value(overview: &Overview, partitions: &[Partition]) -> Value {
    let log = &overview.log;
    let relay = |relay: &admin::RelayOverview| {
        json!({
            "id": relay.id.to_string(), "subscription": relay.subscription, "host": relay.host,
            "version": relay.version, "role": relay.role, "started_at": relay.started_at.to_rfc3339(),
            "seen_at": relay.seen_at.to_rfc3339(), "is_live": relay.is_live, "state": relay.state,
            "state_since": relay.state_since.to_rfc3339(), "reason": relay.reason, "sleepless": relay.sleepless,
            "delivered_per_second": relay.delivered_per_second, "shards": relay.shards,
        })
    };
    json!({
        "log": {
            "last_seq": log.last_seq, "newest_tick_at": log.newest_tick_at.to_rfc3339(),
            "emitted_per_second": log.emitted_per_second, "now": log.now.to_rfc3339(),
        },
        "subscriptions": overview.subscriptions.iter().map(subscription_value).collect::<Vec<_>>(),
        "relays": overview.relays.iter().map(relay).collect::<Vec<_>>(),
        "partitions": partitions.iter().map(partitions::value).collect::<Vec<_>>(),
    })
}

/// A subscription with its shards.
pub(super) fn subscription_value(subscription: &SubscriptionOverview) -> Value {
    let time = |at: Option<DateTime<Utc>>| at.map(|at| at.to_rfc3339());
    let shard = |shard: &ShardOverview| {
        json!({
            "shard": shard.shard, "owner": shard.owner.map(|owner| owner.to_string()), "leased_until": time(shard.leased_until),
            "epoch": shard.epoch, "updated_at": shard.updated_at.to_rfc3339(),
            "delivered_to": shard.delivered_to.to_rfc3339(), "pending": number(shard.pending),
            "oldest_pending_at": time(shard.oldest_pending_at),
        })
    };
    json!({
        "name": subscription.name, "generation": subscription.generation,
        "created_at": subscription.created_at.to_rfc3339(), "topics": subscription.topics,
        "pending": number(subscription.pending), "oldest_pending_at": time(subscription.oldest_pending_at),
        "delivered_per_second": subscription.delivered_per_second,
        "retrying": number(subscription.retrying), "held": number(subscription.held),
        "dead": number(subscription.dead),
        "shards": subscription.shards.iter().map(shard).collect::<Vec<_>>(),
    })
}
