//! `cargo xtask bench`: every figure of `docs/performance.md`, in one command.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use xtask::postgres::Durability;

use crate::check::workspace;
use crate::servers::{self, Choice};
use crate::{Outcome, interrupt, stage};

/// The peers have dependencies that the workspace does without.
const PEERS: &str = "benches/peers";

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
    let servers =
        stage::run("servers", || servers::provide(&arguments.servers, Durability::Full, &[]))?;
    let mut build = cargo("build", "outbox-bench");
    if !stage::run("build", || interrupt::run(&mut build))?.success() || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let mut bench = cargo("run", "outbox-bench");
    bench.arg("--quiet").arg("--").args(&arguments.bench);
    if !arguments.no_peers {
        match stage::run("build of the peers", build_peers)? {
            Some(program) => {
                bench.arg("--peers").arg(program);
            }
            None => eprintln!("WARNING: the peers cannot be built: their figures are LEFT OUT"),
        }
    }
    let status = stage::run("bench", || interrupt::run(servers.tell(&mut bench)))?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cargo(command: &str, package: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.args([command, "--release", "--package", package]).current_dir(workspace());
    cargo
}

/// The peers' program, beside what cargo builds for this workspace.
fn build_peers() -> std::io::Result<Option<PathBuf>> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let target = workspace().join(target).join("peers");
    let mut build = Command::new("cargo");
    build
        .args(["build", "--release", "--manifest-path"])
        .arg(workspace().join(PEERS).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target);
    let succeeded = interrupt::run(&mut build)?.success();
    Ok(succeeded.then(|| target.join("release/peers")))
}
