//! `cargo xtask docs`: builds the guide.

use std::process::{Command, ExitCode};

use xtask::programs;

use crate::check::workspace;
use crate::{Outcome, interrupt, stage};

/// How to build the guide.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Open it in a browser.
    #[arg(long)]
    open: bool,
}

/// Builds the guide with mdBook, or says how to get it.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let Some(mdbook) = programs::find_mdbook() else {
        eprintln!(
            "mdbook is not installed, so the guide cannot be built. Its pages can be read as they \
             are: docs/src/SUMMARY.md lists them. To install mdbook:\n\n    \
             cargo install --locked mdbook\n"
        );
        return Ok(ExitCode::FAILURE);
    };
    let book = workspace().join("docs");
    let mut build = Command::new(&mdbook);
    build.arg("build").arg(&book);
    if arguments.open {
        build.arg("--open");
    }
    let status = stage::run("guide", || interrupt::run(&mut build))
        .map_err(|error| format!("{} cannot be run: {error}", mdbook.display()))?;
    if !status.success() {
        return Err(
            format!("{} build {} ended with {status}", mdbook.display(), book.display()).into()
        );
    }
    eprintln!("the guide is target/guide/index.html");
    Ok(ExitCode::SUCCESS)
}
