//! `cargo xtask`: the demo, the tests, chaos, the bench, the guide and the checks, with everything
//! they need.

mod bench;
mod chaos;
mod check;
mod demo;
mod docs;
mod interrupt;
mod servers;
mod stage;
mod test;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

/// What can be run.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    about = "Runs the demo, the tests and the checks, and builds the guide"
)]
enum Task {
    /// Runs every test. Takes `DATABASE_URL` and `REDIS_URL` if set, else private servers.
    Test(test::Arguments),
    /// Runs the demo: orders go from a business transaction to Redis Streams.
    Demo(demo::Arguments),
    /// Measures speed, latency and cost against private servers, in release.
    Bench(bench::Arguments),
    /// Lets everything go wrong at once, and counts what became of the events. Takes servers of its
    /// own, and ends with a line of JSON.
    Chaos(chaos::Arguments),
    /// Builds the guide.
    Docs(docs::Arguments),
    /// Checks format, lints, docs, links, schema, SQL, packages, features and licences.
    Check(check::Arguments),
}

fn main() -> ExitCode {
    let task = Task::parse();
    interrupt::listen();
    let outcome = match task {
        Task::Test(arguments) => test::run(&arguments),
        Task::Demo(arguments) => demo::run(&arguments),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Chaos(arguments) => chaos::run(&arguments),
        Task::Docs(arguments) => docs::run(&arguments),
        Task::Check(arguments) => check::run(&arguments),
    };
    let code = outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        print_causes(error.as_ref());
        ExitCode::FAILURE
    });
    // Test binaries that a signal ended have left their servers' data.
    if let Err(error) = xtask::clean_leftovers() {
        eprintln!("error: {error}");
    }
    // Here and not in the signal's handler: by now every server has ended.
    if interrupt::happened() { ExitCode::from(130) } else { code }
}

fn print_causes(error: &dyn Error) {
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}

/// What a task ends with: an exit code of its own, or an error to print.
type Outcome = Result<ExitCode, Box<dyn Error>>;
