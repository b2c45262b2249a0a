//! `#[outbox(serialize_writers)]`: emit locks the aggregate.

use std::time::Duration;

use diesel_async::{AsyncConnection as _, AsyncPgConnection, TransactionManager};
use outbox_diesel::{AsyncEmit as _, Emit as _, EmitError, OutboxEvent};
use outbox_tests::{TestDatabase, TestEvent, eventually};
use serde::Serialize;

type Transactions = <AsyncPgConnection as diesel_async::AsyncConnection>::TransactionManager;

#[derive(Serialize, OutboxEvent)]
#[outbox(aggregate = "account", aggregate_id = "account", serialize_writers)]
struct Moved {
    account: &'static str,
    amount: i32,
}

const fn moved(account: &'static str, amount: i32) -> Moved {
    Moved { account, amount }
}

fn amounts(database: &TestDatabase) -> Vec<String> {
    database.value("SELECT ARRAY(SELECT payload->>'amount' FROM outbox.events ORDER BY seq)")
}

/// Locks of emit in this database, held or waited for.
fn locks(database: &TestDatabase, granted: bool) -> i64 {
    database.value(&format!(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
         WHERE datname = current_database() AND classid = 1869968482 AND granted = {granted}"
    ))
}

/// Case C41, without any lock of the application.
#[tokio::test]
async fn the_second_writer_waits_for_the_first_to_commit() {
    let database = TestDatabase::new();
    let mut first = database.connect().await;
    Transactions::begin_transaction(&mut first).await.unwrap();
    first.emit(&moved("a", 1)).await.unwrap();

    let mut second = database.connect().await;
    let second = tokio::spawn(async move {
        second.transaction::<_, EmitError, _>(async |conn| conn.emit(&moved("a", 2)).await).await
    });
    eventually(Duration::from_secs(10), async || (locks(&database, false) == 1).then_some(()))
        .await;
    assert_eq!(amounts(&database), Vec::<String>::new());

    first.emit(&moved("a", 3)).await.unwrap();
    Transactions::commit_transaction(&mut first).await.unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(amounts(&database), ["1", "3", "2"]);
}

#[tokio::test]
async fn other_aggregates_and_other_event_types_do_not_wait() {
    let database = TestDatabase::new();
    let mut first = database.connect().await;
    Transactions::begin_transaction(&mut first).await.unwrap();
    first.emit_all(&[moved("a", 1), moved("b", 2)]).await.unwrap();

    let mut second = database.sync();
    diesel::Connection::transaction::<_, EmitError, _>(&mut second, |conn| {
        conn.emit(&moved("c", 3))?;
        conn.emit(&TestEvent::new("a"))
    })
    .unwrap();
    Transactions::commit_transaction(&mut first).await.unwrap();
}

/// Opposite orders in one `emit_all` each, many times over, on both kinds of connection.
#[tokio::test(flavor = "multi_thread")]
async fn slices_in_opposite_orders_do_not_deadlock() {
    const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let database = TestDatabase::new();
    let there = NAMES.map(|name| moved(name, 1));
    let mut back = NAMES.map(|name| moved(name, 2));
    back.reverse();

    let mut conn = database.sync();
    let sync = std::thread::spawn(move || {
        for _ in 0..200 {
            diesel::Connection::transaction::<_, EmitError, _>(&mut conn, |conn| {
                conn.emit_all(&there)
            })
            .expect("no deadlock");
        }
    });
    let mut conn = database.connect().await;
    for _ in 0..200 {
        conn.transaction::<_, EmitError, _>(async |conn| conn.emit_all(&back).await)
            .await
            .expect("no deadlock");
    }
    sync.join().unwrap();
    assert_eq!(amounts(&database).len(), 2 * 200 * NAMES.len());
}

#[tokio::test]
async fn the_lock_ends_with_the_savepoint_that_took_it() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    diesel::Connection::transaction::<_, EmitError, _>(&mut conn, |conn| {
        let rolled_back = diesel::Connection::transaction::<(), EmitError, _>(conn, |conn| {
            conn.emit(&moved("a", 1))?;
            assert_eq!(locks(&database, true), 1);
            Err(diesel::result::Error::RollbackTransaction.into())
        });
        assert!(rolled_back.is_err());
        assert_eq!(locks(&database, true), 0);
        Ok(())
    })
    .unwrap();
}
