//! Dump and restore, then rebase.

use std::process::{Command, Stdio};

use diesel_async::{AsyncConnection as _, SimpleAsyncConnection as _};
use outbox_diesel::admin::{self, AdminError, Filter};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::subscription::{self, Start};
use outbox_diesel::{AsyncEmit as _, Health, Relay, RelayHandle};
use outbox_tests::{SOON, TestDatabase, TestEvent, eventually};
use xtask::postgres::{Durability, Options, Postgres};
use xtask::programs::{PostgresPrograms, find_clients};

use crate::admin::{
    Rejects, attempts, dead, emit, event, gets, got, holds, nothing_parked, strict_relay,
};

/// A new server.
fn server() -> Postgres {
    Postgres::start(Options::default().durability(Durability::None)).expect("PostgreSQL starts")
}

/// Replaces what is in the second database with a dump of the first.
fn dump_and_restore(programs: &PostgresPrograms, from: &TestDatabase, to: &TestDatabase) {
    let mut dump = Command::new(programs.program("pg_dump"))
        .args(["--schema", "outbox", from.url().as_str()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("pg_dump is there");
    let restored = Command::new(programs.program("psql"))
        .args(["--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--dbname", to.url().as_str()])
        .stdin(dump.stdout.take().expect("it is piped"))
        .stdout(Stdio::null())
        .status()
        .expect("psql is there");
    assert!(dump.wait().expect("pg_dump ends").success() && restored.success());
}

async fn relay_of(database: &TestDatabase, name: &str, broker: &RecordingPublisher) -> RelayHandle {
    Relay::builder(database.pool(1).await)
        .publisher(broker.clone())
        .options(attempts(1))
        .subscription(name)
        .spawn()
        .unwrap()
}

async fn settled(database: &TestDatabase, name: &str) {
    let at_the_end =
        "SELECT bool_and(tick = (SELECT max(tick) FROM outbox.ticks)) FROM outbox.cursors";
    holds(database, &format!("{at_the_end} WHERE subscription = '{name}'")).await;
}

/// Other transactions, so that the origin's ids are far ahead.
fn spend_xids(database: &TestDatabase, xids: usize) {
    let mut conn = database.sync();
    for _ in 0..xids {
        diesel::RunQueryDsl::execute(diesel::sql_query("SELECT pg_current_xact_id()"), &mut conn)
            .expect("assigns a transaction id");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_dump_and_restore_nothing_is_lost_and_nothing_repeated() {
    let Some(clients) = find_clients() else {
        eprintln!("SKIPPED: no pg_dump and psql that are as new as the server");
        return;
    };
    let origin_server = server();
    let origin = TestDatabase::on(&origin_server.url("postgres"));
    let home_server = server();
    let home = TestDatabase::on(&home_server.url("postgres"));
    home.sql("DROP SCHEMA outbox CASCADE");
    let (broker, kafka) = (RecordingPublisher::default(), RecordingPublisher::default());
    let rejects = Rejects::of(&broker, &["bad"]);
    let mut conn = origin.connect().await;
    subscription::create(&mut conn, "kafka", Start::Earliest, &[]).await.unwrap();
    spend_xids(&origin, 3000);

    // Delivered to both, parked for one, pending for the other, and pending for both.
    let relay = strict_relay(&origin, &broker).await;
    let other = relay_of(&origin, "kafka", &kafka).await;
    for name in ["1", "2"] {
        emit(&mut conn, event("a", name)).await;
    }
    gets(&broker, "a", &["1", "2"]).await;
    gets(&kafka, "a", &["1", "2"]).await;
    // One is committed late: its seq is low.
    let mut late = origin.connect().await;
    late.batch_execute("BEGIN").await.unwrap();
    late.emit(&event("late", "late")).await.unwrap();
    emit(&mut conn, event("a", "3")).await;
    gets(&kafka, "a", &["1", "2", "3"]).await;
    settled(&origin, "kafka").await;
    other.shutdown().await;
    emit(&mut conn, event("a", "bad")).await;
    emit(&mut conn, event("a", "held")).await;
    dead(&origin, 1).await;
    emit(&mut conn, event("b", "1")).await;
    gets(&broker, "b", &["1"]).await;
    settled(&origin, "default").await;
    relay.shutdown().await;
    late.batch_execute("COMMIT").await.unwrap();
    emit(&mut conn, event("b", "2")).await;

    dump_and_restore(&clients, &origin, &home);
    // The application is faster than the operator.
    let mut conn = home.connect().await;
    for name in ["new 1", "new 2"] {
        emit(&mut conn, event("a", name)).await;
    }
    let relay = strict_relay(&home, &broker).await;
    eventually(SOON, async || {
        matches!(relay.health(), Health::Interrupted { cause } if cause.contains("rebase"))
            .then_some(())
    })
    .await;

    let plan = admin::plan_rebase(&mut conn).await.unwrap();
    assert!(plan.is_needed() && plan.is_foreign && !plan.is_behind);
    let summary = |of: &admin::Undelivered| (of.subscription.clone(), of.events, of.parked);
    let summary: Vec<_> = plan.subscriptions.iter().map(summary).collect();
    // a new 1, a new 2, b 2, late; for kafka also a bad, a held, b 1.
    assert_eq!(summary, [("default".to_owned(), 4, 2), ("kafka".to_owned(), 7, 0)]);
    // Two operators at once.
    let mut second = home.connect().await;
    let (one, two) =
        tokio::join!(admin::rebase(&mut conn, &plan), admin::rebase(&mut second, &plan));
    let (done, refused) = if one.is_ok() { (one, two) } else { (two, one) };
    assert_eq!(done.unwrap(), plan.subscriptions);
    let refused = refused.unwrap_err();
    assert!(matches!(refused, AdminError::NothingToRebase), "{refused}");

    emit(&mut conn, event("b", "3")).await;
    let other = relay_of(&home, "kafka", &kafka).await;
    gets(&broker, "b", &["1", "2", "3"]).await;
    gets(&broker, "late", &["late"]).await;
    rejects.set(&[]);
    eventually(SOON, async || {
        (admin::retry_all(&mut conn, &Filter::default()).await.unwrap() == 1).then_some(())
    })
    .await;
    gets(&broker, "a", &["1", "2", "3", "bad", "held", "new 1", "new 2"]).await;
    gets(&kafka, "a", &["1", "2", "3", "bad", "held", "new 1", "new 2"]).await;
    gets(&kafka, "b", &["1", "2", "3"]).await;
    gets(&kafka, "late", &["late"]).await;
    nothing_parked(&home).await;

    // The new database's ids come to where the old ones were: nothing old comes again.
    spend_xids(&home, 4000);
    emit(&mut conn, event("a", "last")).await;
    eventually(SOON, async || (got(&broker, "a").len() == 8).then_some(())).await;
    settled(&home, "default").await;
    let sent = (broker.delivered().len(), broker.repeats());
    assert_eq!(sent, (12, 0));
    relay.shutdown().await;
    other.shutdown().await;

    // A subscription made now starts behind the floor, and a rewind beyond it is refused.
    let third = RecordingPublisher::default();
    subscription::create(&mut conn, "third", Start::Earliest, &[]).await.unwrap();
    let relay = relay_of(&home, "third", &third).await;
    gets(&third, "a", &["last"]).await;
    gets(&third, "b", &["3"]).await;
    relay.shutdown().await;
    let hours_ago = chrono::Utc::now() - chrono::TimeDelta::hours(1);
    let error =
        subscription::rewind(&mut conn, "default", Start::Since(hours_ago)).await.unwrap_err();
    assert!(matches!(error, AdminError::NotKept { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_in_the_middle_of_its_diff_parks_only_the_rest_of_it() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    subscription::set_topics(&mut conn, "default", &["order"]).await.unwrap();
    conn.transaction(async |conn| {
        for n in 0..4 {
            conn.emit(&TestEvent::new("a").event_type(n.to_string())).await?;
        }
        conn.emit(&TestEvent::new("a").topic("other")).await?;
        Ok::<_, outbox_diesel::EmitError>(())
    })
    .await
    .unwrap();
    database.sql("SELECT outbox.take_tick()");
    database.sql("UPDATE outbox.cursors SET tick = (SELECT min(tick) FROM outbox.ticks WHERE tick > 0), seq = (SELECT min(seq) + 1 FROM outbox.events)");
    let plan = admin::plan_rebase(&mut conn).await.unwrap();
    assert_eq!(plan.subscriptions[0].events, 2);
    admin::rebase(&mut conn, &plan.anyway()).await.unwrap();
    let parked = "SELECT array_agg(event_type ORDER BY seq) FROM outbox.parked";
    assert_eq!(database.value::<Vec<String>>(parked), ["2", "3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_was_set_back_is_lifted_and_what_was_emitted_meanwhile_is_delivered() {
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let mut conn = database.connect().await;
    for name in ["1", "2", "3"] {
        emit(&mut conn, event("a", name)).await;
    }
    let relay = strict_relay(&database, &broker).await;
    gets(&broker, "a", &["1", "2", "3"]).await;
    settled(&database, "default").await;
    relay.shutdown().await;
    database.sql("DELETE FROM outbox.events; SELECT setval('outbox.event_seq', 1)");
    emit(&mut conn, event("a", "4")).await;
    let plan = admin::plan_rebase(&mut conn).await.unwrap();
    assert!(plan.is_behind && !plan.is_foreign);
    admin::rebase(&mut conn, &plan).await.unwrap();
    emit(&mut conn, event("a", "5")).await;
    let relay = strict_relay(&database, &broker).await;
    gets(&broker, "a", &["1", "2", "3", "4", "5"]).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebase_is_refused_where_all_is_well_while_relays_run_and_with_a_plan_from_elsewhere() {
    let database = TestDatabase::new();
    let mut conn = database.connect().await;
    let plan = admin::plan_rebase(&mut conn).await.unwrap();
    assert!(!plan.is_needed());
    let error = admin::rebase(&mut conn, &plan).await.unwrap_err();
    assert!(matches!(error, AdminError::NothingToRebase), "{error}");
    let relay = strict_relay(&database, &RecordingPublisher::default()).await;
    holds(&database, "SELECT bool_and(owner IS NOT NULL) FROM outbox.cursors").await;
    let error = admin::rebase(&mut conn, &plan.clone().anyway()).await.unwrap_err();
    assert!(matches!(error, AdminError::RelaysLive { .. }), "{error}");
    relay.shutdown().await;

    let mut open = database.connect().await;
    open.batch_execute("BEGIN").await.unwrap();
    open.emit(&TestEvent::new(1)).await.unwrap();
    let error = admin::rebase(&mut conn, &plan.clone().anyway()).await.unwrap_err();
    assert!(matches!(error, AdminError::Busy(_)), "{error}");
    open.batch_execute("ROLLBACK").await.unwrap();

    let elsewhere = TestDatabase::new();
    let mut conn = elsewhere.connect().await;
    let error = admin::rebase(&mut conn, &plan.anyway()).await.unwrap_err();
    assert!(matches!(error, AdminError::PlanOutdated(_)), "{error}");
}
