//! Every dependency may be used: its licence is, or offers, one that `deny.toml` allows.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;

use spdx::{Expression, ParseMode};

use super::cargo::output;
use super::{Context, Verdict};

/// Evaluates the licence of every package that any feature or target pulls in.
pub(crate) fn check(context: &Context) -> Verdict {
    let allowed = allowed(&fs::read_to_string(context.workspace.join("deny.toml"))?)?;
    let metadata = output(context, &["metadata", "--format-version", "1", "--all-features"])?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    let refused: Vec<_> = packages
        .iter()
        .filter_map(|package| {
            let licence = package["license"].as_str().unwrap_or("no licence");
            let name = package["name"].as_str().unwrap_or("a package without a name");
            (!satisfied(licence, &allowed)).then(|| format!("{name}: {licence}"))
        })
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(format!("deny.toml allows none of:\n{}", refused.join("\n")).into())
}

/// `licenses.allow`, as cargo-deny reads it.
fn allowed(deny: &str) -> Result<BTreeSet<String>, Box<dyn Error>> {
    let deny: toml::Table = deny.parse()?;
    let list = deny.get("licenses").and_then(|licenses| licenses.get("allow"));
    let list = list.and_then(toml::Value::as_array).ok_or("deny.toml has no licenses.allow")?;
    Ok(list.iter().filter_map(toml::Value::as_str).map(str::to_owned).collect())
}

/// Whether an SPDX expression has a way through the allowed licences. What is no expression has not.
fn satisfied(licence: &str, allowed: &BTreeSet<String>) -> bool {
    // Lax: old packages write `MIT/Apache-2.0`.
    Expression::parse_mode(licence, ParseMode::LAX)
        .is_ok_and(|licence| licence.evaluate(|one| allowed.contains(&one.to_string())))
}

#[cfg(test)]
mod tests {
    use super::{allowed, satisfied};

    #[test]
    fn one_allowed_alternative_is_enough_and_every_conjunct_is_needed() {
        let allowed =
            allowed("[licenses]\nallow = ['MIT', 'Apache-2.0 WITH LLVM-exception']").unwrap();
        assert!(satisfied("GPL-3.0-only OR MIT", &allowed));
        assert!(satisfied("MIT/Apache-2.0", &allowed));
        assert!(satisfied("Apache-2.0 WITH LLVM-exception", &allowed));
        assert!(!satisfied("MIT AND GPL-3.0-only", &allowed));
        assert!(!satisfied("Apache-2.0", &allowed));
        assert!(!satisfied("no licence", &allowed));
    }
}
