//! `cargo xtask check`: everything but the tests that must hold before a change is merged.

mod cargo;
mod database;
mod down;
mod features;
mod length;
mod licences;
mod links;
mod package;
mod schema;
mod statements;

use std::cell::OnceCell;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use xtask::install::{self, Permission, Software};
use xtask::postgres::{self, Durability, Postgres};

use crate::{Outcome, interrupt, servers, stage};

/// What to check.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Fail if PostgreSQL is missing, instead of installing it.
    #[arg(long)]
    no_install: bool,
    /// Write schema.rs as the migrations give it, instead of comparing it.
    #[arg(long)]
    bless: bool,
    /// Only these stages. Default: all.
    stages: Vec<String>,
}

/// A stage's verdict; the error says what is wrong and where.
type Verdict = Result<(), Box<dyn Error>>;

type Stage = (&'static str, fn(&Context) -> Verdict);

/// In this order: what fails most often and fastest comes first.
const STAGES: &[Stage] = &[
    ("fmt", cargo::fmt),
    ("length", length::check),
    ("links", links::check),
    ("clippy", cargo::clippy),
    ("rustdoc", cargo::rustdoc),
    ("schema", schema::check),
    ("statements", statements::check),
    ("down", down::check),
    ("package", package::check),
    ("features", features::check),
    ("licences", licences::check),
];

/// What stages share.
struct Context {
    workspace: PathBuf,
    permission: Permission,
    bless: bool,
    server: OnceCell<Server>,
}

/// The server for the stages that need one; started by the first of them.
struct Server {
    url: String,
    _private: Option<Postgres>,
}

/// Runs every stage even if one fails, and ends with a summary.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let known = |name: &String| STAGES.iter().any(|(stage, _)| stage == name);
    if let Some(unknown) = arguments.stages.iter().find(|name| !known(name)) {
        let names: Vec<_> = STAGES.iter().map(|(name, _)| *name).collect();
        return Err(format!("no stage is called {unknown}; there are {}", names.join(", ")).into());
    }
    let context = Context {
        workspace: workspace(),
        permission: if arguments.no_install { Permission::Forbidden } else { Permission::Allowed },
        bless: arguments.bless,
        server: OnceCell::new(),
    };
    let wanted =
        |name: &str| arguments.stages.is_empty() || arguments.stages.iter().any(|s| s == name);
    let mut failed = Vec::new();
    for (name, check) in STAGES.iter().filter(|(name, _)| wanted(name)) {
        if let Err(error) = stage::run(name, || check(&context)) {
            eprintln!("{name} failed: {error}");
            crate::print_causes(error.as_ref());
            failed.push(*name);
        }
        if interrupt::happened() {
            return Ok(ExitCode::FAILURE);
        }
    }
    if failed.is_empty() {
        eprintln!("every check passed");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("FAILED: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// The directory of the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate lies in the workspace's directory")
        .to_owned()
}

impl Context {
    /// The address of a server where databases may be created: `DATABASE_URL`, or a private one.
    fn server(&self) -> Result<&str, Box<dyn Error>> {
        if self.server.get().is_none() {
            let server = self.start_server()?;
            // It was empty a line above, and nobody else has the context.
            let _ = self.server.set(server);
        }
        Ok(&self.server.get().expect("it was just set").url)
    }

    fn start_server(&self) -> Result<Server, Box<dyn Error>> {
        if let Some(url) = servers::given(servers::DATABASE_URL) {
            return Ok(Server { url, _private: None });
        }
        install::ensure(&[Software::Postgres], self.permission)?;
        let options = postgres::Options::default().durability(Durability::None);
        let server = Postgres::start(options)?;
        Ok(Server { url: server.url("postgres"), _private: Some(server) })
    }
}
