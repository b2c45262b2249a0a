//! Every migration can be taken back: up, down and up again give what up gave, and down what was
//! there before.

use std::error::Error;
use std::process::Command;

use super::database::{self, Database};
use super::{Context, Verdict};

/// Compares schema dumps around every migration.
pub(crate) fn check(context: &Context) -> Verdict {
    let mut database = Database::create(context, "down")?;
    let mut before = dump(&database)?;
    for migration in database::migrations(context)? {
        let name = &migration.name;
        database.execute(name, "up.sql", &migration.up)?;
        let after = dump(&database)?;
        database.execute(name, "down.sql", &migration.down)?;
        same(
            &before,
            &dump(&database)?,
            &format!("{name}: down leaves another schema than before"),
        )?;
        database.execute(name, "up.sql", &migration.up)?;
        same(&after, &dump(&database)?, &format!("{name}: up after down differs from up"))?;
        before = after;
    }
    Ok(())
}

fn same(expected: &str, found: &str, what: &str) -> Verdict {
    if expected == found {
        return Ok(());
    }
    let lost = expected.lines().filter(|line| !found.lines().any(|other| other == *line));
    let new = found.lines().filter(|line| !expected.lines().any(|other| other == *line));
    let difference: Vec<_> = lost
        .map(|line| format!("- {line}"))
        .chain(new.map(|line| format!("+ {line}")))
        .take(30)
        .collect();
    Err(format!("{what}\n{}", difference.join("\n")).into())
}

fn dump(database: &Database) -> Result<String, Box<dyn Error>> {
    // An old pg_dump refuses a newer server, so the one that belongs to the private server is used.
    let program = xtask::programs::find_postgres()
        .map(|programs| programs.program("pg_dump"))
        .filter(|program| program.exists())
        .unwrap_or_else(|| "pg_dump".into());
    let output = Command::new(&program)
        .args(["--schema-only", "--dbname", &database.url])
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(format!("pg_dump: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    // Newer releases put a random key around the dump: \restrict and \unrestrict.
    let text = String::from_utf8(output.stdout)?;
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("\\restrict ") && !line.starts_with("\\unrestrict "));
    Ok(lines.filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n"))
}
