//! `cargo xtask test`: every test of the workspace, against real servers.

use std::process::{Command, ExitCode};

use xtask::install::Software;
use xtask::postgres::{Durability, Options};

use crate::servers::{self, Choice};
use crate::{Outcome, interrupt, stage};

/// The test binaries' own variable.
const THREADS: &str = "RUST_TEST_THREADS";

/// How to run the tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// For `cargo test`, and after a second `--` for the test binaries.
    #[arg(last = true)]
    cargo: Vec<String>,
}

/// Builds and runs them; ends with the exit code of cargo.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let servers = stage::run("servers", || {
        servers::provide(
            &arguments.servers,
            Options::default().durability(Durability::None),
            &[Software::PgBouncer, Software::Prometheus],
        )
    })?;
    servers::warn_of_skipped_tests(&servers);
    let build = stage::run("build", || {
        interrupt::run(cargo(arguments).arg("--no-run").args(&arguments.cargo))
    });
    if !build?.success() || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let status = stage::run("tests", || {
        interrupt::run(servers.tell(cargo(arguments).args(&arguments.cargo)))
    })?;
    // No code means that a signal ended it.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

fn cargo(arguments: &Arguments) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--all-features"]);
    // Most tests mostly wait.
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        command.env(THREADS, (2 * cores).to_string());
    }
    let names_package = |word: &String| word == "-p" || word.starts_with("--package");
    if !arguments.cargo.iter().any(names_package) {
        command.arg("--workspace");
    }
    command
}
