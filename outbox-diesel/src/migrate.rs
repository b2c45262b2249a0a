//! Migrate: creates and updates the schema `outbox`.
//!
//! Two ways, and they mix: call [`run`] or [`run_async`] at start-up, safe when many instances
//! start at once; or [`copy`] the migrations into the application's own directory and let
//! `diesel migration run` do it. Which ones ran is recorded in `outbox.migrations`, not in
//! diesel's table, so `diesel migration revert` and `redo` of the application never meet them
//! unless they were copied.

use std::io;
use std::path::{Path, PathBuf};

use diesel::connection::{LoadConnection, TransactionManager as _};
use diesel::pg::Pg;
use diesel::result::QueryResult;
use diesel::sql_types::{Bool, Text};

use crate::statement::statement;

/// One step of the schema.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Migration {
    /// What diesel calls the version: the time in the directory's name, without dashes.
    pub version: &'static str,
    /// The directory's name.
    pub name: &'static str,
    /// The way there.
    pub up: &'static str,
    /// The way back.
    pub down: &'static str,
}

macro_rules! migrations {
    ($($version:literal: $name:literal),* $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            up: include_str!(concat!("../migrations/", $name, "/up.sql")),
            down: include_str!(concat!("../migrations/", $name, "/down.sql")),
        }),*]
    };
}

/// All migrations, oldest first.
pub const MIGRATIONS: &[Migration] = migrations![
    "20261130131207": "2026-11-30-131207_create_log",
    "20261130131341": "2026-11-30-131341_create_delivery",
    "20261130131429": "2026-11-30-131429_create_inbox",
    "20261130140211": "2026-11-30-140211_create_upkeep",
    "20261130140533": "2026-11-30-140533_create_operations",
    "20261130141502": "2026-11-30-141502_create_retention",
    "20261130173812": "2026-11-30-173812_create_wake",
];

/// Serialises runners; random, so that it meets no lock of the application.
const LOCK: &str = "SELECT pg_advisory_xact_lock(5176940418530842169)";
/// A runner that waited must see what the one before it did.
const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED";
const IS_INSTALLED: &str = "SELECT to_regclass('outbox.migrations') IS NOT NULL";
const VERSIONS: &str = "SELECT version FROM outbox.migrations ORDER BY version";

/// Runs the migrations that are missing, all of them or none, and returns their names.
///
/// Instances that start at once wait for each other. Works inside a transaction too.
///
/// # Errors
/// What the database says. Needs the right to create a schema in this database.
pub fn run<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<Vec<&'static str>> {
    in_transaction(conn, |conn| {
        let ran = versions(conn)?;
        let missing = missing(&ran);
        for migration in &missing {
            conn.batch_execute(migration.up)?;
        }
        Ok(names(&missing))
    })
}

/// Reverts the newest migration that ran and returns its name. The first one's way back drops the
/// whole schema, undelivered events included.
///
/// # Errors
/// What the database says.
pub fn revert<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<Option<&'static str>> {
    in_transaction(conn, |conn| {
        let ran = versions(conn)?;
        let newest = MIGRATIONS.iter().rev().find(|known| ran.iter().any(|v| v == known.version));
        if let Some(migration) = newest {
            conn.batch_execute(migration.down)?;
        }
        Ok(newest.map(|migration| migration.name))
    })
}

/// Writes the migrations that `directory` lacks into it, in diesel's layout, and returns the
/// directories written.
///
/// # Errors
/// What the file system says.
pub fn copy(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for migration in MIGRATIONS {
        let target = directory.join(migration.name);
        if target.exists() {
            continue;
        }
        std::fs::create_dir_all(&target)?;
        std::fs::write(target.join("up.sql"), migration.up)?;
        std::fs::write(target.join("down.sql"), migration.down)?;
        written.push(target);
    }
    Ok(written)
}

fn in_transaction<C: LoadConnection<Backend = Pg>, T>(
    conn: &mut C,
    body: impl FnOnce(&mut C) -> QueryResult<T>,
) -> QueryResult<T> {
    let status = C::TransactionManager::transaction_manager_status_mut(conn);
    let outermost = status.transaction_depth()?.is_none();
    conn.transaction(|conn| {
        if outermost {
            conn.batch_execute(READ_COMMITTED)?;
        }
        conn.batch_execute(LOCK)?;
        body(conn)
    })
}

fn versions<C: LoadConnection<Backend = Pg>>(conn: &mut C) -> QueryResult<Vec<String>> {
    if diesel::RunQueryDsl::get_result(statement::<Bool>(IS_INSTALLED), conn)? {
        diesel::RunQueryDsl::load(statement::<Text>(VERSIONS), conn)
    } else {
        Ok(Vec::new())
    }
}

fn missing(ran: &[String]) -> Vec<&'static Migration> {
    MIGRATIONS.iter().filter(|known| !ran.iter().any(|ran| ran == known.version)).collect()
}

fn names(migrations: &[&'static Migration]) -> Vec<&'static str> {
    migrations.iter().map(|migration| migration.name).collect()
}

#[cfg(feature = "async")]
mod asynchronous {
    use diesel_async::{AsyncConnection, RunQueryDsl, TransactionManager};

    use super::*;

    /// Runs the migrations that are missing, all of them or none, and returns their names; see
    /// [`run`](super::run).
    ///
    /// # Errors
    /// What the database says. Needs the right to create a schema in this database.
    ///
    /// # Cancel safety
    /// Drop the connection if the future was dropped: its transaction is still open.
    pub async fn run_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> QueryResult<Vec<&'static str>> {
        let status = C::TransactionManager::transaction_manager_status_mut(conn);
        let outermost = status.transaction_depth()?.is_none();
        C::TransactionManager::begin_transaction(conn).await?;
        match run_locked(conn, outermost).await {
            Ok(ran) => {
                C::TransactionManager::commit_transaction(conn).await?;
                Ok(ran)
            }
            Err(error) => {
                // The error that counts is the first one; a lost connection is rolled back anyway.
                C::TransactionManager::rollback_transaction(conn).await.ok();
                Err(error)
            }
        }
    }

    async fn run_locked<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
        outermost: bool,
    ) -> QueryResult<Vec<&'static str>> {
        if outermost {
            conn.batch_execute(READ_COMMITTED).await?;
        }
        conn.batch_execute(LOCK).await?;
        let ran = versions_async(conn).await?;
        let missing = missing(&ran);
        for migration in &missing {
            conn.batch_execute(migration.up).await?;
        }
        Ok(names(&missing))
    }

    /// The versions of the migrations that ran, oldest first; none if the schema is not there.
    /// [`MIGRATIONS`] has those of this library.
    ///
    /// # Errors
    /// What the database says.
    pub async fn versions_async<C: AsyncConnection<Backend = Pg>>(
        conn: &mut C,
    ) -> QueryResult<Vec<String>> {
        if RunQueryDsl::get_result(statement::<Bool>(IS_INSTALLED), conn).await? {
            RunQueryDsl::load(statement::<Text>(VERSIONS), conn).await
        } else {
            Ok(Vec::new())
        }
    }
}

#[cfg(feature = "async")]
pub use asynchronous::{run_async, versions_async};
