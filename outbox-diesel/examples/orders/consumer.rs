//! Consumers of the stream.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use diesel::ExpressionMethods as _;
use diesel::result::QueryResult;
use diesel_async::pooled_connection::bb8::Pool;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use outbox_diesel::schema::outbox::inbox;
use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamRangeReply, StreamReadOptions, StreamReadReply};
use uuid::Uuid;

use crate::ledger::Ledger;
use crate::shop::OrderEvent;

const GROUP: &str = "billing";
/// In the order in which the publisher writes them.
const FIELDS: [&str; 10] = [
    "event_id",
    "topic",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "event_version",
    "dedup_key",
    "payload",
    "headers",
    "created_at",
];

#[derive(Clone)]
pub(crate) struct Consumer {
    redis: redis::Client,
    stream: String,
}

impl Consumer {
    pub(crate) fn new(redis: redis::Client, stream: String) -> Self {
        Self { redis, stream }
    }

    /// A member of a consumer group: reads, handles, acknowledges.
    pub(crate) async fn handle(self, pool: Pool<AsyncPgConnection>, ledger: Ledger) -> Result<()> {
        let mut redis = self.connect().await?;
        let () = redis.xgroup_create_mkstream(&self.stream, GROUP, "0").await?;
        let options = StreamReadOptions::default().group(GROUP, "billing-1").count(500).block(100);
        loop {
            // A consumer that was restarted asks for "0" first: what it was given and did not
            // acknowledge.
            let entries = self.read(&mut redis, ">", &options).await?;
            if entries.is_empty() {
                continue;
            }
            let ids = entries.iter().map(event_id).collect::<Result<Vec<_>>>()?;
            let new = handle_once(&mut *pool.get().await?, &ids).await?;
            let read: Vec<_> = entries.iter().map(|entry| &entry.id).collect();
            let _: usize = redis.xack(&self.stream, GROUP, &read).await?;
            ledger.handle(new);
        }
    }

    /// Writes down what is in the stream, and when it was there to be read.
    pub(crate) async fn watch(self, ledger: Ledger) -> Result<()> {
        let mut redis = self.connect().await?;
        let options = StreamReadOptions::default().count(1000).block(100);
        let mut last = String::from("0");
        loop {
            let entries = self.read(&mut redis, &last, &options).await?;
            let now = Instant::now();
            for entry in &entries {
                let payload: String = entry.get("payload").context("an entry has a payload")?;
                let (order, revision) = match serde_json::from_str(&payload)? {
                    OrderEvent::Opened { order_id, revision }
                    | OrderEvent::ItemAdded { order_id, revision, .. }
                    | OrderEvent::VoucherRedeemed { order_id, revision } => (order_id, revision),
                };
                ledger.see(event_id(entry)?, order, revision, now);
            }
            if let Some(entry) = entries.last() {
                last.clone_from(&entry.id);
            }
        }
    }

    /// Waits until the watcher has seen all that is in the stream.
    pub(crate) async fn read_to_the_end(&self, ledger: &Ledger) -> Result<()> {
        let length: usize = self.connect().await?.xlen(&self.stream).await?;
        let seen = async {
            while ledger.counts().published < length {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), seen).await.context("the watcher hangs")
    }

    /// Prints the stream's first entries.
    pub(crate) async fn print_first(&self, count: usize) -> Result<()> {
        let first: StreamRangeReply =
            self.connect().await?.xrange_count(&self.stream, "-", "+", count).await?;
        for entry in first.ids {
            println!("{}", entry.id);
            for field in FIELDS {
                println!("  {field:<14} {}", entry.get::<String>(field).unwrap_or_default());
            }
        }
        Ok(())
    }

    async fn read(
        &self,
        redis: &mut MultiplexedConnection,
        after: &str,
        options: &StreamReadOptions,
    ) -> Result<Vec<StreamId>> {
        let reply: Option<StreamReadReply> =
            redis.xread_options(&[&self.stream], &[after], options).await?;
        Ok(reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids).collect())
    }

    async fn connect(&self) -> Result<MultiplexedConnection> {
        // Above the time that a read may block.
        let config =
            redis::AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
        Ok(self.redis.get_multiplexed_async_connection_with_config(&config).await?)
    }
}

/// Handles what is new of these events, and returns how much that was. The inbox tells: a repeat
/// inserts nothing.
async fn handle_once(conn: &mut AsyncPgConnection, ids: &[Uuid]) -> QueryResult<usize> {
    conn.transaction(async |conn| {
        let rows = ids.iter().map(|id| (inbox::consumer.eq(GROUP), inbox::event_id.eq(*id)));
        let new: Vec<Uuid> = diesel::insert_into(inbox::table)
            .values(rows.collect::<Vec<_>>())
            .on_conflict_do_nothing()
            .returning(inbox::event_id)
            .get_results(conn)
            .await?;
        // What the new ones mean for the bills goes here, in the same transaction.
        Ok(new.len())
    })
    .await
}

fn event_id(entry: &StreamId) -> Result<Uuid> {
    let id: String = entry.get("event_id").context("an entry has an event id")?;
    Ok(id.parse()?)
}
