//! `cargo xtask bench`: every figure of `docs/performance.md`, in one command.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use xtask::postgres::{Durability, Options};

use crate::check::workspace;
use crate::servers::{self, Choice};
use crate::{Outcome, interrupt, stage};

/// Programs and features of `benches/peers`, a workspace of its own: they have dependencies that this
/// one does without.
const PEERS: [&str; 2] = ["obix", "outbox-postgres"];

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// Leave out the comparison with other crates, which have to be downloaded and built.
    #[arg(long)]
    no_peers: bool,
    /// emit, drain, latency, idle, all (the default), or growth for the plots; --events N,
    /// --rounds N, --only NAME, --json, --write.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    bench: Vec<String>,
}

/// Builds in release and measures against servers that lose nothing that is committed.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    // As PostgreSQL has it, and as relays that are to be woken need it.
    let options = Options::default().durability(Durability::Full);
    let options = options.setting("max_prepared_transactions", "0");
    let servers = stage::run("servers", || servers::provide(&arguments.servers, options, &[]))?;
    let mut build = cargo("build", "outbox-bench");
    if !stage::run("build", || interrupt::run(&mut build))?.success() || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let mut bench = cargo("run", "outbox-bench");
    bench.arg("--quiet").arg("--").args(&arguments.bench);
    if !arguments.no_peers {
        bench.arg("--peers").arg(stage::run("build of the peers", build_peers)?);
    }
    let status = stage::run("bench", || interrupt::run(servers.tell(&mut bench)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo(command: &str, package: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--release", "--package", package]).current_dir(workspace());
    cargo
}

/// Builds the peers beside what cargo builds for this workspace, and answers where their programs are.
fn build_peers() -> std::io::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = workspace().join(target).join("peers");
    for peer in PEERS {
        let mut build = Command::new("cargo");
        build.args(["build", "--release", "--features", peer, "--bin", peer, "--target-dir"]);
        build.arg(&target).current_dir(workspace().join("benches/peers"));
        if !interrupt::run(&mut build)?.success() {
            eprintln!("WARNING: {peer} cannot be built: its figure is LEFT OUT");
        }
    }
    Ok(target.join("release"))
}
