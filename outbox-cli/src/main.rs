//! `outbox`: runs the relay of outbox-diesel on its own, shows what it does, and mends what is
//! stuck. A thin layer over the library: every call is one of `outbox_diesel::admin`,
//! `subscription`, `migrate`, `doctor`, `tail` and `Relay`.

mod failure;
mod screen;
mod times;
mod letters;
mod tls;
mod database;
mod broker;
mod health;
mod command;

use std::process::ExitCode;

use clap::builder::BoolishValueParser;
use clap::{CommandFactory as _, Parser};

use crate::command::Command;
use crate::database::Target;
use crate::failure::Failure;
use crate::screen::Screen;

/// Looks at a transactional outbox, mends it, and runs its relay.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Exit codes:
  0   done; doctor: nothing wrong (notes at most)
  1   not done, for the reason that is printed
  2   the arguments make no sense
  3   the database or the broker cannot be reached
  4   the schema outbox is missing, or of another version
  10  doctor: the worst finding is a warning
  20  doctor: the worst finding is critical
  130 interrupted

Credentials are never printed. Give URLs in the environment: arguments can be seen by other users.";

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Global {
    /// The database: postgres://user:password@host:port/database?sslmode=verify-full
    ///
    /// sslmode is disable, prefer (default), require, verify-ca or verify-full; sslrootcert names a
    /// file of PEM certificates, else the system's are trusted.
    #[arg(long, global = true, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// Keep no prepared statements: for a pooler in transaction mode.
    #[arg(long, global = true, env = "OUTBOX_NO_PREPARED_STATEMENTS", value_parser = BoolishValueParser::new())]
    no_prepared_statements: bool,
    /// Print JSON: one value, or one per line where events are followed.
    #[arg(long, global = true)]
    json: bool,
}

impl Global {
    fn target(&self) -> Result<Target, Failure> {
        let url = self.database_url.as_deref().filter(|url| !url.is_empty());
        let url = url.ok_or_else(|| {
            Failure::usage("no database is named")
                .advice("set DATABASE_URL=postgres://user@host/database, or give --database-url")
        })?;
        Target::parse(url, self.no_prepared_statements)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let screen = Screen::new(cli.global.json);
    match command::run(cli.command, &cli.global, &screen).await {
        Ok(code) => code,
        Err(failure) => failure.report(&screen),
    }
}

/// The whole command line, for completions.
fn grammar() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_grammar_is_sound() {
        super::grammar().debug_assert();
    }
}
