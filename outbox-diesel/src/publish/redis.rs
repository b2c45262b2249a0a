//! The publisher for Redis Streams: in order, and once for as long as Redis keeps its data.

mod pack;
mod plain;
mod plan;
mod reply;
mod script;
mod send;
mod stream;

use std::fmt;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo};

use self::plan::Plan;
pub use self::stream::StreamNaming;
use super::{Batch, Contact, Publisher, Receipt, Unavailable};

/// How long Redis remembers that a parked event was sent: 7 days. A retry of unknown outcome that
/// is repeated later than that may arrive twice. (A `volatile-*` eviction policy may forget earlier.)
pub const PARKED_KEY_TTL: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Bounds a stream after each batch that was added to it.
///
/// **Trimming loses unread entries**: Redis drops the oldest whether or not a consumer group has
/// read them. Both bounds are approximate (`~`): a stream keeps up to a node (100 entries by
/// default) more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trim {
    /// Keeps about so many entries.
    MaxLen(u64),
    /// Keeps entries that are younger than this, by the clock of Redis.
    MaxAge(Duration),
}

/// How entries get into streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// By scripts that look at the fence.
    Fenced,
    /// By transactions that look at nothing.
    Plain,
}

/// The URL is none that Redis can be reached by.
#[derive(Debug, thiserror::Error)]
#[error("the redis url is not usable")]
pub struct InvalidRedisUrl(#[source] ::redis::RedisError);

/// Publishes to Redis Streams, with one script call per stream and batch, all of them in one pipeline.
///
/// Each event becomes an entry with the fields `event_id`, `topic`, `aggregate_type`,
/// `aggregate_id`, `event_type`, `event_version`, `dedup_key` (empty if there is none), `payload`,
/// `headers` and `created_at` (RFC 3339, microseconds, UTC).
///
/// Beside each stream lies its fence, the hash `outbox:fence:{<stream>}`: what was the last
/// position and who may write, per source, subscription and shard. Deleting it makes repeats
/// possible. An answer from Redis says that the entry is in its memory. Whether it outlives a crash
/// or a failover is for `appendfsync`, replication and `maxmemory-policy` to say: under an
/// `allkeys-*` policy Redis may drop whole streams and fences, and a warning is logged.
///
/// Its user needs `EVALSHA`, `EVAL`, `HMGET`, `HSET`, `XADD`, `EXISTS` and `SET` (`XTRIM` and
/// `TIME` to trim, `INFO` for that warning) on the streams, `outbox:fence:*` and `outbox:parked:*`.
///
/// Where no scripts may run, [`without_scripts`](Self::without_scripts) does without, and without the
/// fence.
///
/// Needs Redis 6.2 or Valkey 7.2, one node or one primary (a clustered server answers `MOVED` for
/// streams that live elsewhere, which is unavailability). `rediss://` URLs use TLS with the
/// system's root certificates. They use the process's rustls provider; where the program has
/// chosen none by the time of the first connection, ring is installed.
///
/// ```
/// use outbox_diesel::publish::redis::{RedisPublisher, StreamNaming};
///
/// let publisher = RedisPublisher::connect_lazily("redis://127.0.0.1/")?
///     .stream_prefix("shop:")
///     .streams(StreamNaming::PerShard { per_topic: 4 });
/// # Ok::<(), outbox_diesel::publish::redis::InvalidRedisUrl>(())
/// ```
pub struct RedisPublisher {
    client: Client,
    writes: Writes,
    prefix: String,
    naming: StreamNaming,
    trim: Option<Trim>,
    response_timeout: Duration,
    connect_timeout: Duration,
    /// Taken out for the time of each call: a call that is dropped halfway leaves none behind, so
    /// that the next one can't read its replies.
    connection: Option<MultiplexedConnection>,
    plan: Plan,
    packed: Vec<u8>,
    warned_of_eviction: bool,
}

impl RedisPublisher {
    /// A publisher for the server that the client knows. Connects at the first call.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            writes: Writes::Fenced,
            prefix: String::new(),
            naming: StreamNaming::default(),
            trim: None,
            response_timeout: Duration::from_secs(4),
            connect_timeout: Duration::from_secs(2),
            connection: None,
            plan: Plan::default(),
            packed: Vec::new(),
            warned_of_eviction: false,
        }
    }

    /// A publisher for the server at the URL. Connects at the first call.
    pub fn connect_lazily(url: impl IntoConnectionInfo) -> Result<Self, InvalidRedisUrl> {
        Client::open(url).map(Self::new).map_err(InvalidRedisUrl)
    }

    /// What stream names begin with. Default: nothing.
    #[must_use]
    pub fn stream_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How events are spread over streams. Default: [`StreamNaming::PerTopic`].
    #[must_use]
    pub fn streams(mut self, naming: StreamNaming) -> Self {
        self.naming = naming;
        self
    }

    /// Bounds the streams, which can lose unread entries: see [`Trim`]. Default: they grow.
    #[must_use]
    pub fn trim(mut self, trim: Trim) -> Self {
        self.trim = Some(trim);
        self
    }

    /// Publishes without scripts, for servers and users that may run none: each stream's part of a
    /// batch is a transaction (`MULTI`, an `XADD` per event, `EXEC`), all of them in one pipeline.
    /// Default: with scripts.
    ///
    /// **It promises less**: at-least-once. Nothing is lost and order per aggregate is kept, but there
    /// is no fence that would know what was sent before. So entries come again, a batch at a time and
    /// in their order,
    /// * after an answer that did not come (a timeout, a lost connection): the same batch is sent again;
    /// * after a relay that died: its successor starts from the last cursor that was written, up to
    ///   [`settle_interval`](crate::RelayOptions::settle_interval) ago;
    /// * from a call that was on its way when its relay lost the shard: nothing shuts it out, and it
    ///   may arrive behind later events, when the server or the network comes to it;
    /// * when a parked event is tried again after an answer that did not come.
    ///
    /// Consumers tell repeats by `event_id`, as an [`Inbox`](crate::inbox::Inbox) does; to one that
    /// does, the first arrivals of an aggregate's events are in order.
    ///
    /// Its user needs `MULTI`, `EXEC` and `XADD` on the streams (`TIME` to trim by age), and no keys
    /// beside them. Relays may be switched over at any time, one by one. Fences stay where they are,
    /// and go on from there with scripts.
    ///
    /// ```
    /// use outbox_diesel::publish::redis::RedisPublisher;
    ///
    /// let publisher = RedisPublisher::connect_lazily("redis://127.0.0.1/")?.without_scripts();
    /// # Ok::<(), outbox_diesel::publish::redis::InvalidRedisUrl>(())
    /// ```
    #[must_use]
    pub fn without_scripts(mut self) -> Self {
        self.writes = Writes::Plain;
        self
    }

    /// How long to wait for an answer. Default: 4 s. Keep it below the relay's publish timeout, or
    /// the relay gives up first and knows less.
    #[must_use]
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long connecting may take. Default: 2 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    async fn connect(&mut self) -> Result<MultiplexedConnection, Unavailable> {
        if matches!(self.client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. }) {
            choose_crypto_provider();
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.response_timeout));
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| Unavailable(reply::connection_error(&error)))?;
        if !self.warned_of_eviction && evicts(&mut connection).await {
            self.warned_of_eviction = true;
            tracing::warn!("redis may evict streams: its maxmemory-policy is an allkeys one");
        }
        if self.writes == Writes::Plain {
            plain::check(&mut connection).await?;
        }
        Ok(connection)
    }

    async fn first_contact(
        &mut self,
        connection: Option<MultiplexedConnection>,
        batch: &Batch<'_>,
    ) -> Result<(MultiplexedConnection, Vec<Contact>), Unavailable> {
        let mut connection = if let Some(connection) = connection {
            connection
        } else {
            self.plan.forget_contacts();
            self.connect().await?
        };
        let missing = self.missing_contacts(batch);
        let contacts = if missing.is_empty() {
            Vec::new()
        } else {
            send::contact(&mut connection, &mut self.plan, batch.stamp(), &missing).await?
        };
        Ok((connection, contacts))
    }

    /// Finds each event's stream, and the streams that are still to be asked what they hold.
    fn missing_contacts(&mut self, batch: &Batch<'_>) -> Vec<(usize, u16)> {
        self.plan.place(&self.prefix, &self.naming, batch.messages());
        match self.writes {
            Writes::Fenced => self.plan.missing_contacts(batch),
            // There is nothing to ask.
            Writes::Plain => Vec::new(),
        }
    }

    async fn send(
        &mut self,
        connection: Option<MultiplexedConnection>,
        batch: &Batch<'_>,
        receipt: &mut Receipt,
    ) -> Result<MultiplexedConnection, Unavailable> {
        let known =
            self.plan.is_identified(batch.stamp()) && self.missing_contacts(batch).is_empty();
        let (Some(mut connection), true) = (connection, known) else {
            return Err(Unavailable(String::from(
                "a stream of the batch had no first contact yet",
            )));
        };
        let options =
            send::Options { writes: self.writes, packed: &mut self.packed, trim: self.trim };
        send::publish(&mut connection, &mut self.plan, options, batch, receipt).await?;
        Ok(connection)
    }
}

