//! The shop ends its services, whatever ends the shop.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel::sql_types::BigInt;
use diesel::{Connection as _, PgConnection, RunQueryDsl as _};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use outbox_tests::eventually;
use xtask::postgres::{Durability, Options, Postgres};
use xtask::redis::Redis;

const PATIENCE: Duration = Duration::from_secs(60);

/// How many sessions a service has. The shop itself has one at a time, to look at the books.
const SESSIONS: &str = "\
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND datname LIKE 'outbox_shop_%_";
const DATABASES: &str = "SELECT count(*) FROM pg_database WHERE datname LIKE 'outbox_shop_%'";

/// A shop that is far from done, on servers of its own.
struct Shop {
    process: Child,
    postgres: Postgres,
    _redis: Redis,
}

impl Shop {
    /// Returns when both services work.
    async fn open() -> Self {
        let postgres = Postgres::start(Options::default().durability(Durability::None))
            .expect("a private PostgreSQL starts");
        let redis = Redis::start(xtask::redis::Options::default()).expect("a private Redis starts");
        let process = Command::new(env!("CARGO_BIN_EXE_shop"))
            .args(["--orders", "1000000", "--kills", "0"])
            .env("DATABASE_URL", postgres.url("postgres"))
            .env("REDIS_URL", redis.url())
            .stdout(Stdio::null())
            .spawn()
            .expect("the programs were built");
        let shop = Self { process, postgres, _redis: redis };
        for service in ["orders", "billing"] {
            eventually(PATIENCE, async || (shop.sessions(service) > 1).then_some(())).await;
        }
        shop
    }

    fn count(&self, query: &str) -> i64 {
        let mut conn = PgConnection::establish(&self.postgres.url("postgres")).expect("connects");
        conn.batch_execute("SET statement_timeout = '30s'").expect("sets");
        diesel::select(diesel::dsl::sql::<BigInt>(&format!("({query})")))
            .get_result(&mut conn)
            .expect("counts")
    }

    fn sessions(&self, service: &str) -> i64 {
        self.count(&format!("{SESSIONS}{service}'"))
    }

    /// Ends the shop, and waits until neither service works any more.
    async fn close(&mut self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        // Not reaped yet, hence the id is still its own.
        kill(Pid::from_raw(pid), signal).expect("our own child takes signals");
        self.process.wait().expect("our own child ends");
        for service in ["orders", "billing"] {
            eventually(PATIENCE, async || (self.sessions(service) == 0).then_some(())).await;
        }
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_services_of_a_shop_that_is_killed_do_not_outlive_it() {
    let mut shop = Shop::open().await;
    shop.close(Signal::SIGKILL).await;
    assert_eq!(shop.count(DATABASES), 2, "it was killed, so nobody has removed them");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shop_that_is_asked_to_end_leaves_nothing_behind() {
    let mut shop = Shop::open().await;
    shop.close(Signal::SIGTERM).await;
    assert_eq!(shop.count(DATABASES), 0);
}
