//! The two services end to end: customers order over HTTP while both services are killed again and
//! again, and at the end what was billed is what was ordered.
//!
//! ```sh
//! cargo xtask demo --full        # starts servers of its own
//! ```
//!
//! Nothing of yours is touched: it works in databases and under a stream name of its own and
//! removes them. The services end with it, whatever ends it.

mod customers;
mod scratch;
mod service;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use self::customers::Customers;
use self::scratch::{Books, Scratch};
use self::service::Service;

/// For progress between two looks at the books.
const PATIENCE: Duration = Duration::from_secs(60);

/// Orders, kills both services meanwhile, and compares the books.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many orders to place.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..))]
    orders: u64,
    /// How often to kill each service.
    #[arg(long, default_value_t = 3)]
    kills: u64,
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
        ended = interrupted() => ended.and(Err(anyhow!("interrupted"))),
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

/// Ends in order, so that nothing is left behind.
async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt?,
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// Says whether every order was billed once.
async fn demo(arguments: &Arguments) -> Result<bool> {
    let scratch = Scratch::create(&arguments.database_url, &arguments.redis_url)?;
    let mut orders = Service::new(
        "orders",
        &[
            ("DATABASE_URL", &scratch.orders_url()),
            ("REDIS_URL", &arguments.redis_url),
            ("STREAM_PREFIX", &scratch.stream_prefix()),
            ("LISTEN", &service::free_address()?),
        ],
    )?;
    let mut billing = Service::new(
        "billing",
        &[
            ("DATABASE_URL", &scratch.billing_url()),
            ("REDIS_URL", &arguments.redis_url),
            ("STREAM_PREFIX", &scratch.stream_prefix()),
        ],
    )?;
    orders.start()?;
    billing.start()?;

    let customers = Arc::new(Customers::new(&orders.variable("LISTEN"), arguments.orders)?);
    let placing = customers.clone().start();
    println!(
        "{} orders over HTTP; each service is killed {} times",
        arguments.orders, arguments.kills
    );
    // At even steps of what is billed, so that both are in the middle of their work.
    for kill in 0..2 * arguments.kills {
        let step = arguments.orders * (kill + 1) / (2 * arguments.kills + 2);
        scratch.billed(step, PATIENCE).await?;
        let victim = if kill % 2 == 0 { &mut orders } else { &mut billing };
        victim.kill()?;
        victim.start()?;
    }
    placing.await.context("the customers have not got all their orders placed")??;
    let began = Instant::now();
    scratch.billed(arguments.orders, PATIENCE).await?;
    // A bill that is too much comes late: what the broker still has is handled before the books
    // are compared.
    scratch.nothing_pending(PATIENCE).await?;
    println!("all billed {:.1} s after the last order", began.elapsed().as_secs_f64());
    orders.kill()?;
    billing.kill()?;

    let Books { ordered, billed, lost, twice, cents_ordered, cents_billed } = scratch.books()?;
    println!(
        "demo: ordered {ordered}, billed {billed}, lost {lost}, billed twice {twice}, cents {cents_ordered} = {cents_billed}, killed orders {}, billing {}, requests repeated {}",
        orders.kills() - 1,
        billing.kills() - 1,
        customers.repeated(),
    );
    let all = i64::try_from(arguments.orders)?;
    Ok((ordered, billed, lost, twice) == (all, all, 0, 0) && cents_ordered == cents_billed)
}
