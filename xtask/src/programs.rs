//! Where the server programs are.
//!
//! `PATH` first, then where Debian, Red Hat and Homebrew put what they keep out of it. Each search
//! can be overruled by a variable.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest PostgreSQL whose snapshots (`pg_snapshot`, `xid8`) and features suffice.
pub const OLDEST_POSTGRES: u32 = 14;

/// Overrules the search for PostgreSQL: a directory with `postgres` and `initdb`.
pub const POSTGRES_BIN: &str = "POSTGRES_BIN";
/// Overrules the search for Redis or Valkey: the server program.
pub const REDIS_SERVER: &str = "REDIS_SERVER";
/// Overrules the search for PgBouncer: the program.
pub const PGBOUNCER: &str = "PGBOUNCER";
/// Overrules the search for promtool: the program.
pub const PROMTOOL: &str = "PROMTOOL";
/// Overrules the search for Prometheus: the program.
pub const PROMETHEUS: &str = "PROMETHEUS";
/// Overrules the search for mdBook: the program.
pub const MDBOOK: &str = "MDBOOK";

/// Directories that are often not in `PATH`; a `*` stands for anything within one name.
const POSTGRES_PLACES: &[&str] = &[
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
];
const FAKETIME_PLACES: &[&str] =
    &["/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1"];
const OTHER_PLACES: &[&str] = &["/usr/sbin", "/sbin", "/opt/homebrew/bin", "/usr/local/bin"];

/// One installation of PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresPrograms {
    bin: PathBuf,
    version: u32,
}

impl PostgresPrograms {
    /// The path of one of its programs, such as `initdb`. It may not exist: clients are packages
    /// of their own on some systems.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    /// The directory of its programs.
    #[must_use]
    pub fn bin(&self) -> &Path {
        &self.bin
    }

    /// The major version, at least [`OLDEST_POSTGRES`].
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }
}

/// The PostgreSQL of [`POSTGRES_BIN`], else that of `PATH`, else the newest one installed.
#[must_use]
pub fn find_postgres() -> Option<PostgresPrograms> {
    if let Some(bin) = env::var_os(POSTGRES_BIN) {
        return postgres_in(bin.into());
    }
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).find_map(postgres_in).or_else(|| {
        POSTGRES_PLACES
            .iter()
            .flat_map(|place| expand(place))
            .filter_map(postgres_in)
            .max_by_key(|found| found.version)
    })
}

/// An installation with client programs that are not older than the servers of [`find_postgres`]:
/// others cannot dump them. Packages of the server alone lack them.
#[must_use]
pub fn find_clients() -> Option<PostgresPrograms> {
    let server = find_postgres()?;
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> = env::split_paths(&path)
        .chain(POSTGRES_PLACES.iter().flat_map(|place| expand(place)))
        .filter_map(postgres_in)
        .collect();
    std::iter::once(server.clone())
        .chain(places)
        .filter(|found| found.version >= server.version)
        .find(|found| ["pg_dump", "psql"].iter().all(|name| is_program(&found.program(name))))
}

/// `redis-server` or `valkey-server`.
#[must_use]
pub fn find_redis() -> Option<PathBuf> {
    find(REDIS_SERVER, &["redis-server", "valkey-server"])
}

/// `pgbouncer`.
#[must_use]
pub fn find_pgbouncer() -> Option<PathBuf> {
    find(PGBOUNCER, &["pgbouncer"])
}

/// `promtool`, which checks and tests alert rules.
#[must_use]
pub fn find_promtool() -> Option<PathBuf> {
    find(PROMTOOL, &["promtool"])
}

/// The server `prometheus`.
#[must_use]
pub fn find_prometheus() -> Option<PathBuf> {
    find(PROMETHEUS, &["prometheus"])
}

/// The library of libfaketime, to be preloaded: it gives a process a wall clock of its own.
#[must_use]
pub fn find_faketime() -> Option<PathBuf> {
    FAKETIME_PLACES.iter().flat_map(|place| expand(place)).find(|library| library.is_file())
}

/// `mdbook`, which builds the guide.
#[must_use]
pub fn find_mdbook() -> Option<PathBuf> {
    find(MDBOOK, &["mdbook"])
}

fn find(overrule: &str, names: &[&str]) -> Option<PathBuf> {
    if let Some(program) = env::var_os(overrule).map(PathBuf::from) {
        return is_program(&program).then_some(program);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let places: Vec<_> =
        env::split_paths(&path).chain(OTHER_PLACES.iter().map(PathBuf::from)).collect();
    names
        .iter()
        .flat_map(|name| places.iter().map(move |place| place.join(name)))
        .find(|program| is_program(program))
}

pub(crate) fn postgres_in(bin: PathBuf) -> Option<PostgresPrograms> {
    if !is_program(&bin.join("initdb")) || !is_program(&bin.join("postgres")) {
        return None;
    }
    // What is in PATH is often a link, and the other programs lie where it leads.
    let real = fs::canonicalize(bin.join("postgres")).ok()?;
    let bin = real.parent().filter(|real| is_program(&real.join("initdb"))).map_or(bin, Into::into);
    let output = Command::new(bin.join("postgres")).arg("--version").output().ok()?;
    let version = major_version(&String::from_utf8(output.stdout).ok()?)?;
    (version >= OLDEST_POSTGRES).then_some(PostgresPrograms { bin, version })
}

/// `postgres (PostgreSQL) 15.4 (Debian …)`, `postgres (PostgreSQL) 18beta1`.
fn major_version(text: &str) -> Option<u32> {
    let version = text.split_whitespace().nth(2)?;
    version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

pub(crate) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn expand(pattern: &str) -> Vec<PathBuf> {
    let parts = Path::new(pattern).iter();
    parts.fold(vec![PathBuf::new()], |found, part| match part.to_str().unwrap().split_once('*') {
        None => found.into_iter().map(|path| path.join(part)).collect(),
        Some((head, tail)) => found
            .iter()
            .filter_map(|path| fs::read_dir(path).ok())
            .flat_map(|entries| entries.filter_map(Result::ok))
            .filter(|entry| matches(&entry.file_name(), head, tail))
            .map(|entry| entry.path())
            .collect(),
    })
}

fn matches(name: &OsStr, head: &str, tail: &str) -> bool {
    name.to_str().is_some_and(|name| {
        name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
    })
}

#[cfg(test)]
mod tests {
    use super::{expand, major_version};

    #[test]
    fn the_major_version_is_read_from_releases_and_betas() {
        assert_eq!(major_version("postgres (PostgreSQL) 15.4 (Debian 15.4-1)\n"), Some(15));
        assert_eq!(major_version("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(major_version("no version"), None);
    }

    #[test]
    fn a_star_stands_for_part_of_one_name() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/s*/lib.rs");
        assert_eq!(
            expand(manifest),
            [concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs")].map(std::path::PathBuf::from)
        );
        assert!(expand("/nowhere/*/bin").is_empty());
    }
}
