//! The subcommands, one file each.

mod completions;
mod dead;
mod doctor;
mod find;
mod migrate;
mod partitions;
mod rebase;
mod relay;
mod replay;
mod status;
mod subscriptions;
mod tail;

use std::process::ExitCode;

use crate::Global;
use crate::failure::Failure;
use crate::screen::Screen;

/// What can be done.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Creates or updates the schema, or copies its migrations for diesel to run.
    #[command(subcommand)]
    Migrate(migrate::Migrate),
    /// Runs a relay to Redis Streams until SIGINT or SIGTERM. All options are environment variables too.
    Relay(Box<relay::Relay>),
    /// Shows how far every subscription is, who works on what, and the partitions.
    Status(status::Status),
    /// Follows events as they commit.
    Tail(tail::Tail),
    /// Lists, shows, retries and discards events that ran out of attempts.
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Has delivered events sent once more, beside the stream.
    #[command(subcommand)]
    Replay(replay::Replay),
    /// Lists the log's partitions, or makes those that are missing ahead.
    #[command(subcommand)]
    Partitions(partitions::Partitions),
    /// Lists, creates, removes, rewinds and skips subscriptions, and changes their topics.
    #[command(subcommand)]
    Subscriptions(subscriptions::Subscriptions),
    /// Makes the outbox at home in this database, after a dump and restore.
    Rebase(rebase::Rebase),
    /// Finds an event by its id, and tells where it stands in each subscription.
    Find(find::Find),
    /// Says why nothing is delivered, and what mends it.
    Doctor(doctor::Doctor),
    /// Prints a shell's completions.
    Completions(completions::Completions),
}

/// Does it.
pub(crate) async fn run(
    command: Command,
    global: &Global,
    screen: &Screen,
) -> Result<ExitCode, Failure> {
    match command {
        Command::Migrate(migrate) => migrate.run(global, screen).await?,
        Command::Relay(relay) => return relay.run(global, screen).await,
        Command::Status(status) => status.run(global, screen).await?,
        Command::Tail(tail) => tail.run(global, screen).await?,
        Command::Dead(dead) => dead.run(global, screen).await?,
        Command::Replay(replay) => replay.run(global, screen).await?,
        Command::Partitions(partitions) => partitions.run(global, screen).await?,
        Command::Subscriptions(subscriptions) => subscriptions.run(global, screen).await?,
        Command::Rebase(rebase) => rebase.run(global, screen).await?,
        Command::Find(find) => find.run(global, screen).await?,
        Command::Doctor(doctor) => return doctor.run(global, screen).await,
        Command::Completions(completions) => completions.run(),
    }
    Ok(ExitCode::SUCCESS)
}
