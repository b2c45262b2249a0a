//! [`TestStream`]: a stream that a consumer reads.

use std::collections::HashMap;
use std::fmt::Display;

use ::redis::aio::MultiplexedConnection;
use ::redis::streams::{StreamPendingReply, StreamRangeReply};
use ::redis::{AsyncCommands as _, Client};
use uuid::Uuid;

/// A stream, and a connection that adds to it what a publisher would.
#[derive(Debug, Clone)]
pub struct TestStream {
    conn: MultiplexedConnection,
    key: String,
}

impl TestStream {
    /// The stream of this key on the server at this URL.
    pub async fn new(url: &str, key: impl Into<String>) -> Self {
        let client = Client::open(url).expect("a server's URL");
        let conn =
            client.get_multiplexed_async_connection().await.expect("Redis takes connections");
        Self { conn, key: key.into() }
    }

    /// The stream's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Adds an `order.created` of this order with this payload and a new event id, which it
    /// returns.
    pub async fn add(&self, aggregate_id: impl Display, payload: impl Display) -> Uuid {
        let event_id = Uuid::now_v7();
        self.add_again(event_id, aggregate_id, payload).await;
        event_id
    }

    /// The same with an event id that may have been there before.
    pub async fn add_again(&self, id: Uuid, aggregate_id: impl Display, payload: impl Display) {
        self.add_event(id, aggregate_id, payload, "order.created", 1).await;
    }

    /// Adds an event of any type.
    pub async fn add_event(
        &self,
        id: Uuid,
        aggregate_id: impl Display,
        payload: impl Display,
        event_type: &str,
        version: i16,
    ) {
        self.add_fields(&[
            ("event_id", &id.to_string()),
            ("topic", "order"),
            ("aggregate_type", "order"),
            ("aggregate_id", &aggregate_id.to_string()),
            ("event_type", event_type),
            ("event_version", &version.to_string()),
            ("dedup_key", ""),
            ("payload", &payload.to_string()),
            ("headers", "{\"tenant\":\"acme\"}"),
            ("created_at", "2026-11-30T13:14:15.123456Z"),
        ])
        .await;
    }

    /// Adds an entry with these fields.
    pub async fn add_fields(&self, fields: &[(&str, &str)]) {
        let mut conn = self.conn.clone();
        let _: String = conn.xadd(&self.key, "*", fields).await.expect("adds");
    }

    /// How many entries a group has not acknowledged; none if there is no such group.
    pub async fn pending(&self, group: &str) -> usize {
        let mut conn = self.conn.clone();
        match conn.xpending(&self.key, group).await {
            Ok(StreamPendingReply::Data(data)) => data.count,
            _ => 0,
        }
    }

    /// The fields of all dead letters.
    pub async fn dead(&self) -> Vec<HashMap<String, String>> {
        let mut conn = self.conn.clone();
        let range: StreamRangeReply =
            conn.xrange_all(format!("{}:dead", self.key)).await.expect("reads");
        let text = |value| redis::from_redis_value(value).expect("a text");
        let fields = |map: HashMap<String, ::redis::Value>| {
            map.into_iter().map(|(name, value)| (name, text(value))).collect()
        };
        range.ids.into_iter().map(|entry| fields(entry.map)).collect()
    }

    /// Runs a command whose answer does not matter.
    pub async fn command(&self, name: &str, args: &[&str]) {
        let mut conn = self.conn.clone();
        let _: ::redis::Value =
            ::redis::cmd(name).arg(args).query_async(&mut conn).await.expect("runs");
    }
}
