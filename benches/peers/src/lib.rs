//! Drains a backlog with another outbox: `peers obix|outbox-postgres <empty database's url> <events>
//! <aggregates>`.
//!
//! Emits through the peer's public API, says `ready`, starts when it reads `go`, and says `done` with
//! what is wrong, if something is, once a publisher that only counts has seen every event.

mod judge;
mod obix;
mod outbox_postgres;

use std::error::Error;

use tokio::io::{AsyncBufReadExt as _, BufReader};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The same events as ours: about 200 bytes.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Changed {
    aggregate: u32,
    v: u32,
    fill: String,
}

/// The backlog, in the order of emit.
fn backlog(events: u32, aggregates: u32) -> impl Iterator<Item = Changed> {
    (0..events).map(move |n| Changed {
        aggregate: n % aggregates,
        v: n / aggregates + 1,
        fill: format!("{n:032x}").repeat(6),
    })
}

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [peer, database, events, aggregates] = arguments.as_slice() else {
        return Err("peers obix|outbox-postgres <database url> <events> <aggregates>".into());
    };
    let pool = sqlx::PgPool::connect(database).await?;
    let (events, aggregates) = (events.parse()?, aggregates.parse()?);
    match peer.as_str() {
        "obix" => obix::run(pool, events, aggregates).await,
        "outbox-postgres" => outbox_postgres::run(pool, events, aggregates).await,
        other => Err(format!("{other} is no peer").into()),
    }
}

/// Says that the backlog is there, and waits for the start.
async fn wait_for_go() -> Outcome {
    println!("ready");
    BufReader::new(tokio::io::stdin()).lines().next_line().await?;
    Ok(())
}

/// Says what came of it, and waits for the end.
async fn report(verdict: Result<(), String>) -> Outcome {
    println!("done {}", verdict.err().unwrap_or_default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {}
    Ok(())
}
