//! The inbox: a repeat of an event has no effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use diesel::result::Error;
use diesel::{Connection as _, PgConnection, QueryResult, RunQueryDsl as _};
use diesel_async::{AsyncPgConnection, SimpleAsyncConnection as _};
use outbox_diesel::inbox::{Handled, Inbox};
use outbox_tests::{SOON, TestDatabase, eventually};
use uuid::Uuid;

const TABLE: &str = "CREATE TABLE effects (event_id uuid NOT NULL, run integer NOT NULL DEFAULT 1)";

fn database() -> TestDatabase {
    let database = TestDatabase::new();
    database.sql(TABLE);
    database
}

fn inbox() -> Inbox {
    Inbox::new("billing").expect("a good name")
}

fn effect(conn: &mut PgConnection, id: Uuid) -> QueryResult<usize> {
    diesel::sql_query("INSERT INTO effects VALUES ($1)")
        .bind::<diesel::sql_types::Uuid, _>(id)
        .execute(conn)
}

async fn effect_async(conn: &mut AsyncPgConnection, id: Uuid) -> QueryResult<usize> {
    let insert =
        diesel::sql_query("INSERT INTO effects VALUES ($1)").bind::<diesel::sql_types::Uuid, _>(id);
    diesel_async::RunQueryDsl::execute(insert, conn).await
}

/// Effects and records.
fn counts(database: &TestDatabase) -> (i64, i64) {
    (
        database.value("SELECT count(*) FROM effects"),
        database.value("SELECT count(*) FROM outbox.inbox"),
    )
}

#[test]
fn a_repeat_is_skipped_and_told_so() {
    let database = database();
    let mut conn = database.sync();
    let id = Uuid::now_v7();
    assert_eq!(inbox().once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::First(1)));
    assert_eq!(inbox().once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::Duplicate));
    assert_eq!(counts(&database), (1, 1));
}

