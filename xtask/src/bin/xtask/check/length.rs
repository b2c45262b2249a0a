//! A source file holds one concept and fits into one reading.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{Context, Verdict};

/// The longest source file that is accepted.
const LINES: usize = 400;

/// Counts the lines of every `*.rs`.
pub(crate) fn check(context: &Context) -> Verdict {
    let mut long = Vec::new();
    for file in sources(&context.workspace)? {
        let lines = fs::read_to_string(&file)?.lines().count();
        if lines > LINES {
            long.push(format!("{} has {lines} lines", file.display()));
        }
    }
    if long.is_empty() {
        return Ok(());
    }
    Err(format!("split by concept what has more than {LINES} lines:\n{}", long.join("\n")).into())
}

/// Every Rust file below a directory, but for build output, hidden directories and links.
pub(crate) fn sources(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name();
        let skipped = name == "target" || name.to_string_lossy().starts_with('.');
        if kind.is_dir() && !skipped {
            found.extend(sources(&path)?);
        } else if kind.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
