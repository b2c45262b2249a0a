//! `cargo xtask demo`: the whole way of an event, in one command.

use std::error::Error;
use std::process::{Command, ExitCode};

use postgres::{Client, NoTls};
use xtask::postgres::{Durability, Options};

use crate::servers::{self, Choice, Servers};
use crate::{Outcome, interrupt, stage};

/// The example that is the demo, and what it is compiled with.
const EXAMPLE: &[&str] =
    &["--package", "outbox-diesel", "--example", "orders", "--features", "relay,redis"];

const EXAMPLES: &[&str] = &["--package", "outbox-examples"];

/// How to run the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    servers: Choice,
    /// How many events to emit. Default: as the example has it.
    #[arg(long)]
    events: Option<u64>,
    /// Then all other examples too: a web service and a billing service, killed again and again, and
    /// the small ones.
    #[arg(long)]
    full: bool,
    /// For the example itself.
    #[arg(last = true)]
    example: Vec<String>,
}

/// Builds the examples and runs them against servers that lose nothing that is committed.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let options = Options::default().durability(Durability::Full);
    let servers = stage::run("servers", || servers::provide(&arguments.servers, options, &[]))?;
    if !stage::run("build", || build(arguments.full))? || interrupt::happened() {
        return Ok(ExitCode::FAILURE);
    }
    let mut command = cargo("run");
    command.args(EXAMPLE).arg("--");
    if let Some(events) = arguments.events {
        command.args(["--events", &events.to_string()]);
    }
    command.args(&arguments.example);
    let mut success = example("demo", command, &servers, &servers.database_url)?;
    if arguments.full && success && !interrupt::happened() {
        success = others(&servers)?;
    }
    Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn build(full: bool) -> Result<bool, Box<dyn Error>> {
    let mut built = interrupt::run(cargo("build").args(EXAMPLE))?.success();
    if full && built && !interrupt::happened() {
        built = interrupt::run(cargo("build").args(EXAMPLES))?.success();
    }
    Ok(built)
}

/// Every program of the examples' package.
fn others(servers: &Servers) -> Result<bool, Box<dyn Error>> {
    let scratch = Scratch::create(&servers.database_url)?;
    // The shop makes databases of its own.
    let runs = [
        ("minimal", scratch.url.as_str()),
        ("webhook", scratch.url.as_str()),
        ("shop", servers.database_url.as_str()),
    ];
    for (name, database_url) in runs {
        let mut command = cargo("run");
        command.args(EXAMPLES).args(["--bin", name]);
        if !example(name, command, servers, database_url)? || interrupt::happened() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn cargo(task: &str) -> Command {
    let mut command = Command::new("cargo");
    command.arg(task).arg("--release");
    if task == "run" {
        command.arg("--quiet");
    }
    command
}

fn example(
    name: &str,
    mut command: Command,
    servers: &Servers,
    database_url: &str,
) -> Result<bool, Box<dyn Error>> {
    command.env(servers::DATABASE_URL, database_url).env(servers::REDIS_URL, &servers.redis_url);
    let status = stage::run(name, || interrupt::run(&mut command))?;
    Ok(status.success())
}

/// A database for the examples that have none of their own; dropped with the value.
struct Scratch {
    server: String,
    name: String,
    url: String,
}

impl Scratch {
    fn create(server: &str) -> Result<Self, Box<dyn Error>> {
        let name = format!("outbox_examples_{}", std::process::id());
        let (base, query) = server.split_once('?').unwrap_or((server, ""));
        let (base, _) = base.rsplit_once('/').ok_or("DATABASE_URL names no database")?;
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        let url = format!("{base}/{name}{query}");
        Client::connect(server, NoTls)?.batch_execute(&format!("CREATE DATABASE {name}"))?;
        Ok(Self { server: server.to_owned(), name, url })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let dropped =
            Client::connect(&self.server, NoTls).and_then(|mut conn| conn.batch_execute(&drop));
        if let Err(error) = dropped {
            eprintln!("the database {} could not be dropped: {error}", self.name);
        }
    }
}
