//! Emit works behind a pooler that lends a server connection for one transaction at a time.

use diesel::connection::CacheSize;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use futures_util::FutureExt as _;
use outbox_diesel::{AsyncEmit, EmitError, Emitted};
use outbox_tests::{TestDatabase, TestEvent};
use xtask::pgbouncer::{PgBouncer, PoolMode};
use xtask::postgres::{Durability, Options, Postgres};

/// A manager whose connections prepare nothing: a later transaction has another server connection.
fn uncached(url: String) -> AsyncDieselConnectionManager<AsyncPgConnection> {
    let mut config = ManagerConfig::default();
    config.custom_setup = Box::new(|url| {
        let connecting = AsyncPgConnection::establish(url);
        async move {
            let mut conn = connecting.await?;
            conn.set_prepared_statement_cache_size(CacheSize::Disabled);
            Ok(conn)
        }
        .boxed()
    });
    AsyncDieselConnectionManager::new_with_config(url, config)
}

#[tokio::test(flavor = "multi_thread")]
async fn emit_works_behind_pgbouncer_in_transaction_mode() {
    let options = Options::default().durability(Durability::None);
    let postgres = Postgres::start(options).expect("a private PostgreSQL starts");
    let database = TestDatabase::on(&postgres.url("postgres"));
    let pooler = PgBouncer::start(&postgres, PoolMode::Transaction).expect("PgBouncer starts");
    let manager = uncached(pooler.url(database.name()));
    let pool = bb8::Pool::builder().max_size(8).build(manager).await.unwrap();

    let tasks: Vec<_> = (0..100)
        .map(|task| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut conn = pool.get().await.expect("the pooler takes connections");
                conn.transaction::<_, EmitError, _>(async |conn| {
                    let key = format!("k{}", task / 2);
                    conn.emit(&TestEvent::new(task)).await?;
                    let keyed = conn.emit(&TestEvent::new(task).dedup_key(&key)).await?;
                    conn.emit_all(&[TestEvent::new(task), TestEvent::new(task)]).await?;
                    conn.emit_all(&[TestEvent::new(task).dedup_key(key)]).await?;
                    Ok(matches!(keyed, Emitted::New(_)))
                })
                .await
            })
        })
        .collect();
    let mut new = 0;
    for task in tasks {
        new += usize::from(task.await.unwrap().unwrap());
    }
    assert_eq!(new, 50);
    assert_eq!(database.emitted().len(), 100 * 3 + 50);

    let refused = pool.get().await.unwrap().emit(&TestEvent::new("autocommit")).await;
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
}
