//! Where do relays end again and again?

use diesel::Queryable;
use diesel::sql_types::{BigInt, Nullable, SmallInt, Text, Uuid as SqlUuid};
use diesel_async::AsyncPgConnection;
use uuid::Uuid;

use super::{Finding, Severity};
use crate::operation::{AdminError, begin_look, end, load};
use crate::statement::statement;

// One crash has many reasons. What is next in line: of the lowest events above what was done, the
// first one of the shard that is not delivered and not parked.
const CRASHED: &str = "\
SELECT c.subscription, c.shard, c.crashes, c.seq, n.id, n.event_type, n.aggregate_type, n.aggregate_id
FROM outbox.cursors c
LEFT JOIN outbox.ticks k ON k.tick = c.tick
LEFT JOIN LATERAL (
    SELECT w.id, w.event_type, w.aggregate_type, w.aggregate_id
    FROM (SELECT e.seq, e.xid, e.shard, e.id, e.event_type, e.aggregate_type, e.aggregate_id FROM outbox.events e
          WHERE e.seq > greatest(k.seq_before, c.seq) ORDER BY e.seq LIMIT 10000) w
    WHERE w.shard = c.shard AND NOT pg_visible_in_snapshot(w.xid, k.snapshot)
      AND NOT EXISTS (SELECT FROM outbox.parked p WHERE p.subscription = c.subscription AND p.seq = w.seq)
    ORDER BY w.seq LIMIT 1) n ON true
WHERE c.crashes > 1
ORDER BY c.subscription, c.shard";

type Columns = (
    Text,
    SmallInt,
    SmallInt,
    BigInt,
    Nullable<SqlUuid>,
    Nullable<Text>,
    Nullable<Text>,
    Nullable<Text>,
);

#[derive(Queryable)]
struct Crashed {
    subscription: String,
    shard: i16,
    crashes: i16,
    seq: i64,
    next: Option<Uuid>,
    event_type: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
}

pub(super) async fn examine(conn: &mut AsyncPgConnection) -> Result<Vec<Finding>, AdminError> {
    begin_look(conn).await?;
    let crashed = load(conn, statement::<Columns>(CRASHED)).await.map_err(AdminError::from);
    let crashed: Vec<Crashed> = end(conn, crashed).await?;
    let of_one = crashed.chunk_by(|one, other| one.subscription == other.subscription);
    Ok(of_one.map(finding).collect())
}

fn finding(shards: &[Crashed]) -> Finding {
    let subscription = &shards[0].subscription;
    let numbers: Vec<_> = shards.iter().map(|crashed| crashed.shard.to_string()).collect();
    let next = shards.iter().find_map(|crashed| crashed.next);
    Finding {
        name: "relays-crash",
        severity: Severity::Warning,
        summary: format!(
            "relays of subscription {subscription:?} end again and again at the same place, in shard {}",
            numbers.join(", ")
        ),
        evidence: shards.iter().map(Crashed::tell).collect(),
        remedy: match next {
            Some(id) => format!(
                "outbox find {id}  # and see in the relays' last logs why they ended; after three crashes it is parked, and the rest flows"
            ),
            None => {
                "outbox dead list  # and see in the relays' last logs why they ended".to_owned()
            }
        },
    }
}

impl Crashed {
    fn tell(&self) -> String {
        let Self { shard, crashes, seq, .. } = self;
        let next = match (&self.next, &self.event_type, &self.aggregate_type, &self.aggregate_id) {
            (Some(id), Some(event_type), Some(aggregate_type), Some(aggregate_id)) => {
                format!("next in line is {event_type} {id} of {aggregate_type} {aggregate_id}")
            }
            _ => "nothing is next in line".to_owned(),
        };
        // The count stops there.
        let times = if *crashes >= 3 { "three or more".to_owned() } else { crashes.to_string() };
        format!(
            "shard {shard}: {times} owners in a row did not give it back, behind seq {seq}; {next}"
        )
    }
}
