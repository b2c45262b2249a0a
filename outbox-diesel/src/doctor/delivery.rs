//! Who should deliver, and does he?

use chrono::{DateTime, TimeDelta, Utc};
use diesel::sql_types::{BigInt, Integer, Nullable, Text};
use diesel_async::AsyncPgConnection;

use super::{Finding, Severity, since, span};
use crate::admin::{Events, Overview, RelayOverview, ShardOverview, SubscriptionOverview};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

/// How long a shard may be between two owners.
const HANDOVER: TimeDelta = TimeDelta::seconds(10);
/// How old a committed event may be that is not delivered.
const LATE: TimeDelta = TimeDelta::seconds(60);

/// What relays and cursors tell.
pub(super) fn judge(overview: &Overview) -> Vec<Finding> {
    let mut findings = Vec::new();
    for subscription in &overview.subscriptions {
        let (live, gone): (Vec<_>, Vec<_>) = overview
            .relays
            .iter()
            .filter(|relay| relay.subscription == subscription.name)
            .partition(|relay| relay.is_live);
        if live.is_empty() {
            findings.push(no_relay(subscription, &gone, overview.log.now));
            continue;
        }
        findings.extend(unavailable(subscription, &live, overview.log.now));
        findings.extend(interrupted(subscription, &live, overview.log.now));
        findings.extend(no_owner(subscription, &live, overview.log.now));
        findings.extend(not_heard(subscription, &live));
    }
    findings
}

fn no_relay(
    subscription: &SubscriptionOverview,
    gone: &[&RelayOverview],
    now: DateTime<Utc>,
) -> Finding {
    let name = &subscription.name;
    let mut evidence = vec![backlog(subscription, now)];
    evidence.extend(gone.iter().map(|relay| {
        format!("relay {} on {} was last seen {}", relay.id, relay.host, since(relay.seen_at, now))
    }));
    if gone.is_empty() {
        evidence.push("none was seen within the last day".to_owned());
    }
    Finding {
        name: "no-relay",
        severity: Severity::Critical,
        summary: format!("no relay is running for subscription {name:?}"),
        evidence,
        remedy: format!("outbox relay --subscription {name}"),
    }
}

fn backlog(subscription: &SubscriptionOverview, now: DateTime<Utc>) -> String {
    let oldest = subscription
        .oldest_pending_at
        .map(|at| format!(", the oldest emitted {}", since(at, now)))
        .unwrap_or_default();
    format!("{} events are pending{oldest}", subscription.pending)
}

fn unavailable(
    subscription: &SubscriptionOverview,
    live: &[&RelayOverview],
    now: DateTime<Utc>,
) -> Option<Finding> {
    let cut: Vec<_> = live.iter().filter(|relay| relay.state == "broker_unavailable").collect();
    let first = cut.iter().min_by_key(|relay| relay.state_since)?;
    let mut evidence: Vec<_> = cut
        .iter()
        .map(|relay| {
            let reason = relay.reason.as_deref().unwrap_or("no reason given");
            format!("relay on {} since {}: {reason}", relay.host, since(relay.state_since, now))
        })
        .collect();
    evidence.push(backlog(subscription, now));
    Some(Finding {
        name: "publisher-unavailable",
        severity: Severity::Critical,
        summary: format!(
            "the broker of subscription {:?} is unavailable since {}, say {} of {} relays",
            subscription.name,
            since(first.state_since, now),
            cut.len(),
            live.len()
        ),
        evidence,
        remedy: "redis-cli -u \"$REDIS_URL\" PING  # then mend the broker: nothing is lost, and delivery goes on by itself".to_owned(),
    })
}

fn interrupted(
    subscription: &SubscriptionOverview,
    live: &[&RelayOverview],
    now: DateTime<Utc>,
) -> Option<Finding> {
    let cut: Vec<_> = live.iter().filter(|relay| relay.state == "interrupted").collect();
    let first = cut.iter().min_by_key(|relay| relay.state_since)?;
    let reason = first.reason.as_deref().unwrap_or("no reason given");
    Some(Finding {
        name: "relay-interrupted",
        severity: Severity::Critical,
        summary: format!(
            "{} of {} relays of subscription {:?} cannot work with the database: {reason}",
            cut.len(),
            live.len(),
            subscription.name
        ),
        evidence: cut
            .iter()
            .map(|relay| format!("relay on {} since {}", relay.host, since(relay.state_since, now)))
            .collect(),
        remedy: "do what the reason says; relays try again every few seconds".to_owned(),
    })
}

/// Shards that nobody has had for longer than a handover takes.
fn deserted(subscription: &SubscriptionOverview, now: DateTime<Utc>) -> Vec<&ShardOverview> {
    let free_since = |shard: &ShardOverview| {
        shard.updated_at.max(shard.leased_until.unwrap_or(shard.updated_at))
    };
    subscription
        .shards
        .iter()
        .filter(|shard| shard.owner.is_none() && now - free_since(shard) > HANDOVER)
        .collect()
}

