//! `outbox migrate`.

use std::path::{Path, PathBuf};

use outbox_diesel::migrate::{self, MIGRATIONS};
use serde_json::json;

use crate::Global;
use crate::database::check_schema;
use crate::failure::Failure;
use crate::screen::{GOOD, Screen, WARN};

/// What to do with the migrations.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Migrate {
    /// Runs the migrations that are missing, all of them or none. Safe to run many times at once.
    Run,
    /// Writes the migrations into a directory of your own, for `diesel migration run`.
    Copy {
        /// Diesel's migrations directory.
        #[arg(default_value = "migrations", value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// Lists the migrations, and which of them ran. Exit code 4 if some did not.
    Status,
}

impl Migrate {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<(), Failure> {
        match self {
            Self::Run => run(global, screen).await,
            Self::Copy { directory } => copy(directory, screen),
            Self::Status => status(global, screen).await,
        }
    }
}

async fn run(global: &Global, screen: &Screen) -> Result<(), Failure> {
    let mut conn = global.target()?.connect().await?;
    let spinner = screen.spinner("migrating");
    let ran = migrate::run_async(&mut conn).await;
    spinner.finish_and_clear();
    let ran = ran?;
    // Where another program has newer ones, nothing was missing, and all is not well.
    check_schema(&migrate::versions_async(&mut conn).await?)?;
    let show = |screen: &Screen| {
        if ran.is_empty() {
            return screen.line("the schema outbox is up to date");
        }
        ran.iter().try_for_each(|name| screen.line(format_args!("{GOOD}ran{GOOD:#} {name}")))
    };
    Ok(screen.show(|| json!({ "ran": ran }), show)?)
}

fn copy(directory: &Path, screen: &Screen) -> Result<(), Failure> {
    let written = migrate::copy(directory)
        .map_err(|error| Failure::new(format!("{}: {error}", directory.display())))?;
    let written: Vec<_> = written.iter().map(|path| path.display().to_string()).collect();
    let show = |screen: &Screen| {
        if written.is_empty() {
            return screen.line(format_args!("{} has all of them", directory.display()));
        }
        written
            .iter()
            .try_for_each(|path| screen.line(format_args!("{GOOD}wrote{GOOD:#} {path}")))?;
        screen.line("run them with: diesel migration run")
    };
    Ok(screen.show(|| json!({ "written": written }), show)?)
}

async fn status(global: &Global, screen: &Screen) -> Result<(), Failure> {
    let mut conn = global.target()?.connect().await?;
    let ran = migrate::versions_async(&mut conn).await?;
    let did_run = |version: &str| ran.iter().any(|ran| ran == version);
    let value = || {
        let all = MIGRATIONS.iter();
        let all =
            all.map(|m| json!({ "version": m.version, "name": m.name, "ran": did_run(m.version) }));
        json!({ "migrations": all.collect::<Vec<_>>() })
    };
    screen.show(value, |screen| {
        MIGRATIONS.iter().try_for_each(|migration| {
            if did_run(migration.version) {
                screen.line(format_args!("{GOOD}ran    {GOOD:#} {}", migration.name))
            } else {
                screen.line(format_args!("{WARN}missing{WARN:#} {}", migration.name))
            }
        })
    })?;
    check_schema(&ran)
}
