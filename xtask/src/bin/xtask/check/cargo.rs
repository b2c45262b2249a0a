//! The stages that are one or a few calls of cargo.

use std::process::Command;

use super::{Context, Verdict};
use crate::interrupt;

/// The crates that are published.
pub(crate) const PUBLISHED: &[&str] = &["outbox-cli", "outbox-derive", "outbox-diesel"];

/// The code is formatted.
pub(crate) fn fmt(context: &Context) -> Verdict {
    run(context, &["fmt", "--all", "--check"])
}

/// No lint warns: everything at once, then the main crate with nothing and with its defaults, where
/// code that only other features use would be dead.
pub(crate) fn clippy(context: &Context) -> Verdict {
    let deny = ["--", "-D", "warnings"];
    for what in [
        &["--workspace", "--all-targets", "--all-features"][..],
        &["--package", "outbox-diesel", "--no-default-features"],
        &["--package", "outbox-diesel"],
    ] {
        run(context, &[&["clippy", "--quiet"], what, &deny].concat())?;
    }
    Ok(())
}

/// The documentation of what is published has no warning, a broken link for example.
pub(crate) fn rustdoc(context: &Context) -> Verdict {
    let packages = PUBLISHED.iter().flat_map(|package| ["--package", package]);
    let mut command = cargo(context, &["doc", "--quiet", "--no-deps", "--all-features"]);
    succeed(command.args(packages).env("RUSTDOCFLAGS", "-D warnings"))
}

/// The output of a cargo command that must succeed.
pub(crate) fn output(
    context: &Context,
    arguments: &[&str],
) -> Result<String, Box<dyn std::error::Error>> {
    let output = cargo(context, arguments).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {}: {errors}", arguments.join(" ")).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// A cargo command that must succeed.
pub(crate) fn run(context: &Context, arguments: &[&str]) -> Verdict {
    succeed(&mut cargo(context, arguments))
}

fn succeed(command: &mut Command) -> Verdict {
    let status = interrupt::run(command)?;
    if status.success() { Ok(()) } else { Err(format!("cargo ended with {status}").into()) }
}

fn cargo(context: &Context, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(&context.workspace);
    command
}
