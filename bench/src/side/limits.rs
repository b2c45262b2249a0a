//! The raw limits: the same rows by a plain SELECT through the same driver, and pipelined XADD of
//! the same fields through the same client. Both say how many seconds they took.

use std::hint::black_box;
use std::time::Instant;

use diesel::row::{Field as _, Row as _};
use diesel_async::{AsyncConnection as _, AsyncConnectionCore as _, AsyncPgConnection};
use futures_util::TryStreamExt as _;
use redis::Pipeline;

use super::Input;
use crate::Outcome;

const COLUMNS: usize = 10;

type Columns = (
    diesel::sql_types::Text,
    diesel::sql_types::Text,
    diesel::sql_types::Text,
    diesel::sql_types::Text,
    diesel::sql_types::Text,
    diesel::sql_types::SmallInt,
    diesel::sql_types::Nullable<diesel::sql_types::Text>,
    diesel::sql_types::Json,
    diesel::sql_types::Json,
    diesel::sql_types::Timestamptz,
);

/// What a reader of the log needs of each event.
const ALL: &str = "\
SELECT id, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at
FROM outbox.events ORDER BY seq";

/// The same as text, as it goes to Redis.
const ALL_AS_TEXT: &str = "\
SELECT id::text, topic, aggregate_type, aggregate_id, event_type, event_version, dedup_key, payload, headers, created_at
FROM outbox.events ORDER BY seq";

/// Hands each row's columns to `each`, as they came.
async fn select(
    database: &str,
    query: &str,
    mut each: impl FnMut([&[u8]; COLUMNS]),
) -> Outcome<f64> {
    let mut conn = AsyncPgConnection::establish(database).await?;
    let started = Instant::now();
    let mut rows = conn.load(diesel::dsl::sql::<Columns>(query)).await?;
    while let Some(row) = rows.try_next().await? {
        let fields: [_; COLUMNS] = std::array::from_fn(|nth| row.get(nth));
        let values = fields.each_ref().map(|field| field.as_ref().and_then(|field| field.value()));
        each(values.each_ref().map(|value| value.as_ref().map_or(&[][..], |v| v.as_bytes())));
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Reads all events.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Select {
    database: String,
}

impl Select {
    pub(super) async fn run(self) -> Outcome {
        let input = Input::wait_for_go().await?;
        let mut bytes = 0;
        let seconds = select(&self.database, ALL, |columns| {
            bytes += black_box(columns).iter().map(|column| column.len()).sum::<usize>();
        })
        .await?;
        black_box(bytes);
        println!("done {seconds}");
        input.wait_for_end().await;
        Ok(())
    }
}

/// Adds all events to one stream, 1,000 per pipeline, each sent when the one before is answered.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Xadd {
    database: String,
    redis: String,
    stream: String,
}

const NAMES: [&str; COLUMNS] = [
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

impl Xadd {
    pub(super) async fn run(self) -> Outcome {
        let mut events: Vec<[Box<[u8]>; COLUMNS]> = Vec::new();
        select(&self.database, ALL_AS_TEXT, |columns| {
            let mut event = columns.map(Box::from);
            event[5] = Box::from(*b"1");
            event[9] = Box::from(*b"2026-11-30T13:14:15.123456Z");
            events.push(event);
        })
        .await?;
        let client = redis::Client::open(self.redis)?;
        let mut conn = client.get_multiplexed_async_connection().await?;
        let input = Input::wait_for_go().await?;
        let started = Instant::now();
        for batch in events.chunks(1000) {
            let mut pipeline = Pipeline::with_capacity(batch.len());
            for event in batch {
                let add = pipeline.cmd("XADD").arg(&self.stream).arg("*");
                for (name, value) in NAMES.iter().zip(event) {
                    add.arg(name).arg(&**value);
                }
                add.ignore();
            }
            pipeline.query_async::<()>(&mut conn).await?;
        }
        println!("done {}", started.elapsed().as_secs_f64());
        input.wait_for_end().await;
        Ok(())
    }
}
