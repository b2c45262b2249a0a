//! The servers a task needs: those of the environment, or private ones.

use std::env;
use std::error::Error;

use xtask::install::{self, Permission, Software};
use xtask::postgres::{self, Durability, Postgres};
use xtask::programs;
use xtask::redis::{self, Redis};

/// The variables that name a server to use instead of a private one.
pub(crate) const DATABASE_URL: &str = "DATABASE_URL";
pub(crate) const REDIS_URL: &str = "REDIS_URL";

/// Addresses, and the private servers behind them; those end with this value.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) database_url: String,
    pub(crate) redis_url: String,
    _postgres: Option<Postgres>,
    _redis: Option<Redis>,
}

/// Finds, installs and starts what the environment does not name. `welcome` is installed along
/// with it, but not missed.
pub(crate) fn provide(
    permission: Permission,
    durability: Durability,
    welcome: &[Software],
) -> Result<Servers, Box<dyn Error>> {
    xtask::clean_leftovers()?;
    let (database_url, redis_url) = (given(DATABASE_URL), given(REDIS_URL));
    let mut needed = Vec::new();
    if database_url.is_none() {
        needed.push(Software::Postgres);
    }
    if redis_url.is_none() {
        needed.push(Software::Redis);
    }
    // Who names every server wants nothing installed.
    let welcome = if needed.is_empty() { &[] } else { welcome };
    if let Err(error) = install::ensure(&[&needed, welcome].concat(), permission) {
        install::ensure(&needed, Permission::Forbidden)?;
        eprintln!("{error}");
    }

    let postgres = database_url
        .is_none()
        .then(|| Postgres::start(postgres::Options::default().durability(durability)))
        .transpose()?;
    let redis = redis_url.is_none().then(|| Redis::start(redis::Options::default())).transpose()?;
    let database_url = database_url
        .or_else(|| postgres.as_ref().map(|server| server.url("postgres")))
        .expect("what is not given was started");
    let redis_url = redis_url
        .or_else(|| redis.as_ref().map(Redis::url))
        .expect("what is not given was started");
    eprintln!("{DATABASE_URL}={database_url}\n{REDIS_URL}={redis_url}");
    Ok(Servers { database_url, redis_url, _postgres: postgres, _redis: redis })
}

/// Tests of outages start servers of their own, whatever the environment names.
pub(crate) fn warn_of_skipped_tests() {
    let found = [
        ("PostgreSQL", programs::find_postgres().is_some()),
        ("Redis or Valkey", programs::find_redis().is_some()),
        ("PgBouncer", programs::find_pgbouncer().is_some()),
    ];
    for (name, _) in found.iter().filter(|(_, found)| !found) {
        eprintln!("WARNING: no {name} program: tests that start one of their own WILL BE SKIPPED");
    }
}

/// The value of a variable, unless it is empty, as scripts set it to mean "none".
pub(crate) fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}
