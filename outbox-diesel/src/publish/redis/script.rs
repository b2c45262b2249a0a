//! The scripts, and how calls of them travel: written together, then read together.

use std::sync::LazyLock;

use ::redis::aio::{ConnectionLike as _, MultiplexedConnection};
use ::redis::{Cmd, Pipeline, RedisResult, Value};

use super::reply::is_no_script;

/// A script and its name in the server's cache.
pub(super) struct Script {
    text: &'static str,
    hash: String,
}

/// Writes epochs and answers what is stored.
pub(super) static CONTACT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("contact.lua")));

/// Adds events by position.
pub(super) static PUBLISH: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("fence.lua"), include_str!("publish.lua"))));

/// Adds parked events by id.
pub(super) static RETRY: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("fence.lua"), include_str!("retry.lua"))));

impl Script {
    fn new(text: &'static str) -> Self {
        Self { text, hash: ::redis::Script::new(text).get_hash().to_owned() }
    }
}

/// Calls the script once per item and answers one reply per item. Replies may be errors.
///
/// The script goes by its hash. Where the server does not know it (it restarted, somebody flushed
/// its cache) nothing was run, and the call is repeated with the text.
pub(super) async fn call_each<T>(
    connection: &mut MultiplexedConnection,
    script: &Script,
    items: &[T],
    mut arguments: impl FnMut(&mut Cmd, &T) + Send,
) -> RedisResult<Vec<Value>>
where
    T: Sync,
{
    let mut calls = Pipeline::with_capacity(items.len());
    for item in items {
        let mut call = ::redis::cmd("EVALSHA");
        call.arg(&script.hash);
        arguments(&mut call, item);
        calls.add_command(call);
    }
    let mut replies = connection.req_packed_commands(&calls, 0, items.len()).await?;

    let unknown: Vec<usize> =
        (0..replies.len()).filter(|nth| is_no_script(&replies[*nth])).collect();
    if unknown.is_empty() {
        return Ok(replies);
    }
    let mut calls = Pipeline::with_capacity(unknown.len());
    for nth in &unknown {
        let mut call = ::redis::cmd("EVAL");
        call.arg(script.text);
        arguments(&mut call, &items[*nth]);
        calls.add_command(call);
    }
    let again = connection.req_packed_commands(&calls, 0, unknown.len()).await?;
    for (nth, reply) in unknown.into_iter().zip(again) {
        replies[nth] = reply;
    }
    Ok(replies)
}
