//! `cargo xtask demo`: the whole way of an event, in one command.

use std::process::{Command, ExitCode};

use xtask::postgres::Durability;

use crate::servers::{self, Choice};
use crate::{Outcome, interrupt, stage};

/// The example that is the demo, and what it is compiled with.
const EXAMPLE: &[&str] =
    &["--package", "outbox-diesel", "--example", "orders", "--features", "relay,redis"];

/// How to run the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// How many events to emit. Default: as the example has it.
    #[arg(long)]
    events: Option<u64>,
    /// For the example itself.
    #[arg(last = true)]
    example: Vec<String>,
}

/// Builds the example and runs it against servers that lose nothing that is committed.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let servers =
        stage::run("servers", || servers::provide(&arguments.servers, Durability::Full, &[]))?;
    let build = stage::run("build", || {
        interrupt::run(Command::new("cargo").args(["build", "--release"]).args(EXAMPLE))
    })?;
    if !build.success() || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let mut command = Command::new("cargo");
    command.args(["run", "--quiet", "--release"]).args(EXAMPLE).arg("--");
    if let Some(events) = arguments.events {
        command.args(["--events", &events.to_string()]);
    }
    servers.tell(command.args(&arguments.example));
    let status = stage::run("demo", || interrupt::run(&mut command))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
