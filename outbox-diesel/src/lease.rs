//! Lease: who may move which shard. The database holds the truth; times are by its clock there,
//! and by the monotonic clock here.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use diesel::Queryable;
use diesel::data_types::PgInterval;
use diesel::sql_types::{
    Array, BigInt, Double, Interval, Nullable, SmallInt, Text, Uuid as SqlUuid,
};
use uuid::Uuid;

use crate::message::SHARDS;
use crate::options::LONGEST_LEASE;
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

/// Who this relay is to the others of its subscription.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) relay: Uuid,
    pub(crate) subscription: String,
    pub(crate) host: String,
}

/// A shard of ours: where it stands, under which epoch, and in which generation of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Queryable)]
pub(crate) struct Claimed {
    pub(crate) shard: i16,
    pub(crate) epoch: i64,
    pub(crate) tick: i64,
    pub(crate) target: Option<i64>,
    pub(crate) seq: i64,
    /// How many owners in a row ended at this place without giving it back.
    pub(crate) crashes: i16,
    pub(crate) generation: i64,
}

// A lease further ahead than any can be was written before the clock was set back: it is over. Any:
// another relay may have been given a longer lease than this one. An owner that did not give the shard
// back may have ended because of the event that was next; one that has not been heard since the server
// itself was down proves nothing.
const CLAIM: &str = "\
WITH free AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    WHERE c.subscription = $1
      AND (c.owner IS NULL OR c.leased_until < clock_timestamp() OR c.leased_until > clock_timestamp() + $2::interval)
    ORDER BY c.shard LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE outbox.cursors c
SET owner = $4, epoch = c.epoch + 1, leased_until = clock_timestamp() + $5::interval, updated_at = clock_timestamp(),
    crashes = CASE WHEN c.owner IS NULL OR c.owner = $6 OR c.leased_until < pg_postmaster_start_time() + $7::interval
                   THEN c.crashes ELSE least(c.crashes + 1, 3) END
FROM free WHERE c.subscription = $8 AND c.shard = free.shard
RETURNING c.shard";

/// Claims up to `count` free shards; [`reload`] tells the rest.
pub(crate) async fn claim(
    session: &mut Session,
    who: &Identity,
    lease: Duration,
    count: usize,
) -> Result<Vec<i16>, SessionError> {
    session
        .load(
            Mode::Durable,
            statement::<SmallInt>(CLAIM)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<Interval, _>(interval(LONGEST_LEASE))
                .bind::<BigInt, _>(i64::try_from(count).unwrap_or(i64::MAX))
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Interval, _>(interval(lease))
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Interval, _>(interval(lease))
                .bind::<Text, _>(who.subscription.clone()),
        )
        .await
}

// The generation comes from the same snapshot as the place: a subscription that was rewound, or
// made anew, since this relay started has another one, and its places would look like repeats.
const RELOAD: &str = "\
SELECT c.shard, c.epoch, c.tick, c.target, c.seq, c.crashes, s.generation
FROM outbox.cursors c JOIN outbox.subscriptions s ON s.name = c.subscription
WHERE c.subscription = $1 AND c.owner = $2 AND c.leased_until > clock_timestamp() ORDER BY c.shard";

/// The shards that the database says are ours: after a claim or a reconnect nothing else counts.
pub(crate) async fn reload(
    session: &mut Session,
    who: &Identity,
) -> Result<Vec<Claimed>, SessionError> {
    session
        .load(
            Mode::Read,
            statement::<(SmallInt, BigInt, BigInt, Nullable<BigInt>, BigInt, SmallInt, BigInt)>(
                RELOAD,
            )
            .bind::<Text, _>(who.subscription.clone())
            .bind::<SqlUuid, _>(who.relay),
        )
        .await
}

