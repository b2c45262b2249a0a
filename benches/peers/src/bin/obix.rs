//! obix: a log with a global sequence. Its listener delivers from the start without keeping a cursor,
//! which is the fastest of its ways.

use futures::StreamExt as _;
use obix::out::Outbox;
use obix::{EventSequence, MailboxConfig};

use peers::judge::Judge;
use peers::{Changed, Outcome, arguments, backlog, report, wait_for_go};

#[tokio::main]
async fn main() -> Outcome {
    let (pool, events, aggregates) = arguments().await?;
    sqlx::raw_sql(include_str!("../../migrations/obix.sql")).execute(&pool).await?;
    let emitting = Outbox::<Changed>::init(&pool, MailboxConfig::builder().build()).await?;
    let all: Vec<Changed> = backlog(events, aggregates).collect();
    for slice in all.chunks(1000) {
        let mut op = emitting.begin_op().await?;
        emitting.publish_all_persisted(&mut op, slice.iter().cloned()).await?;
        op.commit().await?;
    }
    drop(emitting);
    // Another instance: nothing is in its memory yet, as after a start.
    let outbox = Outbox::<Changed>::init(&pool, MailboxConfig::builder().build()).await?;
    sqlx::raw_sql("VACUUM (FREEZE, ANALYZE)").execute(&pool).await?;
    wait_for_go().await?;
    let mut judge = Judge::default();
    let mut listener = outbox.listen_persisted(EventSequence::BEGIN);
    while judge.events() < events {
        let delivery = listener.next().await.ok_or("the listener ended")?;
        let delivery = delivery.map_err(|_| "an event could not be decoded")?;
        if let Some(event) = &delivery.payload {
            judge.see(event);
        }
    }
    report(judge.in_order(events)).await
}
