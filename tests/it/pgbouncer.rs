//! Emit and relay through PgBouncer in transaction mode, where no two transactions of a connection
//! need to run in the same session.

use std::time::{Duration, Instant};

use diesel::connection::CacheSize;
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use outbox_diesel::AsyncEmit as _;
use outbox_diesel::publish::RecordingPublisher;
use outbox_tests::oracle::{Arrivals, Committed, Verdict};
use outbox_tests::{RelayThread, SOON, TestDatabase, TestEvent, Writers, eventually, quick};
use xtask::pgbouncer::{PgBouncer, PoolMode};
use xtask::postgres::{Durability, Options, Postgres};

struct Pooled {
    // Ends before its server does.
    database: TestDatabase,
    pooler: PgBouncer,
    _server: Postgres,
}

impl Pooled {
    fn start() -> Self {
        let server = Postgres::start(Options::default().durability(Durability::None))
            .expect("a private PostgreSQL starts");
        let pooler = PgBouncer::start(&server, PoolMode::Transaction).expect("PgBouncer starts");
        let database = TestDatabase::on(&server.url("postgres"));
        Self { database, pooler, _server: server }
    }

    fn url(&self) -> String {
        self.pooler.url(self.database.name())
    }

    fn relay(&self, broker: &RecordingPublisher) -> RelayThread {
        RelayThread::start(&self.url(), "default", broker.clone(), quick())
    }

    async fn connect(&self) -> AsyncPgConnection {
        // diesel-async prepares what it sends when it connects, and the pooler may change servers in
        // between. A pool tries again, too.
        let mut conn =
            eventually(SOON, async || AsyncPgConnection::establish(&self.url()).await.ok()).await;
        conn.set_prepared_statement_cache_size(CacheSize::Disabled);
        conn
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_commits_through_the_pooler_is_published_and_what_rolls_back_is_not() {
    let pooled = Pooled::start();
    let broker = RecordingPublisher::default();
    let _relay = pooled.relay(&broker);
    let mut conn = pooled.connect().await;
    for n in 0..20 {
        conn.transaction(async |conn| {
            conn.emit(&TestEvent::new("phantom")).await?;
            Err::<(), _>(diesel::result::Error::RollbackTransaction)
        })
        .await
        .expect_err("rolled back");
        let event = TestEvent::new(n).dedup_key(format!("key {n}"));
        conn.transaction(async |conn| conn.emit(&event).await).await.expect("commits");
    }
    let sent = eventually(SOON, async || {
        let sent = broker.delivered();
        (sent.len() >= 20).then_some(sent)
    })
    .await;
    let mut ids: Vec<i32> =
        sent.iter().map(|sent| sent.message.aggregate_id().parse().expect("a number")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_behind_the_pooler_lose_and_repeat_nothing_under_load() {
    let pooled = Pooled::start();
    let broker = RecordingPublisher::default();
    let writing = Writers::new(pooled.url()).statement_cache(false).start().await;
    let seed = writing.seed();
    let _stays = pooled.relay(&broker);
    let until = Instant::now() + Duration::from_secs(5);
    while Instant::now() < until {
        let crashes = pooled.relay(&broker);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        drop(crashes);
    }
    writing.stop().await;
    let committed = Committed::read(&mut pooled.database.sync());
    eventually(SOON, async || (broker.delivered().len() >= committed.len()).then_some(())).await;
    let verdict = Verdict::on(&committed, &Arrivals::recorded(&broker.delivered(), "default"));
    verdict.assert_clean(seed);
    println!("behind a transaction pooler: {verdict}");
}
