//! Measures the outbox against the textbook, against what the two servers can do at all, and against
//! its peers; run by `cargo xtask bench`, which starts the servers and builds in release.
//!
//! Every figure is a ratio of two sides measured one right after the other on the same data, in
//! alternating order, or a figure of ours alone; medians of several rounds are printed. Each round
//! fails unless every event arrived once and in the order of its aggregate.

mod document;
mod drain;
mod emit;
mod figure;
mod growth;
mod idle;
mod judge;
mod latency;
mod load;
mod log;
mod peers;
mod plot;
mod process;
mod side;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::figure::Figure;

/// Errors are for people who read them on a terminal.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// What to measure.
#[derive(Debug, Parser)]
#[command(name = "outbox-bench")]
struct Arguments {
    #[command(subcommand)]
    side: Option<Sub>,
    /// emit, drain, latency, idle, growth, or all of them but growth.
    #[arg(default_value = "all")]
    what: What,
    /// How many events a drain has before it.
    #[arg(long, default_value_t = 300_000)]
    events: u32,
    /// How many rounds each median is of.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Only figures whose names contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// One line of JSON per figure instead of a table.
    #[arg(long)]
    json: bool,
    /// Where the programs of the peers are; those that are not there are left out.
    #[arg(long)]
    peers: Option<PathBuf>,
    /// Writes the table, or the plots, into `docs/performance.md`.
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// One side of a measurement, started by the bench itself.
    #[command(hide = true, subcommand)]
    Side(side::Kind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Emit,
    Drain,
    Latency,
    Idle,
    Growth,
    All,
}

/// Where the servers are.
#[derive(Debug, Clone)]
struct Servers {
    database: String,
    redis: String,
}

/// How to measure, and where figures go as soon as they are known.
#[derive(Debug)]
struct Bench {
    servers: Servers,
    events: u32,
    rounds: u32,
    only: String,
    json: bool,
    peers: Option<PathBuf>,
    /// All that was reported, as rows of the table.
    rows: Vec<String>,
    missed: u32,
}

/// Where results are kept, and the plots beside it.
const DOCUMENT: &str = "docs/performance.md";
const PLOTS: &str = "docs/performance";

impl Bench {
    /// Whether the figure is asked for.
    fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// Prints a figure.
    fn report(&mut self, figure: &Figure) {
        if figure.rounds.is_empty() || !self.wants(&figure.name) {
            return;
        }
        println!("{}", if self.json { figure.to_json() } else { figure.to_row() });
        self.rows.push(figure.to_row());
        self.missed += u32::from(figure.is_reached() == Some(false));
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Sides run on one thread, as most relays would; the bench itself is 16 writers and more.
    let mut runtime = match arguments.side {
        Some(_) => tokio::runtime::Builder::new_current_thread(),
        None => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.enable_all().build().expect("a runtime");
    match runtime.block_on(run(arguments)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Outcome<ExitCode> {
    let Arguments { side, what, events, rounds, only, json, peers, write } = arguments;
    if let Some(Sub::Side(kind)) = side {
        side::run(kind).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let given = |name| std::env::var(name).map_err(|_| format!("{name} is not set"));
    let servers = Servers { database: given("DATABASE_URL")?, redis: given("REDIS_URL")? };
    let rows = vec![figure::HEAD.to_owned()];
    let mut bench = Bench { servers, events, rounds, only, json, peers, rows, missed: 0 };
    if !json && what != What::Growth {
        println!("{}", figure::HEAD);
    }
    let part = |part| what == part || what == What::All;
    if part(What::Emit) {
        timed("emit", emit::run(&mut bench)).await?;
    }
    if part(What::Drain) {
        timed("drain", drain::run(&mut bench)).await?;
    }
    if part(What::Latency) {
        timed("latency", latency::run(&mut bench)).await?;
    }
    if part(What::Idle) {
        timed("idle", idle::run(&mut bench)).await?;
    }
    if what != What::Growth && bench.rows.len() == 1 {
        return Err(format!("no figure of this part is called {:?}", bench.only).into());
    }
    if what == What::Growth {
        let lines = timed("growth", growth::run(&bench, Path::new(PLOTS))).await?;
        if write {
            document::write(Path::new(DOCUMENT), "plots", &lines)?;
        }
    } else if write {
        document::write(Path::new(DOCUMENT), "figures", &bench.rows)?;
    }
    if bench.missed > 0 {
        eprintln!("{} figures miss their goal", bench.missed);
    }
    Ok(ExitCode::SUCCESS)
}

async fn timed<T>(name: &str, part: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let started = Instant::now();
    let done = part.await.map_err(|error| format!("{name}: {error}"))?;
    eprintln!("{name}: {:.0} s", started.elapsed().as_secs_f64());
    Ok(done)
}
