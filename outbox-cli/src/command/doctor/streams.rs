//! Do consumers keep up? What only the broker can tell.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_diesel::doctor::{Finding, Severity};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamInfoGroupsReply;

use crate::broker::{Streams, server};
use crate::failure::{Failure, chain};

/// Looks at the streams of these topics.
pub(super) async fn examine(
    url: &str,
    streams: &Streams,
    topics: &[String],
    limit: u64,
) -> Result<Vec<Finding>, Failure> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(5)));
    let client = streams.client(url)?;
    let mut conn = match client.get_multiplexed_async_connection_with_config(&config).await {
        Ok(conn) => conn,
        Err(error) => return Ok(vec![unreachable(url, &error)]),
    };
    let names: BTreeSet<String> =
        topics.iter().flat_map(|topic| streams.naming.names(topic)).collect();
    let mut findings = Vec::new();
    for name in names {
        let stream = format!("{}{name}", streams.prefix);
        match look(&mut conn, &stream).await {
            Ok(seen) => findings.extend(judge(&stream, &seen, limit)),
            Err(error) => findings.push(not_examined(&stream, &error)),
        }
    }
    Ok(findings)
}

/// What Redis says of a stream.
struct Seen {
    length: u64,
    /// Name, entries given and not acknowledged, and entries not given yet (Redis 7 counts them).
    groups: Vec<(String, u64, Option<u64>)>,
}

async fn look(conn: &mut MultiplexedConnection, stream: &str) -> redis::RedisResult<Seen> {
    let length: u64 = redis::cmd("XLEN").arg(stream).query_async(conn).await?;
    if length == 0 {
        return Ok(Seen { length, groups: Vec::new() });
    }
    let info: StreamInfoGroupsReply =
        redis::cmd("XINFO").arg("GROUPS").arg(stream).query_async(conn).await?;
    let group = |group: redis::streams::StreamInfoGroup| {
        (group.name, group.pending as u64, group.lag.map(|lag| lag as u64))
    };
    Ok(Seen { length, groups: info.groups.into_iter().map(group).collect() })
}

fn judge(stream: &str, seen: &Seen, limit: u64) -> Option<Finding> {
    let slow: Vec<_> = seen
        .groups
        .iter()
        .filter(|(_, pending, lag)| pending + lag.unwrap_or(0) > limit)
        .map(|(name, _, _)| name.as_str())
        .collect();
    let length = seen.length;
    let (summary, remedy) = if !slow.is_empty() {
        (
            format!("stream {stream:?} grows faster than group {} handles it", slow.join(", ")),
            format!(
                "redis-cli -u \"$REDIS_URL\" XINFO CONSUMERS '{stream}' '{}'  # then start more consumers",
                slow[0]
            ),
        )
    } else if length <= limit {
        return None;
    } else if seen.groups.is_empty() {
        (
            format!(
                "stream {stream:?} has {length} entries and no consumer group: it grows without bound"
            ),
            format!(
                "redis-cli -u \"$REDIS_URL\" XTRIM '{stream}' MAXLEN '~' {limit}  # if nobody is to read it; and outbox relay --trim-length or --trim-age"
            ),
        )
    } else {
        (
            format!(
                "stream {stream:?} has {length} entries, though its groups keep up: it grows without bound"
            ),
            "outbox relay --trim-age 7days  # longer than any consumer may pause".to_owned(),
        )
    };
    let group = |(name, pending, lag): &(String, u64, Option<u64>)| {
        let lag = lag.map_or_else(|| "an unknown number".to_owned(), |lag| lag.to_string());
        format!("group {name}: {lag} not read, {pending} read and not acknowledged")
    };
    let mut evidence =
        vec![format!("{length} entries; more than {limit} are too many (--stream-length)")];
    evidence.extend(seen.groups.iter().map(group));
    Some(Finding { name: "stream-grows", severity: Severity::Warning, summary, evidence, remedy })
}

fn unreachable(url: &str, error: &redis::RedisError) -> Finding {
    Finding {
        name: "broker-unreachable",
        severity: Severity::Critical,
        summary: format!("{} cannot be reached from here", server(url)),
        evidence: vec![chain(error)],
        remedy: "redis-cli -u \"$REDIS_URL\" PING".to_owned(),
    }
}

fn not_examined(stream: &str, error: &redis::RedisError) -> Finding {
    Finding {
        name: "not-examined",
        severity: Severity::Warning,
        summary: format!("stream {stream:?} could not be examined"),
        evidence: vec![chain(error)],
        remedy: format!("redis-cli -u \"$REDIS_URL\" TYPE '{stream}'"),
    }
}
