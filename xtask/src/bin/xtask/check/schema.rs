//! `schema.rs` is what the migrations give.

mod catalog;
mod print;

use std::error::Error;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use super::database::Database;
use super::{Context, Verdict};

const FILE: &str = "outbox-diesel/src/schema.rs";

/// Prints the migrated schema as `diesel print-schema` does and compares it with the file, or
/// writes the file with `--bless`.
pub(crate) fn check(context: &Context) -> Verdict {
    let mut database = Database::migrated(context, "schema")?;
    let catalog = catalog::read(&mut database.client)?;
    let expected = rustfmt(&print::file(&catalog)?, context)?;
    let path = context.workspace.join(FILE);
    if context.bless {
        fs::write(&path, expected)?;
        eprintln!("wrote {FILE}");
        return Ok(());
    }
    let found = fs::read_to_string(&path).map_err(|error| {
        format!("{FILE}: {error}; `cargo xtask check --bless schema` writes it")
    })?;
    if found == expected {
        return Ok(());
    }
    let line = found.lines().zip(expected.lines()).position(|(found, expected)| found != expected);
    let line = line.unwrap_or_else(|| found.lines().count().min(expected.lines().count())) + 1;
    Err(format!(
        "{FILE} differs from the migrations from line {line} on; \
         `cargo xtask check --bless schema` writes it"
    )
    .into())
}

fn rustfmt(source: &str, context: &Context) -> Result<String, Box<dyn Error>> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(&context.workspace)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("rustfmt: {error}"))?;
    // It reads everything before it writes anything, so neither side waits for the other.
    child.stdin.take().ok_or("rustfmt has no input")?.write_all(source.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err("rustfmt refuses the printed schema".into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
