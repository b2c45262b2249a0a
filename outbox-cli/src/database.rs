//! The database: where it is, how to connect, and whether its schema fits.

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use diesel::ConnectionError;
use diesel::connection::CacheSize;
use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
use futures_util::FutureExt as _;
use outbox_diesel::migrate::{self, MIGRATIONS};
use outbox_diesel::relay::Pool;
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;
use url::form_urlencoded;

use crate::failure::{Failure, chain};
use crate::tls::{self, SslMode};

/// Where the database is.
#[derive(Clone)]
pub(crate) struct Target(Arc<Inner>);

struct Inner {
    config: Config,
    ssl: SslMode,
    root: Option<String>,
    no_prepared_statements: bool,
}

impl Target {
    /// Reads a URL. What libpq knows and tokio-postgres does not is taken out of it.
    pub(crate) fn parse(url: &str, no_prepared_statements: bool) -> Result<Self, Failure> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(Failure::usage("the database URL does not begin with postgres://")
                .advice("write postgres://user:password@host:port/database"));
        }
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut ssl, mut root) = (SslMode::Prefer, None);
        let mut rest = form_urlencoded::Serializer::new(String::new());
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "sslmode" => ssl = SslMode::parse(&value)?,
                "sslrootcert" => root = Some(value.into_owned()),
                _ => drop(rest.append_pair(&name, &value)),
            }
        }
        // tokio-postgres reads `+` as it stands.
        let rest = rest.finish().replace('+', "%20");
        // Its errors name the option, never the value.
        let mut config = Config::from_str(&format!("{server}?{rest}")).map_err(|error| {
            Failure::usage(format!("the database URL cannot be read: {}", chain(&error))).advice(
                "write postgres://user:password@host:port/database, special characters as %40",
            )
        })?;
        config.ssl_mode(ssl.transport());
        if config.get_application_name().is_none() {
            config.application_name("outbox");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(10));
        }
        Ok(Self(Arc::new(Inner { config, ssl, root, no_prepared_statements })))
    }

    /// Connects, whatever the schema.
    pub(crate) async fn connect(&self) -> Result<AsyncPgConnection, Failure> {
        let Inner { config, ssl, root, no_prepared_statements } = &*self.0;
        let tls = tls::connector(*ssl, root.as_deref())?;
        let (client, connection) = config.connect(tls).await.map_err(|e| self.no_connection(&e))?;
        let mut conn = AsyncPgConnection::try_from_client_and_connection(client, connection)
            .await
            .map_err(|error| Failure::unreachable(format!("{self}: {}", chain(&error))))?;
        if *no_prepared_statements {
            use diesel_async::AsyncConnection as _;
            conn.set_prepared_statement_cache_size(CacheSize::Disabled);
        }
        Ok(conn)
    }

    /// Connects, and makes sure that the schema is the one that this program knows.
    pub(crate) async fn open(&self) -> Result<AsyncPgConnection, Failure> {
        let mut conn = self.connect().await?;
        check_schema(&migrate::versions_async(&mut conn).await?)?;
        Ok(conn)
    }

    /// Connections for a relay, opened one by one as [`connect`](Self::connect) does.
    pub(crate) async fn pool(&self) -> Result<Pool, Failure> {
        let pool = Pool::builder().max_size(1).build(self.manager()).await;
        pool.map_err(|error| Failure::new(chain(&error)))
    }

    /// What opens them.
    pub(crate) fn manager(&self) -> AsyncDieselConnectionManager<AsyncPgConnection> {
        let target = self.clone();
        let mut config = ManagerConfig::default();
        config.custom_setup = Box::new(move |_| {
            let target = target.clone();
            async move {
                let connected = target.connect().await;
                connected.map_err(|failure| ConnectionError::BadConnection(failure.to_string()))
            }
            .boxed()
        });
        AsyncDieselConnectionManager::new_with_config("", config)
    }

    fn no_connection(&self, error: &tokio_postgres::Error) -> Failure {
        let advice = match error.code() {
            Some(code)
                if *code == SqlState::INVALID_PASSWORD
                    || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
            {
                "check user and password in DATABASE_URL"
            }
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
                "create the database, or check its name in DATABASE_URL"
            }
            _ if chain(error).contains("certificate") => {
                "check sslmode and sslrootcert in DATABASE_URL; see: outbox --help"
            }
            _ => "is the server running, and are host and port in DATABASE_URL right?",
        };
        Failure::unreachable(format!("no connection to {self}: {}", chain(error))).advice(advice)
    }
}

impl fmt::Display for Target {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.0.config;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let user = config.get_user().unwrap_or_default();
        let database = config.get_dbname().unwrap_or(user);
        write!(f, "PostgreSQL at {host}:{port}, database {database:?}")
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

/// Whether the schema is the one that this program knows, by the versions that ran.
pub(crate) fn check_schema(ran: &[String]) -> Result<(), Failure> {
    let known = MIGRATIONS.last().expect("the library has migrations").version;
    match ran.last().map(|newest| newest.as_str().cmp(known)) {
        Some(std::cmp::Ordering::Equal) => Ok(()),
        Some(std::cmp::Ordering::Greater) => Err(Failure::schema(format!(
            "the schema outbox is at version {}, newer than the {known} of this program",
            ran.last().map_or("", String::as_str)
        ))
        .advice("install a newer outbox-cli")),
        Some(std::cmp::Ordering::Less) => Err(Failure::schema(format!(
            "the schema outbox is at version {}, older than the {known} of this program",
            ran.last().map_or("", String::as_str)
        ))
        .advice("outbox migrate run")),
        None => Err(Failure::schema("there is no schema outbox in this database")
            .advice("outbox migrate run  # or check the database's name in DATABASE_URL")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_without_credentials() {
        let url =
            "postgres://me:s3cret@db.example:6432/shop?sslmode=require&application_name=x%20y";
        let target = Target::parse(url, false).unwrap();
        let told = format!("{target} {target:?}");
        assert!(told.contains("db.example:6432") && told.contains("shop"), "{told}");
        assert!(!told.contains("s3cret"), "{told}");
        assert_eq!(target.0.config.get_application_name(), Some("x y"));
        assert_eq!(target.0.ssl, SslMode::Require);
    }

    #[test]
    fn what_cannot_be_read_is_told_without_credentials() {
        for url in [
            "postgres://me:s3cret@h:port/x",
            "postgres://me:s3cret@h/x?sslmode=s3cret2",
            "mysql://me:s3cret@h/x",
            "postgres://me:s3cret@h/x?nonsense=1",
        ] {
            let told = Target::parse(url, false).unwrap_err().to_string();
            assert!(!told.contains("s3cret@"), "{told}");
        }
    }
}