fn no_owner(
    subscription: &SubscriptionOverview,
    live: &[&RelayOverview],
    now: DateTime<Utc>,
) -> Option<Finding> {
    // Those that started a moment ago are still taking theirs; those that cannot work are named.
    live.iter().find(|relay| relay.state != "interrupted" && now - relay.started_at > HANDOVER)?;
    let deserted = deserted(subscription, now);
    let first = deserted.first()?;
    let numbers: Vec<_> = deserted.iter().map(|shard| shard.shard.to_string()).collect();
    Some(Finding {
        name: "shard-without-owner",
        severity: Severity::Critical,
        summary: format!(
            "shard {} of subscription {:?} has no owner, though {} relays are running",
            numbers.join(", "),
            subscription.name,
            live.len()
        ),
        evidence: vec![
            format!("its cursor was last written {}", since(first.updated_at, now)),
            backlog(subscription, now),
        ],
        remedy: "outbox status  # then restart the relays that lease fewer shards than the others"
            .to_owned(),
    })
}

/// Relays that are to sleep until a commit wakes them, and are not woken.
fn not_heard(subscription: &SubscriptionOverview, live: &[&RelayOverview]) -> Option<Finding> {
    let polling: Vec<_> = live.iter().filter(|relay| relay.sleepless.is_some()).collect();
    if polling.is_empty() {
        return None;
    }
    let told = |relay: &&&RelayOverview| {
        format!("relay on {}: {}", relay.host, relay.sleepless.as_deref().unwrap_or_default())
    };
    Some(Finding {
        name: "listen-not-heard",
        severity: Severity::Warning,
        summary: format!(
            "{} of {} relays of subscription {:?} are to sleep until a commit wakes them, and poll",
            polling.len(),
            live.len(),
            subscription.name
        ),
        evidence: polling.iter().map(told).collect(),
        remedy: "outbox relay --wake listen --direct-url postgres://…  # past the pooler, or do what the relay says; --wake poll needs nothing".to_owned(),
    })
}

/// Delivery goes on, and is late.
pub(super) fn judge_lag(overview: &Overview) -> Vec<Finding> {
    let now = overview.log.now;
    let late = |subscription: &&SubscriptionOverview| {
        subscription.pending != Events::Exactly(0)
            && subscription.oldest_pending_at.is_some_and(|at| now - at > LATE)
    };
    overview
        .subscriptions
        .iter()
        .filter(late)
        .map(|subscription| Finding {
            name: "late",
            severity: Severity::Warning,
            summary: format!("subscription {:?} is behind", subscription.name),
            evidence: vec![
                backlog(subscription, now),
                format!("{:.1} events a second are emitted", overview.log.emitted_per_second),
            ],
            remedy: format!(
                "outbox relay --subscription {}  # one more; then look at the broker's latency",
                subscription.name
            ),
        })
        .collect()
}

// A claim steps over a row that somebody locks.
const LOCKS: &str = "\
SELECT a.pid, extract(epoch FROM clock_timestamp() - a.xact_start)::bigint, a.usename::text, a.state, left(a.query, 200)
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = 'outbox.cursors'::regclass AND l.granted
  AND l.database = outbox.database_oid() AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND a.xact_start < clock_timestamp() - interval '10 s' AND a.pid <> pg_backend_pid()
GROUP BY a.pid, a.xact_start, a.usename, a.state, a.query
ORDER BY a.xact_start LIMIT 10";

type LockColumns = (Integer, BigInt, Nullable<Text>, Nullable<Text>, Nullable<Text>);
type LockRow = (i32, i64, Option<String>, Option<String>, Option<String>);

/// Who keeps relays from taking shards.
pub(super) async fn examine_locks(
    conn: &mut AsyncPgConnection,
    overview: Option<&Overview>,
) -> Result<Vec<Finding>, AdminError> {
    let is_deserted =
        |o: &Overview| o.subscriptions.iter().any(|s| !deserted(s, o.log.now).is_empty());
    if !overview.is_some_and(is_deserted) {
        return Ok(Vec::new());
    }
    begin_look(conn).await?;
    let locks = load(conn, statement::<LockColumns>(LOCKS)).await.map_err(AdminError::from);
    let locks: Vec<LockRow> = end(conn, locks).await?;
    Ok(locks
        .into_iter()
        .map(|(pid, seconds, role, state, query)| Finding {
            name: "cursors-locked",
            severity: Severity::Critical,
            summary: format!(
                "process {pid} locks rows of outbox.cursors, so that no relay can take them"
            ),
            evidence: vec![
                format!(
                    "its transaction is {} old, {}, of role {}",
                    span(TimeDelta::seconds(seconds)),
                    state.unwrap_or_default(),
                    role.unwrap_or_default()
                ),
                format!("its last statement: {}", query.unwrap_or_default()),
            ],
            remedy: format!("SELECT pg_terminate_backend({pid})"),
        })
        .collect())
}
