//! outbox-core with outbox-postgres: a queue with `SKIP LOCKED` and a status per row. It promises no
//! order, so none is asked for.

use std::sync::{Arc, Mutex};

use outbox_postgres::{PostgresOutbox, PostgresWriter};
use outbox_core::prelude::*;
use outbox_core::{OutboxConfig, OutboxService};
use tokio::sync::{Notify, watch};

use peers::judge::Judge;
use peers::{Changed, Outcome, arguments, backlog, report, wait_for_go};

struct Counter {
    judge: Arc<Mutex<Judge>>,
    events: u32,
    all: Arc<Notify>,
}

#[async_trait::async_trait]
impl Transport<Changed> for Counter {
    async fn publish(&self, event: Event<Changed>) -> Result<(), OutboxError> {
        let mut judge = self.judge.lock().expect("no panic while it is held");
        judge.see(event.payload.as_value());
        if judge.events() >= self.events {
            self.all.notify_one();
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Outcome {
    let (pool, events, aggregates) = arguments().await?;
    sqlx::raw_sql(include_str!("../../migrations/outbox_postgres.sql")).execute(&pool).await?;
    let config = Arc::new(OutboxConfig::<Changed>::default());
    let service = OutboxService::new(Arc::new(PostgresWriter), config.clone());
    let all: Vec<Changed> = backlog(events, aggregates).collect();
    for slice in all.chunks(1000) {
        let mut tx = pool.begin().await?;
        for event in slice {
            service.add_event("account.changed", event.clone(), None, &mut *tx).await?;
        }
        tx.commit().await?;
    }
    sqlx::raw_sql("VACUUM (FREEZE, ANALYZE)").execute(&pool).await?;
    let judge = Arc::new(Mutex::new(Judge::default()));
    let all = Arc::new(Notify::new());
    let counter = Counter { judge: judge.clone(), events, all: all.clone() };
    let (stop, stopped) = watch::channel(false);
    let manager = OutboxManagerBuilder::new()
        .storage(Arc::new(PostgresOutbox::<Changed>::new(pool, config.clone())))
        .publisher(Arc::new(counter))
        .config(config)
        .shutdown_rx(stopped)
        .build()?;
    wait_for_go().await?;
    let running = tokio::spawn(manager.run());
    all.notified().await;
    let verdict = judge.lock().expect("no panic while it is held").complete(events);
    report(verdict).await?;
    stop.send(true)?;
    running.await??;
    Ok(())
}
