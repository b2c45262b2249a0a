//! Park: puts aside events that the broker rejected, and those that must wait behind them. A park
//! is committed before any later position of the shard goes out.

mod text;

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::sql_types::{
    Array, BigInt, Bool, Integer, Json, Nullable, SmallInt, Text, Timestamptz, Uuid as SqlUuid,
};
use uuid::Uuid;

pub(crate) use self::text::storable;
use crate::lease::Identity;
use crate::message::Message;
use crate::options::{Order, RelayOptions, RetryOptions};
use crate::session::{Mode, Session, SessionError};
use crate::statement::{RawJson, statement};

/// What is stored of an event until it is known better.
pub(crate) const DEADLY: &str = "the relay ended while it was tried";

/// Why an event is parked.
#[derive(Debug, Clone)]
pub(crate) enum Reason {
    /// The broker rejected it, for the reason given.
    Rejected(String),
    /// It was sent alone, and there was no answer, as told: perhaps its fault, perhaps nobody's. No
    /// attempt is counted.
    Unanswered(String),
    /// Relays ended when it was next, or may have. No attempt is counted before it is tried alone.
    Deadly,
    /// It waits behind an earlier event of its aggregate.
    Held,
}

impl Reason {
    /// What becomes of the event. One that is held is not dead, but not due either.
    pub(crate) fn fate(&self, retry: &RetryOptions) -> Fate {
        let holds = retry.order != Order::Unordered;
        match self {
            Self::Rejected(_) => fate(1, retry),
            Self::Unanswered(_) => Fate { pause: Some(pause(1, retry)), holds },
            Self::Deadly => Fate { pause: Some(Duration::ZERO), holds },
            Self::Held => Fate { pause: None, holds },
        }
    }
}

/// What becomes of an event after it failed this often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fate {
    /// It is tried again after this; None: it is dead.
    pub(crate) pause: Option<Duration>,
    /// Whether later events of its aggregate wait for it.
    pub(crate) holds: bool,
}

/// Full jitter: a random pause, so that what failed together does not come back together.
pub(crate) fn fate(attempts: u16, retry: &RetryOptions) -> Fate {
    let is_dead = attempts >= retry.attempts;
    Fate {
        pause: (!is_dead).then(|| pause(attempts, retry)),
        holds: match retry.order {
            Order::Hold => true,
            Order::Skip => !is_dead,
            Order::Unordered => false,
        },
    }
}

/// How long an event waits that failed this often and is not dead.
pub(crate) fn pause(attempts: u16, retry: &RetryOptions) -> Duration {
    retry.longest_pause(attempts).mul_f64(fastrand::f64())
}

// The cursors are locked: a zombie whose shard was taken over parks nothing.
const PARK: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    JOIN unnest($1::smallint[], $2::bigint[]) AS o (shard, epoch) ON o.shard = c.shard AND o.epoch = c.epoch
    WHERE c.subscription = $3 AND c.owner = $4
    ORDER BY c.shard FOR UPDATE OF c
), parked AS (
    INSERT INTO outbox.parked (subscription, shard, tick, seq, id, topic, aggregate_type, aggregate_id, event_type,
        event_version, dedup_key, payload, headers, created_at, attempts, next_attempt_at, error, dead, holds, alone)
    SELECT $5, e.shard, e.tick, e.seq, e.id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type,
        e.event_version, e.dedup_key, e.payload, e.headers, e.created_at, e.attempts,
        clock_timestamp() + e.pause * interval '1 ms', e.error, e.dead, e.holds, e.alone
    FROM unnest($6::smallint[], $7::bigint[], $8::bigint[], $9::uuid[], $10::text[], $11::text[], $12::text[],
                $13::text[], $14::smallint[], $15::text[], $16::json[], $17::json[], $18::timestamptz[],
                $19::integer[], $20::bigint[], $21::text[], $22::boolean[], $23::boolean[], $24::boolean[])
        AS e (shard, tick, seq, id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key,
              payload, headers, created_at, attempts, pause, error, dead, holds, alone)
    JOIN mine ON mine.shard = e.shard
    ON CONFLICT (subscription, seq) DO NOTHING
)
SELECT shard FROM mine";

