//! The whole way of an event: a shop commits orders and the events that tell of them in one
//! transaction, an embedded relay carries the events to a Redis stream, a consumer handles them.
//! At the end every event is accounted for.
//!
//! ```sh
//! cargo xtask demo        # starts servers of its own
//! DATABASE_URL=… REDIS_URL=… cargo run --example orders --features relay,redis
//! ```
//!
//! Read `shop.rs` and its two writers first: they are what an application looks like. Nothing of
//! yours is touched: the demo works in a database and under stream names of its own and removes
//! both.

mod consumer;
mod ledger;
mod progress;
mod schedule;
mod scratch;
mod shop;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::Relay;
use outbox_diesel::publish::redis::RedisPublisher;
use tokio::task::JoinSet;

use self::consumer::Consumer;
use self::ledger::Ledger;
use self::progress::Progress;
use self::schedule::Schedule;
use self::scratch::Scratch;

/// Events per second of the paced part, during which latency is measured.
const PACE: u64 = 1_000;

/// Commits orders and their events, relays the events to Redis, and checks what arrived.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many events to emit and commit.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    events: u64,
    /// A PostgreSQL server, with a role that may create databases.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database_url: url::Url,
    /// A Redis server.
    #[arg(long, env = "REDIS_URL", hide_env_values = true)]
    redis_url: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = tokio::select! {
        outcome = demo(&arguments) => outcome,
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether everything that was committed arrived, once and in order, and nothing else.
async fn demo(arguments: &Arguments) -> Result<bool> {
    let scratch = Scratch::create(&arguments.database_url, &arguments.redis_url)?;
    let redis = redis::Client::open(arguments.redis_url.as_str())?;
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(scratch.database_url());
    let pool = bb8::Pool::builder().max_size(4).build(manager).await?;

    // All that a service needs: a publisher, and a relay in any or all of its instances.
    let publisher = RedisPublisher::connect_lazily(arguments.redis_url.as_str())?
        .stream_prefix(scratch.stream_prefix());
    let relay = Relay::builder(pool.clone()).publisher(publisher).spawn()?;
    // Else the first events would wait for it, and that is not the latency to show.
    relay.ready().await?;

    // Consumers: one that only looks, to tell what arrived and when; one of a group.
    let ledger = Ledger::default();
    let mut readers = JoinSet::new();
    let consumer = Consumer::new(redis, scratch.stream());
    readers.spawn(consumer.clone().watch(ledger.clone()));
    readers.spawn(consumer.clone().handle(pool.clone(), ledger.clone()));

    // The shop: two threads with diesel's connections, two tasks with diesel-async's.
    let paced = (arguments.events / 4).clamp(1, 5 * PACE);
    println!("{paced} events at {PACE} a second, then {} in a burst", arguments.events - paced);
    let schedule = Schedule::new(arguments.events, paced, PACE);
    let mut writers: JoinSet<Result<()>> = JoinSet::new();
    for _ in 0..2 {
        let (url, queue, books) = (scratch.database_url(), schedule.clone(), ledger.clone());
        writers.spawn_blocking(move || shop::blocking::write(&url, &queue, &books));
        writers.spawn(shop::asynchronous::write(pool.clone(), schedule.clone(), ledger.clone()));
    }

    let started = Instant::now();
    let limit =
        Duration::from_secs(60) + Duration::from_millis(10) * u32::try_from(arguments.events)?;
    let progress = Progress::new(arguments.events);
    loop {
        let counts = ledger.counts();
        progress.show(counts);
        while let Some(writer) = writers.try_join_next() {
            writer?.context("a writer failed")?;
        }
        if let Some(reader) = readers.try_join_next() {
            reader?.context("a consumer failed")?;
        }
        let all = counts.published.min(counts.handled) >= counts.committed;
        if writers.is_empty() && all {
            break;
        }
        if started.elapsed() > limit {
            eprintln!("not done after {limit:?}; the relay says: {:?}", relay.health());
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    progress.finish();
    // What a relay sends while it stops would be a repeat by now, and must be seen.
    relay.shutdown().await;
    consumer.read_to_the_end(&ledger).await?;
    println!("as they are in Redis, the first five:");
    consumer.print_first(5).await?;

    let report = ledger.report();
    println!("{}", report.explanation());
    println!("{report}");
    Ok(report.is_perfect(arguments.events.try_into()?))
}
