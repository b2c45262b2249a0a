//! Lease: with [`Consumer::exclusive`](super::Consumer::exclusive), one consumer per stream.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult, Script, Value};
use tracing::{info, warn};
use uuid::Uuid;

use super::entry::EntryId;
use super::worker::Worker;

/// How often a stream is asked for entries while it has none: under a lease nothing blocks.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// Who holds leases, and for how long.
pub(super) struct Leasing {
    /// Random: two consumers may have been given one name.
    holder: String,
    duration: Duration,
}

impl Leasing {
    pub(super) fn new(duration: Duration) -> Self {
        Self { holder: Uuid::now_v7().to_string(), duration }
    }

    /// How often to renew.
    pub(super) fn tick(duration: Duration) -> Duration {
        duration / 4
    }

    async fn take(&self, conn: &mut MultiplexedConnection, key: &str) -> RedisResult<bool> {
        let millis = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX);
        let script = Script::new(include_str!("lease.lua"));
        script.key(key).arg(&self.holder).arg(millis).invoke_async(conn).await
    }

    /// `None` if the lease is not held.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        conn: &mut MultiplexedConnection,
        (key, stream): (&str, &str),
        command: &[&str],
    ) -> RedisResult<Option<T>> {
        let script = Script::new(include_str!("leased.lua"));
        let mut call = script.key(key);
        call.key(stream).arg(&self.holder).arg(command);
        call.invoke_async(conn).await
    }
}

impl Worker {
    /// Whether the stream may be read: always, or while it is leased.
    pub(super) fn is_mine(&self, number: usize) -> bool {
        self.leasing.is_none()
            || self.streams[number].leased_until.is_some_and(|until| until > Instant::now())
    }

    /// Whether a handler that starts now must end while the stream is still leased.
    pub(super) fn may_start(&self, number: usize) -> bool {
        let ends = Instant::now() + self.settings.handler_timeout;
        self.leasing.is_none()
            || self.streams[number].leased_until.is_some_and(|until| until > ends)
    }

    /// Renews leases, takes those that are free, and lets go of what is of lost ones.
    pub(super) async fn renew(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        for number in 0..self.streams.len() {
            let Some(leasing) = &self.leasing else { return Ok(()) };
            let stream = &self.streams[number];
            let (name, asked) = (Arc::clone(&stream.name), Instant::now());
            let was_mine = self.is_mine(number);
            if leasing.take(conn, &stream.lease).await? {
                if !was_mine {
                    info!(stream = %name, "leased the stream");
                    self.forget_stream(number);
                    self.take_over(conn, number).await?;
                }
                let until = self.leasing.as_ref().map(|leasing| asked + leasing.duration);
                self.streams[number].leased_until = until;
            } else if self.streams[number].leased_until.take().is_some() {
                warn!(stream = %name, "another consumer has leased the stream");
                self.forget_stream(number);
            }
        }
        Ok(())
    }

    /// What anybody was given and has not acknowledged comes first, in the stream's order.
    async fn take_over(
        &mut self,
        conn: &mut MultiplexedConnection,
        number: usize,
    ) -> RedisResult<()> {
        let Some(leasing) = &self.leasing else { return Ok(()) };
        let stream = &mut self.streams[number];
        let mut from = EntryId::ZERO.to_string();
        loop {
            let (group, consumer) = (&self.group.name, &self.group.consumer);
            let claim = [
                "XAUTOCLAIM",
                &*stream.name,
                group,
                consumer,
                "0",
                &from,
                "COUNT",
                "1000",
                "JUSTID",
            ];
            let claimed: Option<Vec<Value>> =
                leasing.run(conn, (&stream.lease, &stream.name), &claim).await?;
            let next = claimed.and_then(|claimed| claimed.into_iter().next());
            match next.map(redis::from_redis_value::<String>).transpose()? {
                Some(next) if next != "0-0" => from = next,
                _ => break,
            }
        }
        stream.own = Some(EntryId::ZERO);
        Ok(())
    }

    fn forget_stream(&mut self, number: usize) {
        let lost: HashSet<_> = self.lanes.held_of(number).map(|id| (number, id)).collect();
        self.lanes.forget(&lost);
    }

    /// Reads what is new in the leased streams; whether there was anything.
    pub(super) async fn read_leased(
        &mut self,
        conn: &mut MultiplexedConnection,
    ) -> RedisResult<bool> {
        let mut any = false;
        for number in 0..self.streams.len() {
            let (Some(leasing), room) = (&self.leasing, self.room()) else { return Ok(false) };
            let stream = &self.streams[number];
            if room == 0 || stream.own.is_some() || !self.is_mine(number) {
                continue;
            }
            let (group, consumer) = (&self.group.name, &self.group.consumer);
            let read = [
                "XREADGROUP",
                "GROUP",
                group,
                consumer,
                "COUNT",
                &room.to_string(),
                "STREAMS",
                &stream.name,
                ">",
            ];
            let answer: Option<Value> =
                leasing.run(conn, (&stream.lease, &stream.name), &read).await?;
            let pages = super::entry::streams(answer.unwrap_or(Value::Nil));
            for (_, entries) in pages.map_err(super::group::unreadable)? {
                any |= !entries.is_empty();
                for entry in entries {
                    self.receive(number, entry, false);
                }
            }
        }
        Ok(any)
    }

    /// Lets others have the streams at once.
    pub(super) async fn give_back(&self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        let Some(leasing) = &self.leasing else { return Ok(()) };
        for stream in &self.streams {
            let _: Option<i64> =
                leasing.run(conn, (&stream.lease, &stream.name), &["DEL", &stream.lease]).await?;
        }
        Ok(())
    }
}