// The rows are locked in shard order, as everywhere: heartbeat and settle must not deadlock.
const RAISE: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard FROM outbox.cursors c
    JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS raise (shard, epoch, above) ON raise.shard = c.shard AND raise.epoch = c.epoch
    WHERE c.subscription = $4 AND c.owner = $5
    ORDER BY c.shard FOR UPDATE OF c
)
UPDATE outbox.cursors c SET epoch = greatest(c.epoch, raise.above) + 1
FROM mine JOIN unnest($6::smallint[], $7::bigint[]) AS raise (shard, above) ON raise.shard = mine.shard
WHERE c.subscription = $8 AND c.shard = mine.shard
RETURNING c.shard, c.epoch";

/// A shard whose epoch is to be raised from `epoch` to above `above`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raise {
    pub(crate) shard: u8,
    pub(crate) epoch: i64,
    pub(crate) above: i64,
}

/// Raises epochs, in the database before at the broker. What is missing in the answer is not ours
/// any more.
pub(crate) async fn raise_epochs(
    session: &mut Session,
    who: &Identity,
    raises: &[Raise],
) -> Result<Vec<(i16, i64)>, SessionError> {
    let shards: Vec<i16> = raises.iter().map(|raise| raise.shard.into()).collect();
    let above: Vec<i64> = raises.iter().map(|raise| raise.above).collect();
    session
        .load(
            Mode::Durable,
            statement::<(SmallInt, BigInt)>(RAISE)
                .bind::<Array<SmallInt>, _>(shards.clone())
                .bind::<Array<BigInt>, _>(
                    raises.iter().map(|raise| raise.epoch).collect::<Vec<_>>(),
                )
                .bind::<Array<BigInt>, _>(above.clone())
                .bind::<Text, _>(who.subscription.clone())
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Array<SmallInt>, _>(shards)
                .bind::<Array<BigInt>, _>(above)
                .bind::<Text, _>(who.subscription.clone()),
        )
        .await
}

const RELEASE: &str = "\
UPDATE outbox.cursors c SET owner = NULL, leased_until = '-infinity', updated_at = clock_timestamp()
FROM (SELECT shard FROM outbox.cursors
      WHERE subscription = $1 AND owner = $2 AND shard = ANY ($3::smallint[])
      ORDER BY shard FOR UPDATE) mine
WHERE c.subscription = $4 AND c.shard = mine.shard";

/// Gives shards back. Only ours: the relay's id is new at every start.
pub(crate) async fn release(
    session: &mut Session,
    who: &Identity,
    shards: Vec<i16>,
) -> Result<(), SessionError> {
    session
        .execute(
            Mode::Durable,
            statement::<()>(RELEASE)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Array<SmallInt>, _>(shards)
                .bind::<Text, _>(who.subscription.clone()),
        )
        .await?;
    Ok(())
}

// A relay that says it is interrupted keeps nobody from its shards: its heartbeat may well live on
// where its work is refused, by a newer schema or for want of a right.
const RENEW: &str = "\
WITH seen AS (
    INSERT INTO outbox.relays (id, subscription, host, version, state, reason, sleepless, delivered_per_second)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (id) DO UPDATE
    SET seen_at = clock_timestamp(), state = excluded.state, reason = excluded.reason, sleepless = excluded.sleepless,
        delivered_per_second = coalesce(excluded.delivered_per_second, relays.delivered_per_second),
        state_since = CASE WHEN relays.state = excluded.state THEN relays.state_since ELSE clock_timestamp() END
), mine AS MATERIALIZED (
    SELECT shard FROM outbox.cursors
    WHERE subscription = $9 AND owner = $10 AND leased_until > clock_timestamp() AND $11::text <> 'interrupted'
    ORDER BY shard FOR UPDATE
)
UPDATE outbox.cursors c SET leased_until = clock_timestamp() + $12::interval
FROM mine WHERE c.subscription = $13 AND c.shard = mine.shard
RETURNING c.shard";

