//! [`TestDatabase`]: each test owns a database.

use std::env;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use diesel::connection::SimpleConnection as _;
use diesel::sql_types::{Array, BigInt, Bool, Nullable, Text};
use diesel::{Connection as _, PgConnection, QueryResult, RunQueryDsl as _};
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::migrate;
use url::Url;
use uuid::Uuid;
use xtask::postgres::{Durability, Options, Postgres};

/// Serialises the making of templates; random.
const TEMPLATE_LOCK: i64 = 4_811_376_250_917_733_029;

/// A database that is dropped, whoever is still connected, when the value is.
#[derive(Debug)]
pub struct TestDatabase {
    server: Url,
    name: String,
}

impl TestDatabase {
    /// A database with the schema `outbox`, cloned from a template.
    #[must_use]
    pub fn new() -> Self {
        Self::on(shared_server())
    }

    /// The same on a server of the test's own, which it may kill.
    #[must_use]
    pub fn on(server: &str) -> Self {
        let server = parse(server);
        let template = template(&server);
        let database = Self::clone_of(server, &template);
        // A copy within one server keeps the meaning of its transaction ids, so it may say so.
        database.sql("UPDATE outbox.meta SET source_id = DEFAULT, database_oid = DEFAULT");
        database
    }

    /// A database without the schema `outbox`.
    #[must_use]
    pub fn empty() -> Self {
        Self::clone_of(parse(shared_server()), "template0")
    }

    /// The same database on a copy of its server.
    #[must_use]
    pub fn on_copy(&self, server: &str) -> Self {
        Self { server: parse(server), name: self.name.clone() }
    }

    fn clone_of(server: Url, template: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("outbox_test_{}_{n}", std::process::id());
        let mut conn = establish(server.as_str());
        // A killed process of this id may have left its databases behind.
        run(&mut conn, &drop_if_exists(&name));
        run(&mut conn, &drop_roles(&name));
        run(&mut conn, &format!("CREATE DATABASE {name} TEMPLATE {template}"));
        Self { server, name }
    }

    /// The database's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is, for the role that tests run as: a superuser.
    #[must_use]
    pub fn url(&self) -> String {
        at(&self.server, &self.name).into()
    }

    /// Where it is, for another role, made with [`sql`](Self::sql). Roles belong to the server:
    /// those whose names begin with the database's are dropped with it.
    #[must_use]
    pub fn url_as(&self, role: &str) -> String {
        let mut url = at(&self.server, &self.name);
        url.set_username(role).expect("a server's URL takes a user");
        url.into()
    }

    /// A synchronous connection.
    #[must_use]
    pub fn sync(&self) -> PgConnection {
        establish(&self.url())
    }

    /// An asynchronous connection.
    pub async fn connect(&self) -> AsyncPgConnection {
        AsyncPgConnection::establish(&self.url()).await.expect("a new database takes connections")
    }

    /// A bb8 pool of at most `size` asynchronous connections.
    pub async fn pool(
        &self,
        size: u32,
    ) -> bb8::Pool<AsyncDieselConnectionManager<AsyncPgConnection>> {
        bb8::Pool::builder()
            .max_size(size)
            .build(AsyncDieselConnectionManager::new(self.url()))
            .await
            .expect("a pool opens no connection before it is asked for one")
    }

    /// Runs statements on a connection of their own.
    pub fn sql(&self, statements: &str) {
        run(&mut self.sync(), statements);
    }

    /// What a query that returns one value returns, read on a connection of its own.
    #[must_use]
    pub fn value<T: Scalar>(&self, query: &str) -> T {
        value(&mut self.sync(), query)
    }

    /// The aggregate ids of all committed events, in the order of emit.
    #[must_use]
    pub fn emitted(&self) -> Vec<String> {
        self.value("SELECT ARRAY(SELECT aggregate_id FROM outbox.events ORDER BY seq)")
    }
}