#[tokio::test]
async fn a_repeat_is_skipped_on_an_asynchronous_connection_and_a_pool_guard_too() {
    let database = database();
    let pool = database.pool(2).await;
    let id = Uuid::now_v7();
    let handled = {
        let pool = pool.clone();
        // In a task of its own: the future must be Send.
        tokio::spawn(async move {
            let mut conn = pool.get().await.expect("a connection");
            let inbox = inbox();
            inbox.once_async(&mut *conn, id, async |conn| effect_async(conn, id).await).await
        })
        .await
        .expect("no panic")
    };
    assert_eq!(handled, Ok(Handled::First(1)));
    let mut guard = pool.get().await.expect("a connection");
    let handled =
        inbox().once_async(&mut guard, id, async |guard| effect_async(guard, id).await).await;
    assert_eq!(handled, Ok(Handled::Duplicate));
    assert_eq!(counts(&database), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_ten_copies_at_once_one_runs_and_nine_wait_and_skip() {
    let database = Arc::new(database());
    let id = Uuid::now_v7();
    let mut copies = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let database = Arc::clone(&database);
        copies.spawn(async move {
            let mut conn = database.connect().await;
            inbox()
                .once_async(&mut conn, id, async |conn| {
                    effect_async(conn, id).await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Ok::<_, Error>(())
                })
                .await
        });
    }
    let handled = copies.join_all().await;
    let firsts = handled.iter().filter(|handled| **handled == Ok(Handled::First(()))).count();
    let skipped = handled.iter().filter(|handled| **handled == Ok(Handled::Duplicate)).count();
    assert_eq!((firsts, skipped), (1, 9), "{handled:?}");
    assert_eq!(counts(&database), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn if_the_winner_fails_exactly_one_of_those_who_waited_runs() {
    let database = Arc::new(database());
    let id = Uuid::now_v7();
    let runs = Arc::new(AtomicU32::new(0));
    let mut copies = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (database, runs) = (Arc::clone(&database), Arc::clone(&runs));
        copies.spawn(async move {
            let mut conn = database.connect().await;
            inbox()
                .once_async(&mut conn, id, async |conn| {
                    let first = runs.fetch_add(1, Ordering::SeqCst) == 0;
                    effect_async(conn, id).await?;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    if first { Err(Error::RollbackTransaction) } else { Ok(()) }
                })
                .await
        });
    }
    let handled = copies.join_all().await;
    let firsts = handled.iter().filter(|handled| **handled == Ok(Handled::First(()))).count();
    let skipped = handled.iter().filter(|handled| **handled == Ok(Handled::Duplicate)).count();
    assert_eq!((firsts, skipped), (1, 8), "{handled:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(counts(&database), (1, 1));
}

#[test]
fn an_error_undoes_effects_and_record_and_leaves_the_outer_transaction_usable() {
    let database = database();
    let mut conn = database.sync();
    let (failing, other) = (Uuid::now_v7(), Uuid::now_v7());
    conn.transaction(|conn| {
        let failed = inbox().once(conn, failing, |conn| {
            effect(conn, failing)?;
            diesel::sql_query("SELECT 1 / 0").execute(conn)
        });
        assert!(matches!(failed, Err(Error::DatabaseError(..))), "{failed:?}");
        inbox().once(conn, other, |conn| effect(conn, other))
    })
    .expect("the outer transaction commits");
    assert_eq!(counts(&database), (1, 1));
    assert_eq!(
        inbox().once(&mut conn, failing, |conn| effect(conn, failing)),
        Ok(Handled::First(1))
    );
}

#[tokio::test]
async fn an_error_undoes_effects_and_record_on_an_asynchronous_connection_too() {
    let database = database();
    let mut conn = database.connect().await;
    let id = Uuid::now_v7();
    let failed: anyhow::Result<_> = inbox()
        .once_async(&mut conn, id, async |conn| {
            effect_async(conn, id).await?;
            let divided =
                diesel_async::RunQueryDsl::execute(diesel::sql_query("SELECT 1 / 0"), conn);
            divided.await.context("divides")
        })
        .await;
    assert!(failed.is_err());
    assert_eq!(counts(&database), (0, 0));
    let handled =
        inbox().once_async(&mut conn, id, async |conn| effect_async(conn, id).await).await;
    assert_eq!(handled, Ok(Handled::First(1)));
}

#[test]
fn the_callers_rollback_undoes_the_record_too() {
    let database = database();
    let mut conn = database.sync();
    let id = Uuid::now_v7();
    conn.transaction(|conn| {
        inbox().once(conn, id, |conn| effect(conn, id))?;
        Err::<(), _>(Error::RollbackTransaction)
    })
    .expect_err("rolled back");
    assert_eq!(counts(&database), (0, 0));
}

#[test]
fn a_handler_that_swallows_a_database_error_is_not_recorded_as_done() {
    let database = database();
    let mut conn = database.sync();
    let id = Uuid::now_v7();
    let swallowed = inbox().once(&mut conn, id, |conn| {
        effect(conn, id)?;
        diesel::sql_query("SELECT 1 / 0").execute(conn).ok();
        Ok::<_, Error>(())
    });
    assert!(swallowed.is_err(), "{swallowed:?}");
    assert_eq!(counts(&database), (0, 0));
    assert_eq!(inbox().once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::First(1)));
}

#[tokio::test]
async fn an_asynchronous_handler_that_swallows_a_database_error_is_not_recorded_as_done() {
    let database = database();
    let mut conn = database.connect().await;
    let id = Uuid::now_v7();
    let swallowed = inbox()
        .once_async(&mut conn, id, async |conn| {
            conn.batch_execute("SELECT 1 / 0").await.ok();
            Ok::<_, Error>(())
        })
        .await;
    assert!(swallowed.is_err(), "{swallowed:?}");
    assert_eq!(counts(&database), (0, 0));
}

#[tokio::test]
async fn a_handler_that_panics_is_not_recorded_as_done() {
    let database = Arc::new(database());
    let id = Uuid::now_v7();
    let pool = database.pool(1).await;
    let panicking = pool.clone();
    tokio::spawn(async move {
        let mut conn = panicking.get().await.expect("a connection");
        inbox()
            .once_async(&mut *conn, id, async |conn| {
                effect_async(conn, id).await?;
                if id.is_nil() {
                    return Ok::<_, Error>(());
                }
                panic!("as the test wants it");
            })
            .await
            .ok();
    })
    .await
    .expect_err("panics");
    // The pool's only connection is a new one.
    let mut conn = pool.get().await.expect("a connection");
    let handled =
        inbox().once_async(&mut *conn, id, async |conn| effect_async(conn, id).await).await;
    assert_eq!(handled, Ok(Handled::First(1)));
    assert_eq!(counts(&database), (1, 1));
}

#[tokio::test]
async fn a_dropped_call_is_not_recorded_as_done() {
    let database = database();
    let pool = database.pool(1).await;
    let id = Uuid::now_v7();
    let mut conn = pool.get().await.expect("a connection");
    let inbox = inbox();
    let dropped = tokio::time::timeout(
        Duration::from_millis(100),
        inbox.once_async(&mut *conn, id, async |conn| {
            effect_async(conn, id).await?;
            std::future::pending::<QueryResult<()>>().await
        }),
    );
    dropped.await.expect_err("dropped");
    drop(conn);
    let mut conn = pool.get().await.expect("a connection");
    let handled = inbox.once_async(&mut *conn, id, async |conn| effect_async(conn, id).await).await;
    assert_eq!(handled, Ok(Handled::First(1)));
    assert_eq!(counts(&database), (1, 1));
}

#[tokio::test]
async fn a_handler_whose_connection_is_killed_is_not_recorded_as_done() {
    let database = database();
    let id = Uuid::now_v7();
    let mut conn = database.connect().await;
    let killed = inbox()
        .once_async(&mut conn, id, async |conn| {
            effect_async(conn, id).await?;
            database.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND state = 'idle in transaction'",
            );
            Ok::<_, Error>(())
        })
        .await;
    assert!(killed.is_err(), "{killed:?}");
    let mut conn = database.connect().await;
    let handled =
        inbox().once_async(&mut conn, id, async |conn| effect_async(conn, id).await).await;
    assert_eq!(handled, Ok(Handled::First(1)));
}

#[test]
fn two_consumers_each_handle_an_event_and_a_renamed_one_keeps_its_memory_by_an_update() {
    let database = database();
    let mut conn = database.sync();
    let id = Uuid::now_v7();
    let mail = Inbox::new("mail").expect("a good name");
    assert_eq!(inbox().once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::First(1)));
    assert_eq!(mail.once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::First(1)));
    assert_eq!(mail.once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::Duplicate));

    database.sql("UPDATE outbox.inbox SET consumer = 'letters' WHERE consumer = 'mail'");
    let letters = Inbox::new("letters").expect("a good name");
    assert_eq!(letters.once(&mut conn, id, |conn| effect(conn, id)), Ok(Handled::Duplicate));
    assert_eq!(counts(&database), (2, 2));
}

