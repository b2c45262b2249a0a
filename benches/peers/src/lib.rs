//! What the peers' programs share. Each drains a backlog with another outbox: `<program> <empty
//! database's url> <events> <aggregates>`.
//!
//! It emits through the peer's public API, says `ready`, starts when it reads `go`, and says `done`
//! with what is wrong, if something is, once a publisher that only counts has seen every event.

pub mod judge;

use std::error::Error;

use tokio::io::{AsyncBufReadExt as _, BufReader};

pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The same events as ours: about 200 bytes.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub struct Changed {
    pub aggregate: u32,
    pub v: u32,
    fill: String,
}

/// The backlog, in the order of emit.
pub fn backlog(events: u32, aggregates: u32) -> impl Iterator<Item = Changed> {
    (0..events).map(move |n| Changed {
        aggregate: n % aggregates,
        v: n / aggregates + 1,
        fill: format!("{n:032x}").repeat(6),
    })
}

/// The database, and how many events of how many aggregates to emit.
pub async fn arguments() -> Outcome<(sqlx::PgPool, u32, u32)> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, events, aggregates] = arguments.as_slice() else {
        return Err("usage: <database url> <events> <aggregates>".into());
    };
    Ok((sqlx::PgPool::connect(database).await?, events.parse()?, aggregates.parse()?))
}

/// Says that the backlog is there, and waits for the start.
pub async fn wait_for_go() -> Outcome {
    println!("ready");
    BufReader::new(tokio::io::stdin()).lines().next_line().await?;
    Ok(())
}

/// Says what came of it, and waits for the end.
pub async fn report(verdict: Result<(), String>) -> Outcome {
    println!("done {}", verdict.err().unwrap_or_default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {}
    Ok(())
}