/// # Cancel safety
/// Either future can be dropped: the connection goes with it, and the next contact makes a new one.
/// Redis may still run what the dropped call had sent, until it hears of a higher epoch.
impl Publisher for RedisPublisher {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        pack::check_stamp(batch.stamp()).map_err(Unavailable)?;
        batch.messages().iter().try_for_each(pack::check_message).map_err(Unavailable)?;
        self.plan.identify(batch.stamp());
        self.plan.bound();
        let taken = self.connection.take();
        let (connection, contacts) = self.first_contact(taken, batch).await?;
        self.connection = Some(connection);
        Ok(contacts)
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        let mut receipt = Receipt::new(batch);
        if let Err(reason) = pack::check_batch(batch) {
            receipt.unavailable(reason);
            return receipt;
        }
        let taken = self.connection.take();
        match self.send(taken, batch, &mut receipt).await {
            Ok(connection) => self.connection = Some(connection),
            // Also after READONLY and the like: a new connection may find the new primary.
            Err(Unavailable(reason)) => receipt.unavailable(reason),
        }
        receipt
    }
}

impl fmt::Debug for RedisPublisher {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisPublisher")
            .field("server", &self.client.get_connection_info().addr().to_string())
            .field("writes", &self.writes)
            .field("stream_prefix", &self.prefix)
            .field("streams", &self.naming)
            .field("trim", &self.trim)
            .field("response_timeout", &self.response_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("connected", &self.connection.is_some())
            .finish_non_exhaustive()
    }
}

/// rustls panics where a program links several providers, or none, and has chosen none. A choice
/// that was made stays.
fn choose_crypto_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Failing means that another thread has chosen in between.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Whether the server says that it evicts keys of any kind. Not every user may ask: then no.
async fn evicts(connection: &mut MultiplexedConnection) -> bool {
    let memory: Result<String, _> =
        ::redis::cmd("INFO").arg("memory").query_async(connection).await;
    memory.is_ok_and(|memory| memory.contains("maxmemory_policy:allkeys"))
}
