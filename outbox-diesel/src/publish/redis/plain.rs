//! Sends events without scripts: one transaction per call, all of a flight in one pipeline.
//!
//! A transaction and not bare commands: where the server refuses one of those (it is full, became a
//! replica, the user lost a right) it goes on with the next, and a later event of an aggregate may be
//! there without the earlier one. Of a transaction it refuses all, and it runs nothing if the
//! connection breaks before `EXEC`. That takes no scripting, and one hash slot: the stream's.

use std::time::Duration;

use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::{Cmd, Pipeline, RedisResult};
use uuid::Uuid;

use super::plan::{Call, Plan};
use super::reply::{self, Answer};
use super::{Trim, pack};
use crate::message::Message;
use crate::publish::{Batch, Unavailable};

/// Asks a new connection whether the server takes transactions: one that does not know `MULTI` would
/// run what follows as bare commands.
pub(super) async fn check(connection: &mut MultiplexedConnection) -> Result<(), Unavailable> {
    let mut transaction = Pipeline::with_capacity(2);
    transaction.cmd("MULTI").cmd("EXEC");
    let replies = connection
        .req_packed_commands(&transaction, 0, 2)
        .await
        .map_err(|error| Unavailable(reply::connection_error(&error)))?;
    match replies.iter().find_map(reply::refusal) {
        Some(error) => Err(Unavailable(format!(
            "the server takes no transactions, which publishing without scripts needs: {error}"
        ))),
        None => Ok(()),
    }
}

/// Sends one transaction per call and answers what became of each.
pub(super) async fn transact(
    connection: &mut MultiplexedConnection,
    plan: &Plan,
    batch: &Batch<'_>,
    trim: Option<Trim>,
    flight: &[Call],
) -> RedisResult<Vec<Answer>> {
    let bound = match trim {
        Some(trim) => Some(bound(connection, trim).await?),
        None => None,
    };
    let commands = flight.iter().map(commands_of).sum();
    let mut pipeline = Pipeline::with_capacity(commands);
    for call in flight {
        let stream = &plan.stream(call.stream).key;
        pipeline.cmd("MULTI");
        for (nth, left) in call.events.iter().zip((0..call.events.len()).rev()) {
            let mut add = ::redis::cmd("XADD");
            add.arg(stream);
            // Once per call, as the scripts do.
            if let (Some((kind, keep)), 0) = (bound, left) {
                add.arg(kind).arg("~").arg(keep);
            }
            entry(&mut add, &batch.messages()[*nth as usize]);
            pipeline.add_command(add);
        }
        pipeline.cmd("EXEC");
    }
    let replies = connection.req_packed_commands(&pipeline, 0, commands).await?;
    let mut replies = replies.as_slice();
    let answers = flight.iter().map(|call| {
        let (own, rest) = replies.split_at_checked(commands_of(call)).unwrap_or_default();
        replies = rest;
        reply::executed(own)
    });
    Ok(answers.collect())
}

/// The events, `MULTI` and `EXEC`.
fn commands_of(call: &Call) -> usize {
    call.events.len() + 2
}

/// What bounds a stream now, as `XADD` takes it.
async fn bound(
    connection: &mut MultiplexedConnection,
    trim: Trim,
) -> RedisResult<(&'static str, u64)> {
    match trim {
        Trim::MaxLen(entries) => Ok(("MAXLEN", entries)),
        Trim::MaxAge(age) => {
            // The ids of entries are this clock's.
            let (seconds, micros): (u64, u64) =
                ::redis::cmd("TIME").query_async(connection).await?;
            let now = Duration::from_secs(seconds) + Duration::from_micros(micros);
            let oldest = now.saturating_sub(age).as_millis();
            Ok(("MINID", u64::try_from(oldest).unwrap_or(u64::MAX)))
        }
    }
}

/// The id and the fields, as `fence.lua` writes them.
fn entry(add: &mut Cmd, message: &Message<'_>) {
    let mut id = Uuid::encode_buffer();
    let mut created_at = Vec::with_capacity(32);
    pack::time(&mut created_at, message.created_at());
    add.arg("*");
    add.arg("event_id").arg(&*message.id().hyphenated().encode_lower(&mut id));
    add.arg("topic").arg(message.topic());
    add.arg("aggregate_type").arg(message.aggregate_type());
    add.arg("aggregate_id").arg(message.aggregate_id());
    add.arg("event_type").arg(message.event_type());
    add.arg("event_version").arg(message.event_version());
    add.arg("dedup_key").arg(message.dedup_key().unwrap_or_default());
    add.arg("payload").arg(message.payload());
    add.arg("headers").arg(message.headers());
    add.arg("created_at").arg(created_at);
}
