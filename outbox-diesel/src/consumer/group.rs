//! What the consumer asks of Redis.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisError, RedisResult, Script,
    Value, cmd, pipe,
};

use super::Start;
use super::entry::{self, Entry, EntryId, Page, Unreadable};

/// Entries that one command names at most.
const PAGE: usize = 1000;

/// A consumer in a group.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) consumer: String,
}

/// Opens a connection whose calls may take this long.
pub(super) async fn connect(
    client: &Client,
    connecting: Duration,
    answering: Duration,
) -> RedisResult<MultiplexedConnection> {
    if matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. })
        && rustls::crypto::CryptoProvider::get_default().is_none()
    {
        // Failing means that another thread has chosen in between.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connecting))
        .set_response_timeout(Some(answering));
    client.get_multiplexed_async_connection_with_config(&config).await
}

impl Group {
    /// Creates the group, and the stream, where missing. Answers whether it did.
    pub(super) async fn create(
        &self,
        conn: &mut MultiplexedConnection,
        stream: &str,
        start: Start,
    ) -> RedisResult<bool> {
        let from = match start {
            Start::Beginning => "0",
            Start::New => "$",
        };
        let created: RedisResult<()> = cmd("XGROUP")
            .arg("CREATE")
            .arg(&[stream, &self.name, from])
            .arg("MKSTREAM")
            .query_async(conn)
            .await;
        match created {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for entries that nobody in the group was given yet: per stream (by number) the next.
    pub(super) async fn read_new(
        self,
        mut conn: MultiplexedConnection,
        streams: Vec<(usize, String)>,
        count: usize,
        block: Duration,
    ) -> RedisResult<Page> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.name).arg(&self.consumer).arg("COUNT").arg(count);
        // 0 would block without end.
        read.arg("BLOCK").arg(millis(block).max(1)).arg("STREAMS");
        for (_, name) in &streams {
            read.arg(name);
        }
        for _ in &streams {
            read.arg(">");
        }
        let answer = entry::streams(read.query_async(&mut conn).await?).map_err(unreadable)?;
        let number = |name: &[u8]| streams.iter().find(|stream| stream.1.as_bytes() == name);
        answer
            .into_iter()
            .map(|(name, entries)| {
                let (number, _) = number(&name).ok_or_else(|| unreadable(Unreadable))?;
                Ok((*number, entries))
            })
            .collect()
    }

    /// The next page of what this consumer was given and has not acknowledged.
    pub(super) async fn read_own(
        &self,
        conn: &mut MultiplexedConnection,
        stream: &str,
        after: EntryId,
        count: usize,
    ) -> RedisResult<Vec<Entry>> {
        let answer = cmd("XREADGROUP")
            .arg("GROUP")
            .arg(&[&self.name, &self.consumer])
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(stream)
            .arg(after.to_string())
            .query_async(conn)
            .await?;
        let mut pages = entry::streams(answer).map_err(unreadable)?;
        let mut entries = pages.pop().map(|(_, entries)| entries).unwrap_or_default();
        self.count_deliveries(conn, stream, &mut entries).await?;
        Ok(entries)
    }

    /// Takes over entries that were given to a consumer which has not been heard of for that long:
    /// where to go on (zero: at the end), and the entries.
    pub(super) async fn claim(
        &self,
        conn: &mut MultiplexedConnection,
        stream: &str,
        idle: Duration,
        from: EntryId,
        count: usize,
    ) -> RedisResult<(EntryId, Vec<Entry>)> {
        let answer = cmd("XAUTOCLAIM")
            .arg(&[stream, &self.name, &self.consumer])
            .arg(millis(idle))
            .arg(from.to_string())
            .arg("COUNT")
            .arg(count)
            .query_async(conn)
            .await?;
        let (next, mut entries) = entry::claimed(answer).map_err(unreadable)?;
        self.count_deliveries(conn, stream, &mut entries).await?;
        Ok((next, entries))
    }

