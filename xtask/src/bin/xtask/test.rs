//! `cargo xtask test`: every test of the workspace, against real servers.

use std::process::{Command, ExitCode};

use xtask::install::{Permission, Software};
use xtask::postgres::Durability;

use crate::{Outcome, interrupt, servers, stage};

/// How to run the tests.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Fail if a server program is missing, instead of installing it.
    #[arg(long)]
    no_install: bool,
    /// For `cargo test`, and after a second `--` for the test binaries.
    #[arg(last = true)]
    cargo: Vec<String>,
}

/// Builds and runs them; ends with the exit code of cargo.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let permission = if arguments.no_install { Permission::Forbidden } else { Permission::Allowed };
    let servers = stage::run("servers", || {
        servers::provide(permission, Durability::None, &[Software::PgBouncer])
    })?;
    servers::warn_of_skipped_tests();
    let build = stage::run("build", || {
        interrupt::run(cargo(arguments).arg("--no-run").args(&arguments.cargo))
    });
    if !build?.success() || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let status = stage::run("tests", || {
        interrupt::run(
            cargo(arguments)
                .args(&arguments.cargo)
                .env(servers::DATABASE_URL, &servers.database_url)
                .env(servers::REDIS_URL, &servers.redis_url),
        )
    })?;
    // No code means that a signal ended it.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(ExitCode::from(code))
}

fn cargo(arguments: &Arguments) -> Command {
    let mut command = Command::new("cargo");
    command.args(["test", "--all-features"]);
    let names_package = |word: &String| word == "-p" || word.starts_with("--package");
    if !arguments.cargo.iter().any(names_package) {
        command.arg("--workspace");
    }
    command
}
