//! Emit works behind a pooler that lends a server connection for one transaction at a time.

use std::collections::BTreeSet;

use diesel::connection::CacheSize;
use diesel::dsl::sql;
use diesel::sql_types::Integer;
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

/// Emits every shape, four events in all, and returns the server connection's process.
async fn emit(conn: &mut AsyncPgConnection, round: i32, by: &str) -> Result<i32, EmitError> {
    let key = format!("{by} {round}");
    conn.emit(&TestEvent::new(round)).await?;
    let first = conn.emit(&TestEvent::new(round).dedup_key(&key)).await?;
    conn.emit_all(&[TestEvent::new(round), TestEvent::new(round)]).await?;
    let again = conn.emit_all(&[TestEvent::new(round).dedup_key(&key)]).await?;
    assert_eq!(again, [Emitted::Duplicate(first.id())]);
    let process = diesel::select(sql::<Integer>("pg_backend_pid()"));
    Ok(diesel_async::RunQueryDsl::get_result(process, conn).await?)
}

#[tokio::test]
async fn emit_works_behind_pgbouncer_in_transaction_mode() {
    let options = Options::default().durability(Durability::None);
    let postgres = Postgres::start(options).expect("a private PostgreSQL starts");
    let database = TestDatabase::on(&postgres.url("postgres"));
    let pooler = PgBouncer::start(&postgres, PoolMode::Transaction).expect("PgBouncer starts");
    let manager = uncached(pooler.url(database.name()));
    let pool = bb8::Pool::builder().max_size(2).build(manager).await.unwrap();

    let mut outer = pool.get().await.unwrap();
    let mut inner = pool.get().await.unwrap();
    let mut servers = BTreeSet::new();
    for round in 0..6 {
        // Two transactions at once, hence two server connections. Each of ours begins first every
        // other round, and so gets the one that the other had.
        let (server, other) = outer
            .transaction::<_, EmitError, _>(async |outer| {
                let server = emit(outer, round, "outer").await?;
                let other = inner.transaction(async |inner| emit(inner, round, "inner").await);
                Ok((server, other.await?))
            })
            .await
            .unwrap();
        servers.insert(if round % 2 == 0 { server } else { other });
        std::mem::swap(&mut outer, &mut inner);
    }
    assert_eq!(servers.len(), 2, "a connection has always had the same server connection");
    assert_eq!(database.emitted().len(), 6 * 2 * 4);
    drop((outer, inner));

    let refused = pool.get().await.unwrap().emit(&TestEvent::new("autocommit")).await;
    assert!(matches!(refused, Err(EmitError::NotInTransaction)), "{refused:?}");
}
