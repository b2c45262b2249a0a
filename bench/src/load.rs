//! Business transactions: an order is inserted and says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use diesel::ExpressionMethods as _;
use diesel_async::{AsyncConnection as _, AsyncPgConnection, RunQueryDsl as _};
use outbox_diesel::{AsyncEmit as _, EmitError, OutboxEvent};
use outbox_tests::TestDatabase;
use tokio::task::JoinSet;

use crate::Outcome;

diesel::table! {
    orders (id) {
        id -> BigInt,
        cents -> Integer,
    }
}

diesel::table! {
    textbook.outbox (id) {
        id -> Uuid,
        aggregate_type -> Text,
        aggregate_id -> Text,
        event_type -> Text,
        payload -> Jsonb,
    }
}

/// About 200 bytes of JSON.
#[derive(Debug, Clone, serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "order", topic = "a")]
pub(crate) struct OrderPlaced {
    #[outbox(aggregate_id)]
    pub(crate) id: i64,
    v: u64,
    cents: i32,
    note: String,
}

impl OrderPlaced {
    /// The first event of this order.
    pub(crate) fn new(id: i64) -> Self {
        Self { id, v: 1, cents: 1999, note: "leave it at the door, please. ".repeat(5) }
    }
}

/// What each transaction says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saying {
    /// An emit.
    Emit,
    /// An INSERT by hand into a textbook table.
    Insert,
}

/// Creates the tables that the transactions write to.
pub(crate) fn lay_out(database: &TestDatabase) {
    database.sql("CREATE TABLE orders (id bigint PRIMARY KEY, cents integer NOT NULL)");
    database.sql(crate::side::TEXTBOOK_SCHEMA);
}

/// One transaction; answers how long its COMMIT took, and when it was through.
pub(crate) async fn order(
    conn: &mut AsyncPgConnection,
    id: i64,
    saying: Saying,
) -> Result<(Duration, Instant), EmitError> {
    let event = OrderPlaced::new(id);
    let before = conn
        .transaction::<_, EmitError, _>(async |conn| {
            diesel::insert_into(orders::table)
                .values((orders::id.eq(id), orders::cents.eq(event.cents)))
                .execute(conn)
                .await?;
            match saying {
                Saying::Emit => {
                    conn.emit(&event).await?;
                }
                Saying::Insert => {
                    let payload = serde_json::to_value(&event).expect("it has a JSON form");
                    diesel::insert_into(outbox::table)
                        .values((
                            outbox::id.eq(uuid::Uuid::now_v7()),
                            outbox::aggregate_type.eq("order"),
                            outbox::aggregate_id.eq(event.id.to_string()),
                            outbox::event_type.eq("order.placed"),
                            outbox::payload.eq(payload),
                        ))
                        .execute(conn)
                        .await?;
                }
            }
            Ok(Instant::now())
        })
        .await?;
    let after = Instant::now();
    Ok((after - before, after))
}

/// Transactions per second of 16 writers that never pause. Fails unless each order has its event.
pub(crate) async fn full(database: &TestDatabase, saying: Saying, time: Duration) -> Outcome<f64> {
    static NEXT: AtomicI64 = AtomicI64::new(1);
    let table = match saying {
        Saying::Emit => "outbox.events",
        Saying::Insert => "textbook.outbox",
    };
    let count = format!("SELECT (SELECT count(*) FROM {table})");
    let mut conns = Vec::new();
    for _ in 0..16 {
        let mut conn = database.connect().await;
        // What a session does once, such as preparing statements and reading the catalogue.
        for _ in 0..10 {
            order(&mut conn, NEXT.fetch_add(1, Ordering::Relaxed), saying).await?;
        }
        conns.push(conn);
    }
    let before = database.value::<i64>(&count);
    let mut writers = JoinSet::new();
    let started = Instant::now();
    for mut conn in conns {
        writers.spawn(async move {
            let mut committed = 0;
            while started.elapsed() < time {
                order(&mut conn, NEXT.fetch_add(1, Ordering::Relaxed), saying).await?;
                committed += 1;
            }
            Ok::<i64, EmitError>(committed)
        });
    }
    let mut committed = 0;
    while let Some(writer) = writers.join_next().await {
        committed += writer??;
    }
    let seconds = started.elapsed().as_secs_f64();
    let said = database.value::<i64>(&count) - before;
    if said != committed {
        return Err(format!("{committed} orders have {said} events").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let committed = committed as f64;
    Ok(committed / seconds)
}

/// An order that was committed at a steady rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) id: i64,
    /// How long the COMMIT took.
    pub(crate) commit: Duration,
    pub(crate) at: Instant,
}

/// A steady rate, whatever the server does: who is late is not slowed down, but hurries.
pub(crate) async fn steady(
    database: &TestDatabase,
    per_second: u32,
    time: Duration,
) -> Outcome<Vec<Committed>> {
    const WRITERS: u32 = 8;
    let next = Arc::new(AtomicI64::new(1));
    let mut conns = Vec::new();
    for _ in 0..WRITERS {
        conns.push(database.connect().await);
    }
    let mut writers = JoinSet::new();
    let started = Instant::now();
    for (nth, mut conn) in (0..).zip(conns) {
        let next = Arc::clone(&next);
        writers.spawn(async move {
            let every = Duration::from_secs(1) * WRITERS / per_second;
            tokio::time::sleep(every / WRITERS * nth).await;
            let mut pace = tokio::time::interval(every);
            let mut orders = Vec::new();
            while started.elapsed() < time {
                pace.tick().await;
                let id = next.fetch_add(1, Ordering::Relaxed);
                let (commit, at) = order(&mut conn, id, Saying::Emit).await?;
                orders.push(Committed { id, commit, at });
            }
            Ok::<_, EmitError>(orders)
        });
    }
    let mut orders = Vec::new();
    while let Some(writer) = writers.join_next().await {
        orders.extend(writer??);
    }
    Ok(orders)
}
