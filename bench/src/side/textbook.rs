//! The usual relay, as written many times: claim a batch with `SKIP LOCKED`, publish event by event,
//! mark event by event, commit.

use chrono::{DateTime, Utc};
use diesel::{ExpressionMethods as _, QueryDsl as _, Queryable};
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use super::Input;
use crate::Outcome;

diesel::table! {
    textbook.outbox (id) {
        id -> Uuid,
        aggregate_type -> Text,
        aggregate_id -> Text,
        event_type -> Text,
        payload -> Jsonb,
        created_at -> Timestamptz,
        processed_at -> Nullable<Timestamptz>,
    }
}

/// The table it needs, as in most descriptions of the pattern.
pub(crate) const SCHEMA: &str = "\
CREATE SCHEMA textbook;
CREATE TABLE textbook.outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at timestamptz
);
CREATE INDEX ON textbook.outbox (created_at) WHERE processed_at IS NULL";

#[derive(Debug, Queryable)]
#[expect(clippy::struct_field_names, reason = "the columns' names")]
struct Event {
    id: Uuid,
    aggregate_type: String,
    aggregate_id: String,
    event_type: String,
    payload: serde_json::Value,
    created_at: DateTime<Utc>,
}

/// Works until all is done.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Textbook {
    database: String,
    redis: String,
    stream: String,
}

impl Textbook {
    pub(super) async fn run(self) -> Outcome {
        let mut conn = AsyncPgConnection::establish(&self.database).await?;
        let client = redis::Client::open(self.redis.as_str())?;
        let mut broker = client.get_multiplexed_async_connection().await?;
        let input = Input::wait_for_go().await?;
        while self.relay(&mut conn, &mut broker).await? > 0 {}
        println!("done");
        input.wait_for_end().await;
        Ok(())
    }

    /// One batch.
    async fn relay(
        &self,
        conn: &mut AsyncPgConnection,
        broker: &mut MultiplexedConnection,
    ) -> Outcome<usize> {
        conn.transaction(async |conn| {
            let events: Vec<Event> = outbox::table
                .filter(outbox::processed_at.is_null())
                .order(outbox::created_at)
                .limit(100)
                .select((
                    outbox::id,
                    outbox::aggregate_type,
                    outbox::aggregate_id,
                    outbox::event_type,
                    outbox::payload,
                    outbox::created_at,
                ))
                .for_update()
                .skip_locked()
                .load(conn)
                .await?;
            for event in &events {
                redis::cmd("XADD")
                    .arg(&self.stream)
                    .arg("*")
                    .arg("event_id")
                    .arg(event.id.to_string())
                    .arg("aggregate_type")
                    .arg(&event.aggregate_type)
                    .arg("aggregate_id")
                    .arg(&event.aggregate_id)
                    .arg("event_type")
                    .arg(&event.event_type)
                    .arg("payload")
                    .arg(event.payload.to_string())
                    .arg("created_at")
                    .arg(event.created_at.to_rfc3339())
                    .query_async::<String>(broker)
                    .await?;
                diesel::update(outbox::table.find(event.id))
                    .set(outbox::processed_at.eq(Utc::now()))
                    .execute(conn)
                    .await?;
            }
            Ok(events.len())
        })
        .await
    }
}
