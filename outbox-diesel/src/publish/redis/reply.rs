//! Reads replies of scripts and transactions, and decides whose fault an error is.
//!
//! Only what Redis says about one `XADD` can be an event's fault. Everything else (the connection,
//! the server's state, the fence, a code never seen before) is nobody's: the relay waits and tries
//! again. That is the safer way to be wrong. An event taken for an outage stands still in full
//! view; an outage taken for the events' fault would bury every one of them as a dead letter.

use ::redis::{RedisError, ServerError, Value};

use crate::publish::StoredPosition;

/// What became of one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The first `events` of the call are there. If there is a failure, the next one met it.
    Done { events: usize, failure: Option<Failure> },
    /// Nothing was done: these shards have another owner.
    Fenced(Vec<u8>),
    /// Nothing was done, or nobody knows.
    Unavailable(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The event's own fault.
    Rejected(String),
    /// Nobody's fault.
    Unavailable(String),
}

/// The script is not in the server's cache: it was not run.
pub(super) fn is_no_script(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Reads what `publish.lua` and `retry.lua` answer.
pub(super) fn published(reply: &Value, fence: &str) -> Answer {
    let parts = match reply {
        Value::Array(parts) => parts.as_slice(),
        Value::ServerError(error) => return Answer::Unavailable(script_error(error)),
        _ => &[],
    };
    let (Some(events), Some(failed), Some(refused)) =
        (parts.first().and_then(count), parts.get(1).and_then(text), parts.get(2).and_then(text))
    else {
        return Answer::Unavailable(String::from("the publish script's reply is not understood"));
    };
    if !refused.is_empty() {
        return Answer::Unavailable(format!("fence key `{fence}`: {}", safe(refused)));
    }
    let fenced: Vec<u8> =
        parts[3..].iter().filter_map(count).filter_map(|shard| u8::try_from(shard).ok()).collect();
    if !fenced.is_empty() {
        return Answer::Fenced(fenced);
    }
    let failure = (!failed.is_empty()).then(|| add_failure(failed));
    Answer::Done { events, failure }
}

/// Reads what a transaction was answered: `MULTI`, an `XADD` per event, `EXEC`.
///
/// What follows a failure counts as not attempted, whatever became of it: had the server added it
/// (neither Redis nor Valkey does), it would come again, behind the event that failed.
pub(super) fn executed(replies: &[Value]) -> Answer {
    if let Some((Value::Array(entries), queued)) = replies.split_last()
        && entries.len() + 1 == queued.len()
    {
        let refused = entries.iter().position(|entry| refusal(entry).is_some());
        let failure = refused.and_then(|nth| refusal(&entries[nth])).as_deref().map(add_failure);
        return Answer::Done { events: refused.unwrap_or(entries.len()), failure };
    }
    // The first one says why, `EXEC` only that there was one.
    let refused = replies.iter().find_map(refusal);
    Answer::Unavailable(
        refused.unwrap_or_else(|| String::from("the transaction's reply is not understood")),
    )
}

/// Why the server refused a command, if it did.
pub(super) fn refusal(reply: &Value) -> Option<String> {
    match reply {
        Value::ServerError(error) => Some(server_error(error)),
        _ => None,
    }
}

/// Whose fault it is that an `XADD` failed.
fn add_failure(error: &str) -> Failure {
    let error = bare(error);
    let lower = error.to_ascii_lowercase();
    let of_the_event = match error.split(' ').next() {
        // The stream's key holds something else.
        Some("WRONGTYPE") => true,
        // About this command's arguments or this stream, unless the server does not offer it.
        Some("ERR") => {
            !["unknown", "not allowed", "script"].iter().any(|says| lower.contains(says))
        }
        _ => false,
    };
    if of_the_event { Failure::Rejected(safe(error)) } else { Failure::Unavailable(safe(error)) }
}

/// The error as Redis means it: up to 6.2 some tell the script's line before it, some begin with a
/// dash.
fn bare(error: &str) -> &str {
    let of_a_line = error
        .strip_prefix("@user_script")
        .or_else(|| error.split_once("): @user_script").map(|(_, of_a_line)| of_a_line));
    let error = match of_a_line {
        Some(text) => {
            text.trim_start_matches(|char: char| char.is_ascii_digit() || ": ".contains(char))
        }
        None => error,
    };
    error.trim_start_matches('-').trim()
}

/// What one shard's field held at first contact: epoch and position.
pub(super) fn stored(field: &Value) -> Option<(i64, Option<StoredPosition>)> {
    if *field == Value::Nil {
        return Some((0, None));
    }
    let mut numbers = Vec::with_capacity(5);
    for number in text(field)?.split(':') {
        // As the scripts' `%d+`: no sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        numbers.push(number.parse().ok()?);
    }
    match numbers[..] {
        [epoch] => Some((epoch, None)),
        [epoch, generation, tick, mark, seq] => {
            Some((epoch, Some(StoredPosition { generation, tick, mark, seq })))
        }
        _ => None,
    }
}

/// Why a script was not run, or did not end.
pub(super) fn script_error(error: &ServerError) -> String {
    let told = server_error(error);
    let said = bare(&told);
    if refuses_scripts(said) {
        format!(
            "the server runs no scripts ({said}): allow EVALSHA and EVAL, or publish without \
             (`without_scripts`, `outbox relay --without-scripts`)"
        )
    } else {
        said.to_owned()
    }
}

/// It does not know the commands, the user may not call them, or it knows no script that it was sent
/// just now.
fn refuses_scripts(said: &str) -> bool {
    let lower = said.to_ascii_lowercase();
    let refuses = ["unknown command", "no permission", "not allowed", "not supported", "disabled"];
    let names_them = ["eval", "scripting"].iter().any(|name| lower.contains(name));
    said.starts_with("NOSCRIPT") || names_them && refuses.iter().any(|text| lower.contains(text))
}

pub(super) fn server_error(error: &ServerError) -> String {
    match error.details() {
        Some(details) => safe(&format!("{} {details}", error.code())),
        None => safe(error.code()),
    }
}

pub(super) fn connection_error(error: &RedisError) -> String {
    if error.is_timeout() {
        String::from("no answer within the timeout")
    } else {
        safe(&error.to_string())
    }
}

/// An error text for logs: Redis repeats the arguments of commands it does not know, and those are
/// payloads.
fn safe(error: &str) -> String {
    let said = error.split(", with args").next().unwrap_or_default();
    said.chars().map(|char| if char.is_control() { ' ' } else { char }).take(200).collect()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn count(value: &Value) -> Option<usize> {
    match value {
        Value::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_rejected(error: &str) -> bool {
        matches!(add_failure(error), Failure::Rejected(_))
    }

    #[test]
    fn what_an_event_is_to_blame_for_is_rejected() {
        assert!(is_rejected("WRONGTYPE Operation against a key holding the wrong kind of value"));
        assert!(is_rejected("ERR Elements are too large to be stored"));
        assert!(is_rejected("ERR string exceeds maximum allowed size (proto-max-bulk-len)"));
        assert!(is_rejected("@user_script: 31: -ERR Elements are too large to be stored"));
    }

    #[test]
    fn what_nobody_is_to_blame_for_is_unavailable() {
        for error in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "-OOM command not allowed when used memory > 'maxmemory'.",
            "@user_script: 31: -OOM command not allowed when used memory > 'maxmemory'.",
            "READONLY You can't write against a read only replica.",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "NOPERM this user has no permissions to run the 'xadd' command",
            "ERR Unknown Redis command called from script",
            "ERR This Redis command is not allowed from script",
            "CODE of a later server",
            "",
        ] {
            assert!(!is_rejected(error), "{error}");
        }
    }

    #[test]
    fn an_error_is_told_without_the_line_of_the_script() {
        for told in [
            "WRONGTYPE Operation against a key",
            "@user_script: 31: -WRONGTYPE Operation against a key",
            "ERR Error running script (call to f_4f8d): @user_script:7: WRONGTYPE Operation against a key",
        ] {
            assert_eq!(bare(told), "WRONGTYPE Operation against a key");
        }
        let behind = "WRONGTYPE Operation script: 4f8d, on @user_script:7.";
        assert_eq!(bare(behind), behind);
    }

    #[test]
    fn a_server_that_runs_no_scripts_is_told_from_one_that_cannot_now() {
        for error in [
            "ERR unknown command 'EVALSHA'",
            "ERR unknown command `EVAL`",
            "NOPERM User relay has no permissions to run the 'evalsha' command",
            "NOPERM this user has no permissions to run the 'eval' command or its subcommand",
            "NOSCRIPT No matching script. Please use EVAL.",
            "ERR This instance has Lua scripting support disabled",
        ] {
            assert!(refuses_scripts(error), "{error}");
        }
        for error in [
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOPERM User relay has no permissions to run the 'hset' command script: 0a, on @user_script:1.",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "READONLY You can't write against a read only replica.",
            "ERR unknown command 'XADD'",
        ] {
            assert!(!refuses_scripts(error), "{error}");
        }
    }

    fn id() -> Value {
        Value::BulkString(b"1-1".to_vec())
    }

    fn queued(events: usize) -> Vec<Value> {
        let mut replies = vec![Value::Okay];
        replies.resize_with(events + 1, || Value::SimpleString("QUEUED".to_owned()));
        replies
    }

    fn error(text: &str) -> Value {
        ::redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("an error")
    }

    #[test]
    fn a_transaction_counts_up_to_its_first_failure() {
        let answer = |entries: Vec<Value>| {
            let mut replies = queued(entries.len());
            replies.push(Value::Array(entries));
            executed(&replies)
        };
        assert_eq!(answer(vec![id(), id()]), Answer::Done { events: 2, failure: None });
        let rejected = Failure::Rejected("WRONGTYPE Operation".to_owned());
        assert_eq!(
            answer(vec![id(), error("WRONGTYPE Operation"), id()]),
            Answer::Done { events: 1, failure: Some(rejected) }
        );
        let unavailable = Failure::Unavailable("OOM command not allowed".to_owned());
        assert_eq!(
            answer(vec![error("OOM command not allowed"), id()]),
            Answer::Done { events: 0, failure: Some(unavailable) }
        );
    }

    #[test]
    fn a_transaction_that_was_not_run_is_nobodys_fault_and_its_cause_is_told() {
        let mut refused = queued(2);
        refused[2] = error("OOM command not allowed");
        refused.push(error("EXECABORT Transaction discarded because of previous errors."));
        assert_eq!(executed(&refused), Answer::Unavailable("OOM command not allowed".to_owned()));
        let mut short = queued(2);
        short.push(Value::Array(vec![id()]));
        for replies in [[queued(1), vec![Value::Nil]].concat(), short, Vec::new()] {
            assert!(matches!(executed(&replies), Answer::Unavailable(_)), "{replies:?}");
        }
    }

    #[test]
    fn arguments_stay_out_of_error_texts() {
        let told = safe("ERR unknown command 'EVALSHA', with args beginning with: 'secret'");
        assert_eq!(told, "ERR unknown command 'EVALSHA'");
    }

    #[test]
    fn stored_fields_are_read_exactly() {
        let field = |text: &str| stored(&Value::BulkString(text.as_bytes().to_vec()));
        let position =
            StoredPosition { generation: 2, tick: 9_007_199_254_740_991, mark: 4, seq: 5 };
        assert_eq!(field("7:2:9007199254740991:4:5"), Some((7, Some(position))));
        assert_eq!(field("7"), Some((7, None)));
        assert_eq!(stored(&Value::Nil), Some((0, None)));
        for malformed in ["", "x", "-7", "+7", "7:1", "7:1:2:3:4:5", "7:1:2:3:x", "7::::"] {
            assert_eq!(field(malformed), None, "{malformed}");
        }
    }
}
