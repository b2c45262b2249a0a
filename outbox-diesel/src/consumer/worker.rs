//! The loop: reads, starts handlers, settles what they have done, and keeps its entries its own.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::ConsumerError;
use super::attempt::{Attempt, Outcome, attempt, pause};
use super::entry::{Entry, EntryId, Page};
use super::group::{Group, connect};
use super::lanes::{Item, Lanes};
use super::lease::{Leasing, POLL};
use super::options::{Settings, Start};
use super::receive::Receiver;
use super::route::{Routes, chain};
use super::settle::Settling;

/// What is not available is asked for about as often as after this many tries.
const POSTPONED: u32 = 5;

pub(super) struct Worker {
    client: Client,
    pub(super) group: Group,
    pub(super) settings: Settings,
    pub(super) receiver: Receiver,
    pub(super) streams: Vec<Stream>,
    pub(super) lanes: Lanes,
    pub(super) settling: Settling,
    pub(super) attempts: JoinSet<Attempt>,
    /// Set where each stream is read by one consumer at a time.
    pub(super) leasing: Option<Leasing>,
    /// Groups exist as far as we know: one that does not was lost.
    created: bool,
    /// Why the consumer must stop.
    pub(super) stop: Option<ConsumerError>,
}

pub(super) struct Stream {
    pub(super) name: Arc<str>,
    pub(super) dead: String,
    /// What this consumer was given before comes before what is new.
    pub(super) own: Option<EntryId>,
    /// The key of its lease, and when ours ends at the latest, by this process's clock.
    pub(super) lease: String,
    pub(super) leased_until: Option<Instant>,
    /// Where the search for entries of silent consumers goes on.
    pub(super) claim_from: EntryId,
}

pub(super) type Reading = Pin<Box<dyn Future<Output = RedisResult<Page>> + Send>>;

impl Worker {
    pub(super) fn new(client: Client, group: Group, settings: Settings, routes: Routes) -> Self {
        let leasing = settings.exclusive.map(Leasing::new);
        let streams = settings
            .streams
            .iter()
            .map(|name| Stream {
                name: Arc::from(name.as_str()),
                dead: format!("{name}:dead"),
                own: None,
                lease: format!("outbox:lease:{{{name}}}:{}", group.name),
                leased_until: None,
                claim_from: EntryId::ZERO,
            })
            .collect();
        Self {
            client,
            group,
            receiver: Receiver::new(routes, &settings),
            settings,
            streams,
            lanes: Lanes::default(),
            settling: Settling::default(),
            attempts: JoinSet::new(),
            leasing,
            created: false,
            stop: None,
        }
    }