impl Default for TestDatabase {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // Quietly: a panic in here would hide the one that the test ended with.
        if let Ok(mut server) = PgConnection::establish(self.server.as_str()) {
            server.batch_execute(&drop_if_exists(&self.name)).ok();
            server.batch_execute(&drop_roles(&self.name)).ok();
        }
    }
}

/// A Rust type that [`TestDatabase::value`] can read.
pub trait Scalar: Sized {
    /// The only value of the query's only row.
    fn of(query: &str, conn: &mut PgConnection) -> QueryResult<Self>;
}

macro_rules! scalars {
    ($($rust:ty: $sql:ty),* $(,)?) => {
        $(impl Scalar for $rust {
            fn of(query: &str, conn: &mut PgConnection) -> QueryResult<Self> {
                diesel::select(diesel::dsl::sql::<$sql>(&format!("({query})"))).get_result(conn)
            }
        })*
    };
}

scalars! {
    bool: Bool,
    Option<bool>: Nullable<Bool>,
    i64: BigInt,
    String: Text,
    Option<String>: Nullable<Text>,
    Vec<String>: Array<Text>,
    Uuid: diesel::sql_types::Uuid,
    Vec<Uuid>: Array<diesel::sql_types::Uuid>,
}

fn value<T: Scalar>(conn: &mut PgConnection, query: &str) -> T {
    T::of(query, conn).unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// The migrated database of a server that the others are cloned from. It stays there for the next
/// process; other migrations have another one.
fn template(server: &Url) -> String {
    let mut hasher = DefaultHasher::new();
    for migration in migrate::MIGRATIONS {
        (migration.version, migration.up).hash(&mut hasher);
    }
    let name = format!("outbox_template_{:016x}", hasher.finish());
    let known = format!("SELECT EXISTS (SELECT FROM pg_database WHERE datname = '{name}')");
    let mut conn = establish(server.as_str());
    if !value::<bool>(&mut conn, &known) {
        run(&mut conn, &format!("SELECT pg_advisory_lock({TEMPLATE_LOCK})"));
        // Whoever had the lock before may have made it.
        if !value::<bool>(&mut conn, &known) {
            // Under another name until it is complete.
            let draft = format!("{name}_draft");
            run(&mut conn, &drop_if_exists(&draft));
            run(&mut conn, &format!("CREATE DATABASE {draft} TEMPLATE template0"));
            migrate::run(&mut establish(at(server, &draft).as_str())).expect("the migrations run");
            run(&mut conn, &format!("ALTER DATABASE {draft} RENAME TO {name}"));
        }
    }
    name
}

/// The server of `DATABASE_URL`, as under `cargo xtask test`, or else a private one that ends with
/// this process.
fn shared_server() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    static PRIVATE: OnceLock<Postgres> = OnceLock::new();
    URL.get_or_init(|| {
        env::var("DATABASE_URL").unwrap_or_else(|_| {
            let start = || {
                Postgres::start(Options::default().durability(Durability::None))
                    .unwrap_or_else(|why| panic!("{why}"))
            };
            PRIVATE.get_or_init(start).url("postgres")
        })
    })
}

fn parse(server: &str) -> Url {
    server.parse().expect("a server's URL: postgres://user@host:port/database")
}

fn at(server: &Url, database: &str) -> Url {
    let mut url = server.clone();
    url.set_path(database);
    url
}

fn drop_if_exists(name: &str) -> String {
    format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")
}

fn drop_roles(database: &str) -> String {
    format!(
        "DO $$
         DECLARE
             role text;
         BEGIN
             FOR role IN SELECT rolname FROM pg_roles WHERE starts_with(rolname, '{database}_') LOOP
                 EXECUTE format('DROP ROLE %I', role);
             END LOOP;
         END
         $$"
    )
}

fn run(conn: &mut PgConnection, statements: &str) {
    conn.batch_execute(statements).unwrap_or_else(|error| panic!("{statements}: {error}"));
}

fn establish(url: &str) -> PgConnection {
    PgConnection::establish(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}