/// How a relay is, for people who look at `outbox.relays`.
#[derive(Debug, Clone)]
pub(crate) struct SelfReport {
    /// One word.
    pub(crate) state: &'static str,
    pub(crate) reason: Option<String>,
    /// Why it polls although it is to sleep.
    pub(crate) sleepless: Option<String>,
    /// None: what was told last still holds.
    pub(crate) delivered_per_second: Option<f64>,
}

/// Says that this relay lives and how it is, renews its leases unless it is interrupted, and returns
/// the shards that are still its own.
pub(crate) async fn renew(
    session: &mut Session,
    who: &Identity,
    report: SelfReport,
    lease: Duration,
) -> Result<Vec<i16>, SessionError> {
    session
        .load(
            Mode::Relaxed,
            statement::<SmallInt>(RENEW)
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<Text, _>(who.host.clone())
                .bind::<Text, _>(env!("CARGO_PKG_VERSION"))
                .bind::<Text, _>(report.state)
                .bind::<Nullable<Text>, _>(report.reason)
                .bind::<Nullable<Text>, _>(report.sleepless)
                .bind::<Nullable<Double>, _>(report.delivered_per_second)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Text, _>(report.state)
                .bind::<Interval, _>(interval(lease))
                .bind::<Text, _>(who.subscription.clone()),
        )
        .await
}

const LEAVE: &str =
    "DELETE FROM outbox.relays WHERE id = $1 OR seen_at < clock_timestamp() - interval '1 day'";

/// Says goodbye, so that the others take over at once.
pub(crate) async fn leave(session: &mut Session, who: &Identity) -> Result<(), SessionError> {
    session.execute(Mode::Relaxed, statement::<()>(LEAVE).bind::<SqlUuid, _>(who.relay)).await?;
    Ok(())
}

// Seen later than now means that the clock was set back: the living will be seen again soon.
const PEERS: &str = "\
SELECT id FROM outbox.relays
WHERE subscription = $1 AND seen_at > clock_timestamp() - $2::interval AND seen_at < clock_timestamp() + $3::interval
  AND state <> 'interrupted'
ORDER BY started_at, id";

/// How many shards this relay should have: all relays that can work get 16 / n, the oldest ones the
/// rest.
pub(crate) async fn fair_share(
    session: &mut Session,
    who: &Identity,
    lease: Duration,
) -> Result<usize, SessionError> {
    let peers: Vec<Uuid> = session
        .load(
            Mode::Read,
            statement::<SqlUuid>(PEERS)
                .bind::<Text, _>(who.subscription.clone())
                .bind::<Interval, _>(interval(lease))
                .bind::<Interval, _>(interval(lease)),
        )
        .await?;
    // Not registered yet: nothing, until the first heartbeat.
    let Some(rank) = peers.iter().position(|peer| *peer == who.relay) else { return Ok(0) };
    Ok(SHARDS / peers.len() + usize::from(rank < SHARDS % peers.len()))
}

/// Until when each shard is ours, by the monotonic clock: written by the heartbeat, read before
/// each publish.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<[Option<Instant>; SHARDS]>);

impl Leases {
    /// The shards are ours for `lease` from `since`, the moment before the server was asked.
    pub(crate) fn extend(
        &self,
        shards: impl IntoIterator<Item = i16>,
        since: Instant,
        lease: Duration,
    ) {
        let mut until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for shard in shards {
            if let Some(until) = usize::try_from(shard).ok().and_then(|shard| until.get_mut(shard))
            {
                *until = (*until).max(Some(since + lease));
            }
        }
    }

    /// The shard is not ours any more.
    pub(crate) fn forget(&self, shard: u8) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(shard)] = None;
    }

    /// Whether the shard is ours for this long from now.
    pub(crate) fn holds(&self, shard: u8, time: Duration) -> bool {
        let until = self.0.lock().unwrap_or_else(PoisonError::into_inner)[usize::from(shard)];
        until.is_some_and(|until| Instant::now() + time < until)
    }
}

fn interval(duration: Duration) -> PgInterval {
    PgInterval::from_microseconds(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX))
}
