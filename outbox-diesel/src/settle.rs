//! Settle: writes how far the shards were delivered.

use diesel::sql_types::{Array, BigInt, Nullable, SmallInt, Text, Uuid as SqlUuid};

use crate::lease::Identity;
use crate::session::{Mode, Session, SessionError};
use crate::statement::statement;

/// How far a shard was delivered: all of the diffs up to `tick`, and of the diff behind it (up to
/// `target`, or else up to the next tick) all up to `seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) tick: i64,
    pub(crate) target: Option<i64>,
    pub(crate) seq: i64,
}

/// One shard's move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) shard: u8,
    pub(crate) epoch: i64,
    pub(crate) from: Place,
    pub(crate) to: Place,
    /// See the column.
    pub(crate) crashes: i16,
}

// One statement, guarded by owner, epoch and the place it moves from.
const SETTLE: &str = "\
WITH mine AS MATERIALIZED (
    SELECT c.shard, m.tick, m.target, m.seq, m.crashes FROM outbox.cursors c
    JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::smallint[])
        AS m (shard, epoch, from_tick, from_seq, tick, target, seq, crashes)
        ON m.shard = c.shard AND m.epoch = c.epoch AND m.from_tick = c.tick AND m.from_seq = c.seq
    WHERE c.subscription = $9 AND c.owner = $10
    ORDER BY c.shard FOR UPDATE OF c
)
UPDATE outbox.cursors c SET tick = mine.tick, target = mine.target, seq = mine.seq, crashes = mine.crashes, updated_at = clock_timestamp()
FROM mine WHERE c.subscription = $11 AND c.shard = mine.shard
RETURNING c.shard";

/// Writes the moves and returns the shards that moved; a missing one is not ours any more.
///
/// `Mode::Relaxed` for progress: what a crash of the server forgets is read again. `Mode::Durable`
/// for a target: nothing may be published in a diff that a successor would not repeat.
pub(crate) async fn settle(
    session: &mut Session,
    mode: Mode,
    who: &Identity,
    moves: &[Move],
) -> Result<Vec<i16>, SessionError> {
    let column = |value: fn(&Move) -> i64| moves.iter().map(value).collect::<Vec<i64>>();
    session
        .load(
            mode,
            statement::<SmallInt>(SETTLE)
                .bind::<Array<SmallInt>, _>(
                    moves.iter().map(|m| i16::from(m.shard)).collect::<Vec<_>>(),
                )
                .bind::<Array<BigInt>, _>(column(|m| m.epoch))
                .bind::<Array<BigInt>, _>(column(|m| m.from.tick))
                .bind::<Array<BigInt>, _>(column(|m| m.from.seq))
                .bind::<Array<BigInt>, _>(column(|m| m.to.tick))
                .bind::<Array<Nullable<BigInt>>, _>(
                    moves.iter().map(|m| m.to.target).collect::<Vec<_>>(),
                )
                .bind::<Array<BigInt>, _>(column(|m| m.to.seq))
                .bind::<Array<SmallInt>, _>(moves.iter().map(|m| m.crashes).collect::<Vec<_>>())
                .bind::<Text, _>(who.subscription.clone())
                .bind::<SqlUuid, _>(who.relay)
                .bind::<Text, _>(who.subscription.clone()),
        )
        .await
}
