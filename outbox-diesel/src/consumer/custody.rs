//! Custody: which pending entries are this consumer's, while it lives and when it goes.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tracing::{info, warn};

use super::entry::{Entry, EntryId};
use super::route::chain;
use super::worker::{Reading, Worker};

impl Worker {
    /// Keeps what is in hand from being claimed, and lets go of what was.
    pub(super) async fn keep(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        for number in 0..self.streams.len() {
            let mut held: Vec<_> = self.lanes.held_of(number).collect();
            held.sort_unstable();
            let (Some(first), Some(last)) = (held.first(), held.last()) else { continue };
            let name = Arc::clone(&self.streams[number].name);
            let own = self.group.own(conn, &name, *first, *last).await?;
            let is_own = |id: &EntryId| own.binary_search_by_key(id, |(own, _)| *own).is_ok();
            let (mine, gone): (Vec<_>, Vec<_>) = held.into_iter().partition(is_own);
            if !gone.is_empty() {
                warn!(stream = %name, entries = gone.len(), "entries were claimed by another consumer");
                self.lanes.forget(&gone.into_iter().map(|id| (number, id)).collect());
            }
            self.group.set_idle(conn, &name, &mine, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Takes over from consumers that have not been heard of.
    pub(super) async fn claim(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        for number in 0..self.streams.len() {
            while self.is_mine(number) {
                let room = self.room();
                if room == 0 || self.stop.is_some() {
                    return Ok(());
                }
                let stream = &self.streams[number];
                let (name, from) = (Arc::clone(&stream.name), stream.claim_from);
                let idle = self.settings.claim_after;
                let (next, entries) =
                    self.group.claim(conn, &name, idle, from, room.min(100)).await?;
                self.streams[number].claim_from = next;
                if !entries.is_empty() {
                    info!(stream = %name, entries = entries.len(), "took over entries of a silent consumer");
                    self.receive_again(conn, number, entries).await?;
                }
                if next == EntryId::ZERO {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Finishes what is running, settles it, and leaves the rest for others to claim at once.
    pub(super) async fn leave(&mut self, reading: Option<Reading>) {
        let limit = self.settings.shutdown_timeout;
        let deadline = tokio::time::Instant::now() + limit;
        // A read that is dropped may have been given entries of which nobody knows then.
        let page = match reading {
            Some(reading) => tokio::time::timeout_at(deadline, reading).await.ok(),
            None => None,
        };
        let finished = tokio::time::timeout_at(deadline, async {
            while let Some(ended) = self.attempts.join_next().await {
                self.finish(ended);
            }
        });
        if finished.await.is_err() {
            warn!(
                running = self.attempts.len(),
                ?limit,
                "handlers were abandoned; their events are delivered again"
            );
            self.attempts.shutdown().await;
        }
        let page = page.and_then(Result::ok).unwrap_or_default();
        if let Err(lost) = self.hand_over(page).await {
            warn!(
                cause = chain(&lost),
                "the consumer stopped without redis; what it had is delivered again"
            );
        }
    }

    async fn hand_over(&mut self, unread: Vec<(usize, Vec<Entry>)>) -> RedisResult<()> {
        let mut conn = self.connect(Duration::ZERO).await?;
        self.settling.flush(&mut conn, &self.group, &self.streams, &mut self.lanes).await?;
        for (number, entries) in unread {
            for entry in entries {
                self.lanes.hold((number, entry.id));
            }
        }
        for (number, stream) in self.streams.iter().enumerate() {
            let held: Vec<_> = self.lanes.held_of(number).collect();
            self.group.set_idle(&mut conn, &stream.name, &held, self.settings.claim_after).await?;
        }
        self.give_back(&mut conn).await
    }
}
