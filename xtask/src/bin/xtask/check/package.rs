//! What is published is whole: README and migrations are links, and a link is easily left out.

use super::cargo::{PUBLISHED, output};
use super::{Context, Verdict, database};

/// Compares what cargo would pack with what has to be in there.
pub(crate) fn check(context: &Context) -> Verdict {
    for package in PUBLISHED {
        let list = output(context, &["package", "--list", "--allow-dirty", "--package", package])?;
        let mut wanted = vec!["README.md".to_owned()];
        if *package == "outbox-diesel" {
            for migration in database::migrations(context)? {
                wanted.push(format!("migrations/{}/up.sql", migration.name));
                wanted.push(format!("migrations/{}/down.sql", migration.name));
            }
        }
        let missing: Vec<_> =
            wanted.into_iter().filter(|file| !list.lines().any(|line| line == file)).collect();
        if !missing.is_empty() {
            return Err(format!("the package {package} lacks {}", missing.join(", ")).into());
        }
    }
    Ok(())
}