    async fn count_deliveries(
        &self,
        conn: &mut MultiplexedConnection,
        stream: &str,
        entries: &mut [Entry],
    ) -> RedisResult<()> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(()) };
        let counted = self.own(conn, stream, first.id, last.id).await?;
        for (id, deliveries) in counted {
            if let Ok(at) = entries.binary_search_by_key(&id, |entry| entry.id) {
                entries[at].deliveries = deliveries;
            }
        }
        Ok(())
    }

    /// What is pending for this consumer from one entry to another, and how often each was
    /// delivered.
    pub(super) async fn own(
        &self,
        conn: &mut MultiplexedConnection,
        stream: &str,
        first: EntryId,
        last: EntryId,
    ) -> RedisResult<Vec<(EntryId, u32)>> {
        let mut own = Vec::new();
        let mut from = first.to_string();
        loop {
            let answer = cmd("XPENDING")
                .arg(&[stream, &self.name, &from, &last.to_string()])
                .arg(PAGE)
                .arg(&self.consumer)
                .query_async(conn)
                .await?;
            let page = entry::pending(answer).map_err(unreadable)?;
            let full = page.len() == PAGE;
            own.extend(page);
            match own.last() {
                Some((id, _)) if full => from = format!("({id}"),
                _ => return Ok(own),
            }
        }
    }

    /// Says how often entries of this consumer were tried.
    pub(super) async fn set_tries(
        &self,
        conn: &mut MultiplexedConnection,
        tries: impl Iterator<Item = (&str, EntryId, u32)>,
    ) -> RedisResult<()> {
        let mut pipe = pipe();
        for (stream, id, tries) in tries {
            self.xclaim(&mut pipe, stream, &[id]).arg("RETRYCOUNT").arg(tries).arg("JUSTID");
        }
        run(conn, pipe).await
    }

    /// Sets for how long nobody has heard of entries of this consumer: zero keeps others from
    /// claiming them, and `claim_after` invites them to.
    pub(super) async fn set_idle(
        &self,
        conn: &mut MultiplexedConnection,
        stream: &str,
        ids: &[EntryId],
        idle: Duration,
    ) -> RedisResult<()> {
        let mut pipe = pipe();
        for ids in ids.chunks(PAGE) {
            self.xclaim(&mut pipe, stream, ids).arg("IDLE").arg(millis(idle)).arg("JUSTID");
        }
        run(conn, pipe).await
    }

    /// `XCLAIM` without `JUSTID` would count a delivery.
    fn xclaim<'p>(
        &self,
        pipe: &'p mut redis::Pipeline,
        stream: &str,
        ids: &[EntryId],
    ) -> &'p mut redis::Pipeline {
        pipe.cmd("XCLAIM").arg(&[stream, &self.name, &self.consumer]).arg(0);
        for id in ids {
            pipe.arg(id.to_string());
        }
        pipe
    }

    pub(super) async fn acknowledge(
        &self,
        conn: &mut MultiplexedConnection,
        settled: impl Iterator<Item = (&str, Vec<EntryId>)>,
    ) -> RedisResult<()> {
        let mut pipe = pipe();
        for (stream, ids) in settled {
            for ids in ids.chunks(PAGE) {
                pipe.cmd("XACK").arg(&[stream, &self.name]);
                for id in ids {
                    pipe.arg(id.to_string());
                }
            }
        }
        run(conn, pipe).await
    }

    /// Moves an entry to the dead letters, unless it is not pending any more.
    pub(super) async fn bury(
        &self,
        conn: &mut MultiplexedConnection,
        (stream, dead): (&str, &str),
        id: EntryId,
        fields: impl Iterator<Item = (&[u8], &[u8])>,
    ) -> RedisResult<()> {
        let script = Script::new(include_str!("dead.lua"));
        let mut call = script.key(stream);
        call.key(dead).arg(&self.name).arg(id.to_string());
        for (name, value) in fields {
            call.arg(name).arg(value);
        }
        call.invoke_async::<i64>(conn).await.map(drop)
    }
}

async fn run(conn: &mut MultiplexedConnection, pipe: redis::Pipeline) -> RedisResult<()> {
    if pipe.is_empty() {
        return Ok(());
    }
    pipe.query_async::<Value>(conn).await.map(drop)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn unreadable(error: Unreadable) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "unreadable", error.to_string()))
}
