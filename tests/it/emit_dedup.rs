//! A dedup key is emitted once.

use std::sync::{Arc, Barrier};
use std::thread;

use diesel::connection::{Instrumentation, InstrumentationEvent, SimpleConnection as _};
use diesel::result::{DatabaseErrorKind, Error};
use diesel::{Connection as _, PgConnection};
use diesel_async::AsyncConnection as _;
use outbox_diesel::{AsyncEmit, Emit, EmitError, Emitted};
use outbox_tests::{TestDatabase, TestEvent};

fn keyed(id: &str, key: &str) -> TestEvent {
    TestEvent::new(id).dedup_key(key)
}

fn emit(conn: &mut PgConnection, event: &TestEvent) -> Emitted {
    conn.transaction(|conn| conn.emit(event)).unwrap()
}

#[test]
fn the_second_emit_of_a_key_is_a_duplicate_of_the_first() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let first = emit(&mut conn, &keyed("a", "k"));
    assert!(matches!(first, Emitted::New(_)));
    assert_eq!(emit(&mut conn, &keyed("b", "k")), Emitted::Duplicate(first.id()));
    // In one transaction, and with work after it: a duplicate aborts nothing.
    conn.transaction::<_, EmitError, _>(|conn| {
        let first = conn.emit(&keyed("c", "l"))?;
        assert_eq!(conn.emit(&keyed("d", "l"))?, Emitted::Duplicate(first.id()));
        conn.emit(&TestEvent::new("e"))
    })
    .unwrap();
    assert_eq!(database.emitted(), ["a", "c", "e"]);
    let id: uuid::Uuid = database.value("SELECT id FROM outbox.events WHERE dedup_key = 'k'");
    assert_eq!(id, first.id());
}

