//! Databases for checks, and the migrations that fill them.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use postgres::{Client, NoTls};

use super::{Context, Verdict};

/// A fresh database, dropped with this value.
pub(crate) struct Database {
    pub(crate) client: Client,
    pub(crate) url: String,
    admin: Client,
    name: String,
}

/// One directory below `migrations`.
#[derive(Debug)]
pub(crate) struct Migration {
    pub(crate) name: String,
    pub(crate) up: String,
    pub(crate) down: String,
}

impl Database {
    /// An empty one.
    pub(crate) fn create(context: &Context, purpose: &str) -> Result<Self, Box<dyn Error>> {
        let server = context.server()?;
        let mut admin = Client::connect(server, NoTls)?;
        let name = format!("outbox_check_{purpose}_{}", std::process::id());
        admin.batch_execute(&format!("CREATE DATABASE {name}"))?;
        let url = with_database(server, &name);
        let client = Client::connect(&url, NoTls)?;
        Ok(Self { client, url, admin, name })
    }

    /// One after every migration.
    pub(crate) fn migrated(context: &Context, purpose: &str) -> Result<Self, Box<dyn Error>> {
        let mut database = Self::create(context, purpose)?;
        for migration in migrations(context)? {
            database.execute(&migration.name, "up.sql", &migration.up)?;
        }
        Ok(database)
    }

    /// Runs one file of a migration.
    pub(crate) fn execute(&mut self, migration: &str, file: &str, sql: &str) -> Verdict {
        self.client
            .batch_execute(sql)
            .map_err(|error| format!("{migration}/{file}: {}", describe(&error)).into())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        if let Err(error) = self.admin.batch_execute(&drop) {
            eprintln!("note: {drop}: {}", describe(&error));
        }
    }
}

/// All of them, in the order in which they run.
pub(crate) fn migrations(context: &Context) -> Result<Vec<Migration>, Box<dyn Error>> {
    let root = context.workspace.join("migrations");
    let mut directories: Vec<PathBuf> = fs::read_dir(&root)
        .map_err(|error| format!("{}: {error}", root.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    directories.retain(|path| path.is_dir());
    directories.sort();
    if directories.is_empty() {
        return Err("there are no migrations".into());
    }
    directories
        .into_iter()
        .map(|path| {
            let read = |file| {
                fs::read_to_string(path.join(file))
                    .map_err(|error| format!("{}/{file}: {error}", path.display()))
            };
            Ok(Migration {
                name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                up: read("up.sql")?,
                down: read("down.sql")?,
            })
        })
        .collect()
}

/// The server's own words, with the hint and the place; the error's `Display` is only "db error".
pub(crate) fn describe(error: &postgres::Error) -> String {
    let Some(error) = error.as_db_error() else {
        return error.to_string();
    };
    let more = [error.detail(), error.hint(), error.where_()];
    more.into_iter().flatten().fold(error.message().to_owned(), |text, line| text + "; " + line)
}

/// The same server, another database.
fn with_database(url: &str, name: &str) -> String {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let start = address.find("://").map_or(0, |scheme| scheme + 3);
    let host = address[start..].find('/').map_or(address, |slash| &address[..start + slash]);
    let mark = if query.is_empty() { "" } else { "?" };
    format!("{host}/{name}{mark}{query}")
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn only_the_database_of_an_address_changes() {
        for (url, expected) in [
            ("postgres://u:p@h:1/a", "postgres://u:p@h:1/b"),
            ("postgres://u@h", "postgres://u@h/b"),
            ("postgres://h/a?sslmode=disable", "postgres://h/b?sslmode=disable"),
        ] {
            assert_eq!(with_database(url, "b"), expected);
        }
    }
}