    /// Until cancelled, or until there is something that it must stop for.
    pub(super) async fn run(mut self, cancelled: &CancellationToken) -> Result<(), ConsumerError> {
        let mut failures = 0;
        let mut reading = None;
        while !cancelled.is_cancelled() && self.stop.is_none() {
            let began = Instant::now();
            reading = None;
            let Err(lost) = self.session(cancelled, &mut reading).await else { break };
            if began.elapsed() > Duration::from_secs(10) {
                failures = 0;
            }
            failures += 1;
            let wait = pause(Duration::from_millis(100), Duration::from_secs(5), failures)
                .max(Duration::from_millis(20));
            warn!(group = %self.group.name, consumer = %self.group.consumer, cause = chain(&lost), ?wait, "the consumer lost redis and will connect again");
            tokio::select! {
                () = cancelled.cancelled() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.leave(reading).await;
        self.stop.map_or(Ok(()), Err)
    }

    async fn session(
        &mut self,
        cancelled: &CancellationToken,
        reading: &mut Option<Reading>,
    ) -> RedisResult<()> {
        let reader = self.connect(self.settings.block).await?;
        let mut conn = self.connect(Duration::ZERO).await?;
        self.create_groups(&mut conn).await?;
        for stream in &mut self.streams {
            stream.own = Some(EntryId::ZERO);
        }
        self.renew(&mut conn).await?;
        self.settle(&mut conn).await?;
        let mut tick = tokio::time::interval(self.settings.tick());
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while self.stop.is_none() {
            self.read_own(&mut conn).await?;
            let mut poll = self.leasing.is_some().then(|| Instant::now() + POLL);
            if self.read_leased(&mut conn).await? {
                poll = poll.map(|_| Instant::now());
            }
            self.settle(&mut conn).await?;
            self.start(&mut conn).await?;
            if reading.is_none() {
                *reading = self.read(&reader);
            }
            let due = self.lanes.next_due().filter(|_| self.has_capacity());
            tokio::select! {
                () = cancelled.cancelled() => return Ok(()),
                Some(ended) = self.attempts.join_next() => {
                    self.finish(ended);
                    while let Some(ended) = self.attempts.try_join_next() {
                        self.finish(ended);
                    }
                    self.settle(&mut conn).await?;
                }
                page = async { reading.as_mut().expect("checked").await }, if reading.is_some() => {
                    *reading = None;
                    for (number, entries) in page? {
                        for entry in entries {
                            self.receive(number, entry, false);
                        }
                    }
                    self.settle(&mut conn).await?;
                }
                _ = tick.tick() => {
                    self.renew(&mut conn).await?;
                    self.keep(&mut conn).await?;
                    self.claim(&mut conn).await?;
                    self.settle(&mut conn).await?;
                }
                () = sleep_until(due) => {}
                () = sleep_until(poll) => {}
            }
        }
        Ok(())
    }

    pub(super) async fn connect(&self, longer: Duration) -> RedisResult<MultiplexedConnection> {
        let settings = &self.settings;
        let answering = settings.response_timeout + longer;
        connect(&self.client, settings.connect_timeout, answering).await
    }

    async fn create_groups(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        for stream in &self.streams {
            let start = if self.created { Start::Beginning } else { self.settings.start };
            if self.group.create(conn, &stream.name, start).await? {
                if self.created {
                    warn!(stream = %stream.name, group = %self.group.name, "the consumer group was gone and was created again at the stream's beginning");
                } else {
                    info!(stream = %stream.name, group = %self.group.name, ?start, "created the consumer group");
                }
            }
        }
        self.created = true;
        Ok(())
    }

    fn has_capacity(&self) -> bool {
        self.lanes.running() < self.settings.concurrency
    }

    /// Starts handlers while there are events for them and room.
    async fn start(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        let mut items: Vec<Item> = Vec::new();
        while self.has_capacity()
            && let Some(item) = self.lanes.next(Instant::now())
        {
            if self.may_start(item.place.0) {
                items.push(item);
            } else {
                // Its lease is lost or about to be renewed.
                self.lanes.failed(item.delivery, Instant::now() + POLL);
            }
        }
        // Before they run: a try that ends the process counts too.
        let again = items.iter().filter(|item| item.redelivered);
        let tries = again
            .map(|item| (&*self.streams[item.place.0].name, item.place.1, item.delivery.attempt()));
        if let Err(lost) = self.group.set_tries(conn, tries).await {
            for item in items {
                self.lanes.failed(item.delivery, Instant::now());
            }
            return Err(lost);
        }
        for Item { place, delivery, .. } in items {
            let handler = self.receiver.handler(&delivery);
            let timeout = self.settings.handler_timeout;
            self.attempts.spawn(attempt(handler, place, delivery, timeout));
        }
        Ok(())
    }

    fn read(&self, reader: &MultiplexedConnection) -> Option<Reading> {
        let room = self.room();
        if room == 0
            || self.leasing.is_some()
            || self.streams.iter().any(|stream| stream.own.is_some())
        {
            return None;
        }
        let (group, reader) = (self.group.clone(), reader.clone());
        let numbered = self.streams.iter().enumerate();
        let streams: Vec<_> =
            numbered.map(|(number, stream)| (number, stream.name.to_string())).collect();
        let (block, each) = (self.settings.block, (room / streams.len()).max(1));
        Some(Box::pin(group.read_new(reader, streams, each, block)))
    }

    /// Reads what this consumer was given before. Not beside the loop, as what is new: an entry
    /// that is settled while its page is under way would look like one that is not in hand.
    async fn read_own(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        for number in 0..self.streams.len() {
            while let Some(after) = self.streams[number].own.filter(|_| self.is_mine(number)) {
                let room = self.room();
                if room == 0 || self.stop.is_some() {
                    return Ok(());
                }
                let name = Arc::clone(&self.streams[number].name);
                let entries = self.group.read_own(conn, &name, after, room).await?;
                self.streams[number].own = entries.last().map(|entry| entry.id);
                self.receive_again(conn, number, entries).await?;
            }
        }
        Ok(())
    }

    pub(super) fn room(&self) -> usize {
        self.settings.prefetch.saturating_sub(self.lanes.held())
    }

    /// What was delivered before was not necessarily tried: being read does not count as a try.
    pub(super) async fn receive_again(
        &mut self,
        conn: &mut MultiplexedConnection,
        number: usize,
        entries: Vec<Entry>,
    ) -> RedisResult<()> {
        let counted: Vec<_> =
            entries.iter().map(|entry| (entry.id, entry.deliveries.saturating_sub(1))).collect();
        for entry in entries {
            self.receive(number, entry, true);
        }
        let name = Arc::clone(&self.streams[number].name);
        let tries = counted.into_iter().filter(|(_, tries)| *tries > 0);
        self.group.set_tries(conn, tries.map(|(id, tries)| (&*name, id, tries))).await
    }

    pub(super) fn finish(&mut self, ended: Result<Attempt, tokio::task::JoinError>) {
        // Panics are caught inside, and nobody cancels but the one who drops the set.
        let Ok(Attempt { place, delivery, outcome }) = ended else { return };
        let last = delivery.attempt() >= self.settings.max_deliveries;
        match outcome {
            Outcome::Handled => {
                self.lanes.done(&delivery);
                self.settling.acknowledge(place);
            }
            Outcome::Failed { error } if !last => {
                let settings = &self.settings;
                let wait = pause(settings.retry_base, settings.retry_cap, delivery.attempt());
                debug!(event_id = %delivery.event_id(), event_type = delivery.event_type(), topic = delivery.topic(), aggregate_id = delivery.aggregate_id(), attempt = delivery.attempt(), trace_id = delivery.trace_id(), error, ?wait, "a handler failed; its aggregate waits");
                let next = delivery.with_attempt(delivery.attempt() + 1);
                self.lanes.failed(next, Instant::now() + wait);
            }
            Outcome::Postponed { error } => {
                let settings = &self.settings;
                let wait = pause(settings.retry_base, settings.retry_cap, POSTPONED);
                warn!(event_id = %delivery.event_id(), event_type = delivery.event_type(), topic = delivery.topic(), aggregate_id = delivery.aggregate_id(), attempt = delivery.attempt(), trace_id = delivery.trace_id(), error, ?wait, "an event was postponed; its aggregate waits");
                self.lanes.failed(delivery, Instant::now() + wait);
            }
            Outcome::Failed { error } | Outcome::Rejected { error } => {
                warn!(event_id = %delivery.event_id(), event_type = delivery.event_type(), topic = delivery.topic(), aggregate_id = delivery.aggregate_id(), attempt = delivery.attempt(), trace_id = delivery.trace_id(), error, "an event became a dead letter");
                self.lanes.done(&delivery);
                let (tries, fields) = (delivery.attempt(), delivery.fields().to_vec());
                self.settling.bury(place, error, tries, fields);
            }
        }
    }

    async fn settle(&mut self, conn: &mut MultiplexedConnection) -> RedisResult<()> {
        self.settling.flush(conn, &self.group, &self.streams, &mut self.lanes).await
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