#[test]
fn ids_that_two_producers_share_are_kept_apart_by_a_name_for_each() {
    let database = database();
    let (mut conn, id) = (database.sync(), Uuid::from_u128(1));
    for producer in ["billing/orders", "billing/stock"] {
        let inbox = Inbox::new(producer).expect("a good name");
        let handled = inbox.once(&mut conn, id, |conn| effect(conn, id));
        assert_eq!(handled, Ok(Handled::First(1)), "{producer}");
        let handled = inbox.once(&mut conn, id, |conn| effect(conn, id));
        assert_eq!(handled, Ok(Handled::Duplicate), "{producer}");
    }
    assert_eq!(counts(&database), (2, 2));
}

#[test]
fn a_name_that_cannot_be_stored_is_refused_before_any_sql() {
    assert_eq!(Inbox::new("").expect_err("empty").to_string(), "the consumer's name is empty");
    assert!(Inbox::new("x".repeat(255)).is_ok());
    assert_eq!(
        Inbox::new("x".repeat(256)).expect_err("long").to_string(),
        "the consumer's name has 256 bytes; the limit is 255"
    );
    assert!(Inbox::new("a\0b").is_err());
}

#[tokio::test]
async fn one_that_waited_under_repeatable_read_fails_and_skips_when_tried_again() {
    let database = database();
    let id = Uuid::now_v7();
    let mut winner = database.connect().await;
    let mut loser = database.connect().await;
    winner.batch_execute("BEGIN").await.expect("begins");
    let insert = format!("INSERT INTO outbox.inbox VALUES ('billing', '{id}')");
    winner.batch_execute(&insert).await.expect("inserts");
    let waiting = tokio::spawn(async move {
        let handled = loser
            .build_transaction()
            .repeatable_read()
            .run(async |conn| inbox().once_async(conn, id, async |_| Ok::<_, Error>(())).await)
            .await;
        (loser, handled)
    });
    eventually(SOON, async || {
        database
            .value::<bool>(
                "SELECT EXISTS (SELECT FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event_type = 'Lock')",
            )
            .then_some(())
    })
    .await;
    winner.batch_execute("COMMIT").await.expect("commits");
    let (mut loser, handled) = waiting.await.expect("no panic");
    assert!(
        matches!(
            &handled,
            Err(Error::DatabaseError(diesel::result::DatabaseErrorKind::SerializationFailure, _))
        ),
        "{handled:?}"
    );
    let again = inbox().once_async(&mut loser, id, async |_| Ok::<_, Error>(())).await;
    assert_eq!(again, Ok(Handled::Duplicate));
}
