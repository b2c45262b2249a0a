//! `cargo xtask chaos`: what is promised, while everything goes wrong.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher as _;
use std::process::{Command, ExitCode};

use xtask::install::Software;

use crate::servers::{self, Choice};
use crate::{Outcome, interrupt, stage};

/// The program that does it, and the relay beside it.
const PROGRAMS: &[&str] = &["--package", "outbox-tests", "--bin", "chaos", "--bin", "relay"];

/// What goes wrong.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Scenario {
    /// Everything, by a random schedule: relays killed and frozen, servers crashed and frozen,
    /// connections cut and silent, transactions held, partitions dropped, clocks wrong.
    Storm,
    /// Redis is away for the whole time, under 500 events a second.
    Outage,
    /// A transaction stays open for the whole time. Two sides are compared, with it and without it.
    OpenTransaction,
}

/// What to let happen.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// What goes wrong.
    #[arg(long, value_enum, default_value = "storm")]
    scenario: Scenario,
    /// For how long.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many relays share the shards.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    relays: u64,
    /// Repeats the schedule of a run that printed this seed. Default: random.
    #[arg(long)]
    seed: Option<u64>,
    /// Print the line of JSON and nothing else; the rest goes to target/chaos.log.
    #[arg(long)]
    json: bool,
}

/// Builds the programs and runs them. The exit code is 1 unless all is as promised.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    xtask::clean_leftovers()?;
    let programs = arguments.servers.programs()?;
    let mut needed = Vec::new();
    if programs.redis.is_none() {
        needed.push(Software::Redis);
    }
    if programs.postgres.is_none() {
        needed.push(Software::Postgres);
    }
    servers::ensure(&arguments.servers, &needed, &[Software::Faketime])?;
    let build = stage::run("build", || {
        interrupt::run(Command::new("cargo").args(["build", "--release"]).args(PROGRAMS))
    })?;
    if !build.success() || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let scenario = match arguments.scenario {
        Scenario::Storm => "storm",
        Scenario::Outage => "outage",
        Scenario::OpenTransaction => "open-transaction",
    };
    let numbers = [arguments.seconds, arguments.relays, arguments.seed.unwrap_or_else(random)];
    let mut command = Command::new(xtask::target().join("release/chaos"));
    command.arg(scenario).args(numbers.map(|number| number.to_string()));
    if arguments.json {
        command.stderr(File::create(xtask::target().join("chaos.log"))?);
    }
    let status = stage::run("chaos", || interrupt::run(programs.tell(&mut command)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Short enough to be typed.
fn random() -> u64 {
    RandomState::new().hash_one(()) % 1_000_000
}
