//! Which aggregates stand still, and behind which event?

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use diesel::Queryable;
use diesel::sql_types::{BigInt, Bool, Integer, Nullable, Text, Timestamptz, Uuid as SqlUuid};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use super::{Finding, Severity, since, span};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

// The first ones of each kind and subscription; what waits behind each is counted up to 1,000.
const HEADS: &str = "\
SELECT p.subscription, p.id, p.aggregate_type, p.aggregate_id, p.event_type, p.attempts, left(p.error, 300), p.dead,
       p.parked_at, p.next_attempt_at, clock_timestamp(),
       (SELECT count(*) FROM (
            SELECT FROM outbox.parked h
            WHERE p.holds AND h.holds AND h.subscription = p.subscription AND h.shard = p.shard
              AND h.aggregate_type = p.aggregate_type AND h.aggregate_id = p.aggregate_id
              AND (h.tick, h.seq) > (p.tick, p.seq) LIMIT 1000) held)
FROM outbox.subscriptions s
CROSS JOIN LATERAL (
    (SELECT * FROM outbox.parked p WHERE p.subscription = s.name AND p.dead ORDER BY p.seq LIMIT 10)
    UNION ALL
    (SELECT * FROM outbox.parked p
     WHERE p.subscription = s.name AND p.next_attempt_at IS NOT NULL AND p.attempts > 0
     ORDER BY p.shard, p.next_attempt_at LIMIT 10)) p
ORDER BY p.subscription, p.dead DESC, p.seq";

type Columns = (
    Text,
    SqlUuid,
    Text,
    Text,
    Text,
    Integer,
    Nullable<Text>,
    Bool,
    Timestamptz,
    Nullable<Timestamptz>,
    Timestamptz,
    BigInt,
);

#[derive(Queryable)]
struct Head {
    subscription: String,
    id: Uuid,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    attempts: i32,
    error: Option<String>,
    dead: bool,
    parked_at: DateTime<Utc>,
    next_attempt_at: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    held: i64,
}

impl Head {
    fn tell(&self) -> String {
        let Self { id, aggregate_type, aggregate_id, event_type, attempts, held, .. } = self;
        let error = self.error.as_deref().unwrap_or("no error recorded");
        let fate = match self.next_attempt_at {
            Some(at) if at > self.now => format!("tried again in {}", span(at - self.now)),
            Some(_) => "due now".to_owned(),
            None => "dead".to_owned(),
        };
        format!(
            "{aggregate_type} {aggregate_id}: {event_type} {id}, {fate}, {attempts} attempts since {}, {held} events behind it: {error}",
            since(self.parked_at, self.now)
        )
    }
}

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    begin_look(conn).await?;
    let heads = load(conn, statement::<Columns>(HEADS)).await.map_err(AdminError::from);
    let heads: Vec<Head> = end(conn, heads).await?;
    let mut dead: BTreeMap<String, Vec<Head>> = BTreeMap::new();
    let mut failing: BTreeMap<String, Vec<Head>> = BTreeMap::new();
    for head in heads {
        let kind = if head.dead { &mut dead } else { &mut failing };
        kind.entry(head.subscription.clone()).or_default().push(head);
    }
    let dead = dead.iter().filter_map(|(name, heads)| dead_letters(name, heads));
    let failing = failing.iter().filter_map(|(name, heads)| rejected(name, heads));
    Ok(dead.chain(failing).collect())
}

fn dead_letters(subscription: &str, heads: &[Head]) -> Option<Finding> {
    // The one that holds most is the one to look at.
    let worst = heads.iter().rev().max_by_key(|head| head.held)?;
    let id = worst.id;
    let (name, severity, summary) = if worst.held > 0 {
        (
            "aggregate-held",
            Severity::Critical,
            format!(
                "{} {} of subscription {subscription:?} is held by its dead event {id}",
                worst.aggregate_type, worst.aggregate_id
            ),
        )
    } else {
        (
            "dead-letters",
            Severity::Warning,
            format!(
                "subscription {subscription:?} has dead letters, and nothing waits behind them"
            ),
        )
    };
    Some(Finding {
        name,
        severity,
        summary,
        evidence: heads.iter().map(Head::tell).collect(),
        remedy: format!(
            "outbox dead retry --subscription {subscription} {id}  # once the cause is mended; or: outbox dead discard --subscription {subscription} {id} --reason …"
        ),
    })
}

fn rejected(subscription: &str, heads: &[Head]) -> Option<Finding> {
    let worst = heads.iter().rev().max_by_key(|head| head.attempts)?;
    Some(Finding {
        name: "event-rejected",
        severity: Severity::Warning,
        summary: format!(
            "the broker rejects event {} of {} {}, subscription {subscription:?}",
            worst.id, worst.aggregate_type, worst.aggregate_id
        ),
        evidence: heads.iter().map(Head::tell).collect(),
        remedy: format!(
            "outbox find {}  # mend what the error says, then: outbox dead retry --subscription {subscription} {}",
            worst.id, worst.id
        ),
    })
}