/// Parks events of the shards given with their epochs, and returns the shards that are still ours.
pub(crate) async fn park(
    session: &mut Session,
    who: &Identity,
    epochs: &[(u8, i64)],
    events: &[(Message<'_>, Reason)],
    options: &RelayOptions,
) -> Result<Vec<i16>, SessionError> {
    let mut rows = Rows::default();
    for (message, reason) in events {
        rows.push(message, reason, options.retry_of(message.event_type()));
    }
    session
        .load(
            Mode::Durable,
            statement::<SmallInt>(PARK)
                .bind::<Array<SmallInt>, _>(
                    epochs.iter().map(|(shard, _)| i16::from(*shard)).collect::<Vec<_>>(),
                )
                .bind::<Array<BigInt>, _>(
                    epochs.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>(),
                )
                .bind::<Text, _>(who.subscription.clone())
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<Array<SmallInt>, _>(rows.shard)
                .bind::<Array<BigInt>, _>(rows.tick)
                .bind::<Array<BigInt>, _>(rows.seq)
                .bind::<Array<SqlUuid>, _>(rows.id)
                .bind::<Array<Text>, _>(rows.topic)
                .bind::<Array<Text>, _>(rows.aggregate_type)
                .bind::<Array<Text>, _>(rows.aggregate_id)
                .bind::<Array<Text>, _>(rows.event_type)
                .bind::<Array<SmallInt>, _>(rows.event_version)
                .bind::<Array<Nullable<Text>>, _>(rows.dedup_key)
                .bind::<Array<Json>, _>(rows.payload)
                .bind::<Array<Json>, _>(rows.headers)
                .bind::<Array<Timestamptz>, _>(rows.created_at)
                .bind::<Array<Integer>, _>(rows.attempts)
                .bind::<Array<Nullable<BigInt>>, _>(rows.pause)
                .bind::<Array<Nullable<Text>>, _>(rows.error)
                .bind::<Array<Bool>, _>(rows.dead)
                .bind::<Array<Bool>, _>(rows.holds)
                .bind::<Array<Bool>, _>(rows.alone),
        )
        .await
}

/// Events column by column.
#[derive(Default)]
struct Rows {
    shard: Vec<i16>,
    tick: Vec<i64>,
    seq: Vec<i64>,
    id: Vec<Uuid>,
    topic: Vec<String>,
    aggregate_type: Vec<String>,
    aggregate_id: Vec<String>,
    event_type: Vec<String>,
    event_version: Vec<i16>,
    dedup_key: Vec<Option<String>>,
    payload: Vec<RawJson>,
    headers: Vec<RawJson>,
    created_at: Vec<DateTime<Utc>>,
    attempts: Vec<i32>,
    pause: Vec<Option<i64>>,
    error: Vec<Option<String>>,
    dead: Vec<bool>,
    holds: Vec<bool>,
    alone: Vec<bool>,
}

impl Rows {
    fn push(&mut self, message: &Message<'_>, reason: &Reason, retry: &RetryOptions) {
        let fate = reason.fate(retry);
        let error = match reason {
            Reason::Rejected(error) | Reason::Unanswered(error) => Some(storable(error)),
            Reason::Deadly => Some(String::from(DEADLY)),
            Reason::Held => None,
        };
        let is_rejected = matches!(reason, Reason::Rejected(_));
        self.shard.push(message.shard().into());
        self.tick.push(message.tick());
        self.seq.push(message.seq());
        self.id.push(message.id());
        self.topic.push(message.topic().to_owned());
        self.aggregate_type.push(message.aggregate_type().to_owned());
        self.aggregate_id.push(message.aggregate_id().to_owned());
        self.event_type.push(message.event_type().to_owned());
        self.event_version.push(message.event_version());
        self.dedup_key.push(message.dedup_key().map(str::to_owned));
        self.payload.push(RawJson(message.payload().as_bytes().to_vec()));
        self.headers.push(RawJson(message.headers().as_bytes().to_vec()));
        self.created_at.push(message.created_at());
        self.attempts.push(is_rejected.into());
        self.pause.push(fate.pause.map(millis));
        self.error.push(error);
        self.dead.push(is_rejected && fate.pause.is_none());
        self.holds.push(fate.holds);
        self.alone.push(matches!(reason, Reason::Deadly));
    }
}

pub(crate) fn millis(pause: Duration) -> i64 {
    // Later than any cap that makes sense, and no timestamp overflows by it.
    const YEAR: u128 = 365 * 24 * 3600 * 1000;
    i64::try_from(pause.as_millis().min(YEAR)).unwrap_or(0)
}

const PARKED_ALREADY: &str = "\
SELECT p.shard, p.tick, p.seq, p.aggregate_type, p.aggregate_id, p.holds FROM outbox.parked p
WHERE p.subscription = $1 AND p.shard = ANY ($2::smallint[])";

/// What is parked of a shard: the main path passes over these events, and parks later ones of
/// their aggregates.
#[derive(Debug, diesel::Queryable)]
pub(crate) struct Parked {
    pub(crate) shard: i16,
    pub(crate) tick: i64,
    pub(crate) seq: i64,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) holds: bool,
}

impl Parked {
    /// What parking this event would store.
    pub(crate) fn of(message: &Message<'_>, holds: bool) -> Self {
        Self {
            shard: message.shard().into(),
            tick: message.tick(),
            seq: message.seq(),
            aggregate_type: message.aggregate_type().to_owned(),
            aggregate_id: message.aggregate_id().to_owned(),
            holds,
        }
    }
}

/// All that is parked of these shards.
pub(crate) async fn load_parked(
    session: &mut Session,
    who: &Identity,
    shards: Vec<i16>,
) -> Result<Vec<Parked>, SessionError> {
    session
        .load(
            Mode::Read,
            statement::<(SmallInt, BigInt, BigInt, Text, Text, Bool)>(PARKED_ALREADY)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<Array<SmallInt>, _>(shards),
        )
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_attempt_is_the_last() {
        let retry = RetryOptions::default().attempts(2);
        let pause = fate(1, &retry).pause.expect("one attempt is left");
        assert!(pause <= retry.longest_pause(1));
        assert_eq!(fate(2, &retry).pause, None);
        assert_eq!(millis(Duration::MAX), 365 * 24 * 3600 * 1000);
    }

    #[test]
    fn a_dead_event_holds_others_unless_they_are_to_pass_it() {
        let holds = |order, attempts| {
            fate(attempts, &RetryOptions::default().attempts(2).order(order)).holds
        };
        assert_eq!([holds(Order::Hold, 1), holds(Order::Hold, 2)], [true, true]);
        assert_eq!([holds(Order::Skip, 1), holds(Order::Skip, 2)], [true, false]);
        assert_eq!([holds(Order::Unordered, 1), holds(Order::Unordered, 2)], [false, false]);
    }
}
