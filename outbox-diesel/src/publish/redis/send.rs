//! Carries contacts and calls to Redis and writes down what became of them.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisResult, Value};

use super::plan::{Call, Plan, together};
use super::reply::{self, Answer, Failure};
use super::script::{self, call_each};
use super::stream::retry_prefix;
use super::{PARKED_KEY_TTL, Trim, Writes, pack, plain};
use crate::publish::{Batch, Contact, Receipt, Repeat, Stamp, Unavailable};

pub(super) struct Options<'a> {
    pub(super) writes: Writes,
    /// A buffer whose memory is kept from batch to batch.
    pub(super) packed: &'a mut Vec<u8>,
    pub(super) trim: Option<Trim>,
}

/// Writes the epochs of the missing shards, stream by stream, and answers what was stored.
pub(super) async fn contact(
    connection: &mut MultiplexedConnection,
    plan: &mut Plan,
    stamp: &Stamp,
    missing: &[(usize, u16)],
) -> Result<Vec<Contact>, Unavailable> {
    let prefix = pack::field_prefix(stamp);
    let replies = call_each(connection, &script::CONTACT, missing, |arguments, (stream, asked)| {
        arguments.arg(1).arg(&plan.stream(*stream).fence).arg(&prefix);
        for shard in shards(*asked) {
            arguments.arg(shard).arg(stamp.epochs[usize::from(shard)]);
        }
    })
    .await
    .map_err(|error| Unavailable(reply::connection_error(&error)))?;

    let mut contacts = Vec::new();
    for ((stream, asked), reply) in missing.iter().zip(&replies) {
        let known = plan.stream(*stream);
        let failed = |why: &str| Unavailable(format!("fence key `{}`: {why}", known.fence));
        let fields = match reply {
            Value::Array(fields) => fields,
            Value::ServerError(error) => return Err(failed(&reply::script_error(error))),
            _ => return Err(failed("the contact script's reply is not understood")),
        };
        for (shard, field) in shards(*asked).zip(fields) {
            let (epoch, position) = reply::stored(field)
                .ok_or_else(|| failed(&format!("field {prefix}{shard} is malformed")))?;
            contacts.push(Contact { destination: known.key.clone(), shard, epoch, position });
        }
    }
    // Only now: a contact that the relay does not hear of has to be made again.
    for (stream, asked) in missing {
        for shard in shards(*asked) {
            plan.contacted(*stream, shard, stamp.epochs[usize::from(shard)]);
        }
    }
    Ok(contacts)
}

/// Sends the batch flight by flight. What follows a failure in an earlier flight stays where it is:
/// it may be a later event of the same aggregate.
pub(super) async fn publish(
    connection: &mut MultiplexedConnection,
    plan: &mut Plan,
    options: Options<'_>,
    batch: &Batch<'_>,
    receipt: &mut Receipt,
) -> Result<(), Unavailable> {
    let Options { writes, packed, trim } = options;
    let calls = plan.calls(batch);
    let mut calls = calls.as_slice();
    while !calls.is_empty() {
        let flight = together(&mut calls);
        let answers = match writes {
            Writes::Fenced => run_scripts(connection, plan, packed, trim, batch, flight).await,
            Writes::Plain => plain::transact(connection, plan, batch, trim, flight).await,
        };
        let answers = answers.map_err(|error| Unavailable(reply::connection_error(&error)))?;
        if !write_down(receipt, flight, answers)? {
            break;
        }
    }
    Ok(())
}

/// Writes down what became of a flight; false if something of it did not go through.
fn write_down(
    receipt: &mut Receipt,
    flight: &[Call],
    answers: Vec<Answer>,
) -> Result<bool, Unavailable> {
    let mut through = true;
    let mut unavailable = Ok(());
    for (call, answer) in flight.iter().zip(answers) {
        match answer {
            Answer::Done { events, failure } => {
                for nth in call.events.iter().take(events) {
                    receipt.delivered(*nth as usize);
                }
                through &= failure.is_none();
                match (failure, call.events.get(events)) {
                    (Some(Failure::Rejected(reason)), Some(nth)) => {
                        receipt.rejected(*nth as usize, reason);
                    }
                    (Some(Failure::Unavailable(reason)), _) => {
                        unavailable = Err(Unavailable(reason));
                    }
                    _ => {}
                }
            }
            Answer::Fenced(fenced) => {
                through = false;
                for shard in fenced {
                    if !receipt.fenced_shards().contains(&shard) {
                        receipt.fenced(shard);
                    }
                }
            }
            Answer::Unavailable(reason) => unavailable = Err(Unavailable(reason)),
        }
    }
    unavailable.map(|()| through)
}

/// One script call per stream.
async fn run_scripts(
    connection: &mut MultiplexedConnection,
    plan: &Plan,
    packed: &mut Vec<u8>,
    trim: Option<Trim>,
    batch: &Batch<'_>,
    flight: &[Call],
) -> RedisResult<Vec<Answer>> {
    let prefix = pack::field_prefix(batch.stamp());
    let script = match batch.stamp().repeat {
        Repeat::Position { .. } => &script::PUBLISH,
        Repeat::EventId => &script::RETRY,
    };
    let replies = call_each(connection, script, flight, |arguments, call| {
        pack_call(packed, batch, &prefix, trim, call);
        let stream = plan.stream(call.stream);
        match batch.stamp().repeat {
            Repeat::Position { .. } => {
                arguments.arg(2).arg(&stream.key).arg(&stream.fence).arg(packed.as_slice());
            }
            Repeat::EventId => {
                arguments.arg(2 + call.events.len()).arg(&stream.key).arg(&stream.fence);
                retry_keys(arguments, batch, &stream.key, call);
                arguments.arg(packed.as_slice()).arg(PARKED_KEY_TTL.as_secs());
            }
        }
    })
    .await?;
    let answer =
        |(call, reply): (&Call, _)| reply::published(reply, &plan.stream(call.stream).fence);
    Ok(flight.iter().zip(&replies).map(answer).collect())
}

fn pack_call(
    packed: &mut Vec<u8>,
    batch: &Batch<'_>,
    prefix: &str,
    trim: Option<Trim>,
    call: &Call,
) {
    packed.clear();
    let first = &batch.messages()[call.events[0] as usize];
    pack::header(packed, batch.stamp(), prefix, first.tick(), trim, call.shards, call.events.len());
    for nth in &call.events {
        pack::event(packed, &batch.messages()[*nth as usize]);
    }
}

/// The generation is part of the key: what a rewound subscription repeats is meant to arrive again.
fn retry_keys(arguments: &mut Cmd, batch: &Batch<'_>, stream: &str, call: &Call) {
    let stamp = batch.stamp();
    let prefix = retry_prefix(stream, stamp.source, &stamp.subscription);
    for nth in &call.events {
        let id = batch.messages()[*nth as usize].id();
        arguments.arg(format!("{prefix}:{}:{id}", stamp.generation));
    }
}

fn shards(mask: u16) -> impl Iterator<Item = u8> {
    (0..16).filter(move |shard| mask & (1 << shard) != 0)
}