#[tokio::test]
async fn asynchronous_emits_know_duplicates_too() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    conn.transaction::<_, EmitError, _>(async |conn| {
        let first = conn.emit(&keyed("a", "k")).await?;
        assert_eq!(conn.emit(&keyed("b", "k")).await?, Emitted::Duplicate(first.id()));
        let emitted = conn.emit_all(&[keyed("c", "k"), keyed("d", "l")]).await?;
        assert_eq!(emitted[0], Emitted::Duplicate(first.id()));
        assert!(matches!(emitted[1], Emitted::New(_)));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(database.emitted(), ["a", "d"]);
}

#[test]
fn of_twenty_sessions_that_emit_a_key_at_once_one_emits_it() {
    let database = TestDatabase::new();
    let barrier = Barrier::new(20);
    let emitted: Vec<_> = thread::scope(|scope| {
        let sessions: Vec<_> = (0..20)
            .map(|n| {
                let (database, barrier) = (&database, &barrier);
                scope.spawn(move || {
                    let mut conn = database.sync();
                    barrier.wait();
                    emit(&mut conn, &keyed(&n.to_string(), "k"))
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    let new = emitted.iter().filter(|emitted| matches!(emitted, Emitted::New(_))).count();
    assert_eq!(new, 1);
    assert!(emitted.iter().all(|emitted| emitted.id() == emitted_id(&database)));
    assert_eq!(database.emitted().len(), 1);
}

fn emitted_id(database: &TestDatabase) -> uuid::Uuid {
    database.value("SELECT id FROM outbox.events")
}

#[test]
fn of_equal_keys_in_one_slice_the_first_is_emitted() {
    let database = TestDatabase::new();
    let events =
        [keyed("a", "k"), keyed("b", "l"), keyed("c", "k"), TestEvent::new("d"), keyed("e", "k")];
    let emitted = database.sync().transaction(|conn| conn.emit_all(&events)).unwrap();
    assert_eq!(database.emitted(), ["a", "b", "d"]);
    assert!([0, 1, 3].iter().all(|&n| matches!(emitted[n], Emitted::New(_))));
    assert_eq!(emitted[2], Emitted::Duplicate(emitted[0].id()));
    assert_eq!(emitted[4], Emitted::Duplicate(emitted[0].id()));
}

#[test]
fn a_key_whose_transaction_rolled_back_is_free_even_for_one_who_waited_for_it() {
    let database = TestDatabase::new();
    let mut first = database.sync();
    first.batch_execute("BEGIN").unwrap();
    first.emit(&keyed("a", "k")).unwrap();
    thread::scope(|scope| {
        let second = scope.spawn(|| emit(&mut database.sync(), &keyed("b", "k")));
        wait_for_a_waiter(&database);
        first.batch_execute("ROLLBACK").unwrap();
        assert!(matches!(second.join().unwrap(), Emitted::New(_)));
    });
    assert_eq!(database.emitted(), ["b"]);
}

#[test]
fn under_repeatable_read_a_key_that_another_session_has_just_taken_is_a_serialization_failure() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let failed = conn.build_transaction().repeatable_read().run::<_, EmitError, _>(|conn| {
        conn.batch_execute("SELECT 1")?;
        emit(&mut database.sync(), &keyed("a", "k"));
        conn.emit(&keyed("b", "k"))
    });
    let Err(EmitError::Database(Error::DatabaseError(kind, _))) = failed else {
        panic!("{failed:?}");
    };
    assert!(matches!(kind, DatabaseErrorKind::SerializationFailure));
    assert_eq!(database.emitted(), ["a"]);
}

#[test]
fn a_key_is_unique_across_partitions() {
    let database = TestDatabase::new();
    let mut conn = database.sync();
    let first = emit(&mut conn, &keyed("a", "k"));
    database.sql("SELECT setval('outbox.event_seq', 1000000)");
    emit(&mut conn, &TestEvent::new("in between"));
    assert_eq!(emit(&mut conn, &keyed("b", "k")), Emitted::Duplicate(first.id()));
    let leaves = "SELECT count(DISTINCT tableoid) FROM outbox.events";
    assert_eq!(database.value::<i64>(leaves), 2);
}

#[test]
fn slices_with_the_same_keys_in_opposite_order_do_not_deadlock() {
    let database = TestDatabase::new();
    let barrier = Barrier::new(2);
    thread::scope(|scope| {
        for backwards in [false, true] {
            let (database, barrier) = (&database, &barrier);
            scope.spawn(move || {
                let mut conn = database.sync();
                let emitted = (0..20).map(|round| {
                    let mut events: Vec<_> =
                        (0..300).map(|n| keyed("a", &format!("{round}-{n}"))).collect();
                    if backwards {
                        events.reverse();
                    }
                    barrier.wait();
                    conn.transaction(|conn| conn.emit_all(&events))
                });
                // Unwrapped only now: whoever panics in between leaves the other one waiting.
                emitted.collect::<Vec<_>>().into_iter().for_each(|emitted| _ = emitted.unwrap());
            });
        }
    });
    assert_eq!(database.emitted().len(), 20 * 300);
}

/// Lets the keys run out of their time, once, just before they are looked up.
struct Expiry(Arc<TestDatabase>, bool);

impl Instrumentation for Expiry {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        let InstrumentationEvent::StartQuery { query, .. } = event else { return };
        if query.to_string().starts_with("SELECT dedup_key")
            && !std::mem::replace(&mut self.1, true)
        {
            self.0.sql("DELETE FROM outbox.dedup_keys WHERE dedup_key <> 'held'");
        }
    }
}

#[test]
fn a_key_that_runs_out_of_its_time_during_an_emit_is_emitted_again() {
    let database = Arc::new(TestDatabase::new());
    let mut conn = database.sync();
    emit(&mut conn, &keyed("a", "k"));
    conn.set_instrumentation(Expiry(Arc::clone(&database), false));
    assert!(matches!(emit(&mut conn, &keyed("b", "k")), Emitted::New(_)));
    assert_eq!(database.emitted(), ["a", "b"]);
}

#[test]
fn keys_that_run_out_of_their_time_during_an_emit_of_a_slice_are_emitted_again() {
    let database = Arc::new(TestDatabase::new());
    let mut conn = database.sync();
    emit(&mut conn, &keyed("a", "k"));
    let held = emit(&mut conn, &keyed("b", "held"));
    conn.set_instrumentation(Expiry(Arc::clone(&database), false));
    let events = [keyed("c", "k"), keyed("d", "held"), TestEvent::new("e"), keyed("f", "k")];
    let emitted = conn.transaction(|conn| conn.emit_all(&events)).unwrap();
    assert!(matches!(emitted[0], Emitted::New(_)));
    assert_eq!(emitted[1], Emitted::Duplicate(held.id()));
    assert!(matches!(emitted[2], Emitted::New(_)));
    assert_eq!(emitted[3], Emitted::Duplicate(emitted[0].id()));
    assert_eq!(database.emitted(), ["a", "b", "e", "c"]);
}

#[tokio::test]
async fn keys_that_run_out_of_their_time_during_an_asynchronous_emit_are_emitted_again() {
    let database = Arc::new(TestDatabase::new());
    emit(&mut database.sync(), &keyed("a", "k"));
    let mut conn = database.connect().await;
    conn.set_instrumentation(Expiry(Arc::clone(&database), false));
    let emitted = conn
        .transaction::<_, EmitError, _>(async |conn| {
            conn.emit_all(&[keyed("b", "k"), TestEvent::new("c")]).await
        })
        .await
        .unwrap();
    assert!(emitted.iter().all(|emitted| matches!(emitted, Emitted::New(_))));
    assert_eq!(database.emitted(), ["a", "c", "b"]);
}

fn wait_for_a_waiter(database: &TestDatabase) {
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock')";
    while !database.value::<bool>(waits) {
        thread::yield_now();
    }
}
