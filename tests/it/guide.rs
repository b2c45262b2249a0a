//! The guide's SQL is run as it stands; that of the chapter on migrating under load.

use std::collections::BTreeMap;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use diesel::sql_types::{BigInt, Text};
use diesel::{Connection as _, PgConnection, QueryResult, RunQueryDsl as _, dsl};
use outbox_diesel::publish::{OwnedMessage, publisher_fn};
use outbox_diesel::{Emit as _, OutboxEvent, RelayHandle};
use outbox_tests::{SOON, TestDatabase, eventually};

// Read when it runs: a change of a page builds no test anew.
static CHAPTER: LazyLock<String> = LazyLock::new(|| {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/migrating.md");
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"))
});

/// How many aggregates change.
const ACCOUNTS: i64 = 8;

/// The SQL behind the comment `<!-- run: name -->`.
fn block(name: &str) -> &'static str {
    let mark = format!("<!-- run: {name} -->");
    let (_, behind) = CHAPTER.split_once(&mark).unwrap_or_else(|| panic!("no block {name}"));
    let (_, sql) = behind.split_once("```sql\n").expect("a fence opens");
    sql.split_once("\n```").expect("a fence closes").0
}

/// What arrived, whoever sent it: account and version, in order.
type Arrivals = Arc<Mutex<Vec<(String, i64)>>>;

fn version(payload: &str) -> i64 {
    let payload: serde_json::Value = serde_json::from_str(payload).expect("JSON");
    payload["v"].as_i64().expect("a version")
}

/// A thread that repeats a step until it is stopped.
struct Repeating(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Repeating {
    fn start(
        database: &TestDatabase,
        mut step: impl FnMut(&mut PgConnection) + Send + 'static,
    ) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (told, mut conn) = (Arc::clone(&ended), database.sync());
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                step(&mut conn);
            }
        });
        Self(ended, Some(thread))
    }

    /// Lets it finish its step.
    fn stop(mut self) {
        self.end().expect("it went well until now");
    }

    fn end(&mut self) -> thread::Result<()> {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().map_or(Ok(()), JoinHandle::join)
    }
}

impl Drop for Repeating {
    fn drop(&mut self) {
        self.end().ok();
    }
}

/// The service before: inserts into its own table. Some transactions roll back, some take a while.
fn old_writer(database: &TestDatabase) -> Repeating {
    Repeating::start(database, |conn| {
        let account = fastrand::i64(0..ACCOUNTS);
        let end = if fastrand::u8(0..8) == 0 { "ROLLBACK" } else { "COMMIT" };
        let pause = fastrand::u8(0..10);
        conn.batch_execute(&format!(
            "BEGIN;
             WITH changed AS (UPDATE ledger SET version = version + 1 WHERE id = {account} RETURNING id, version)
             INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
             SELECT 'account', id::text, 'account.changed', jsonb_build_object('v', version) FROM changed;
             SELECT pg_sleep({pause} * 0.001);
             {end}"
        ))
        .expect("the service notices nothing");
    })
}

#[derive(serde::Serialize, OutboxEvent)]
#[outbox(aggregate = "account", aggregate_id = "id")]
struct AccountChanged {
    id: i64,
    v: i64,
}

/// The service after: emits.
fn new_writer(database: &TestDatabase) -> Repeating {
    Repeating::start(database, |conn| {
        let id = fastrand::i64(0..ACCOUNTS);
        let written: QueryResult<()> = conn.transaction(|conn| {
            let changed = format!(
                "UPDATE ledger SET version = version + 1 WHERE id = {id} RETURNING version"
            );
            let v = dsl::sql::<BigInt>(&changed).get_result(conn)?;
            conn.emit(&AccountChanged { id, v })?;
            if fastrand::u8(0..8) == 0 {
                return Err(diesel::result::Error::RollbackTransaction);
            }
            Ok(())
        });
        match written {
            Ok(()) | Err(diesel::result::Error::RollbackTransaction) => {}
            Err(error) => panic!("{error}"),
        }
    })
}

/// The hand-written poller: reads, publishes and marks in one transaction.
fn old_poller(database: &TestDatabase, arrivals: &Arrivals) -> Repeating {
    let arrivals = Arc::clone(arrivals);
    Repeating::start(database, move |conn| {
        let polled: QueryResult<()> = conn.transaction(|conn| {
            let rows: Vec<(i64, String, String)> =
                dsl::sql::<(BigInt, Text, Text)>(block("poll")).load(conn)?;
            for (id, account, payload) in rows {
                arrivals.lock().expect("nobody panics").push((account, version(&payload)));
                thread::sleep(Duration::from_micros(300));
                conn.batch_execute(&format!(
                    "UPDATE public.outbox SET processed_at = now() WHERE id = {id}"
                ))?;
            }
            Ok(())
        });
        polled.expect("the poller notices nothing");
    })
}

async fn relay(database: &TestDatabase, arrivals: &Arrivals) -> RelayHandle {
    let arrivals = Arc::clone(arrivals);
    let publisher = publisher_fn(move |event: OwnedMessage| {
        let arrival = (event.aggregate_id().to_owned(), version(event.payload()));
        arrivals.lock().expect("nobody panics").push(arrival);
        async { Ok(()) }
    });
    database.relay(publisher).await
}

/// Runs a block as the chapter says: again, as long as it fails for want of a lock.
async fn run(database: &TestDatabase, name: &str) {
    eventually(SOON, async || match database.sync().batch_execute(block(name)) {
        Ok(()) => Some(()),
        Err(error) if error.to_string().contains("lock timeout") => None,
        Err(error) => panic!("{name}: {error}"),
    })
    .await;
}

async fn arrived(arrivals: &Arrivals, more: usize) {
    let count = || arrivals.lock().expect("nobody panics").len();
    let wanted = count() + more;
    eventually(SOON, async || (count() >= wanted).then_some(())).await;
}

/// Each version of each account has arrived once, in order.
async fn judge(database: &TestDatabase, arrivals: &Arrivals) {
    let ledger: Vec<(i64, i64)> = dsl::sql::<(BigInt, BigInt)>(
        "SELECT id, version FROM ledger WHERE version > 0 ORDER BY id",
    )
    .load(&mut database.sync())
    .expect("reads the ledger");
    let committed =
        ledger.iter().map(|(_, version)| usize::try_from(*version).expect("counted up"));
    let committed: usize = committed.sum();
    eventually(SOON, async || (arrivals.lock().ok()?.len() >= committed).then_some(())).await;
    let mut by_account: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for (account, version) in arrivals.lock().expect("nobody panics").iter() {
        by_account.entry(account.parse().expect("a number")).or_default().push(*version);
    }
    for (id, version) in &ledger {
        let arrived = by_account.remove(id).unwrap_or_default();
        assert_eq!(arrived, (1..=*version).collect::<Vec<_>>(), "account {id}");
    }
    assert!(by_account.is_empty(), "made up: {by_account:?}");
}

fn service_with_a_textbook_outbox() -> (TestDatabase, Arrivals) {
    let database = TestDatabase::new();
    database.sql(block("textbook"));
    database.sql(&format!(
        "CREATE TABLE ledger (id bigint PRIMARY KEY, version bigint NOT NULL);
         INSERT INTO ledger SELECT id, 0 FROM generate_series(0, {ACCOUNTS} - 1) id"
    ));
    (database, Arrivals::default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_written_outbox_is_left_under_load_without_a_loss_or_a_repeat() {
    let (database, arrivals) = service_with_a_textbook_outbox();
    let old: Vec<_> = (0..3).map(|_| old_writer(&database)).collect();
    let poller = old_poller(&database, &arrivals);
    arrived(&arrivals, 100).await;
    assert!(database.value::<bool>(block("fits")), "all names have 1 to 255 bytes");
    let relay = relay(&database, &arrivals).await;

    run(&database, "switch").await;
    arrived(&arrivals, 100).await;
    // The deployment: old and new instances side by side, then new ones alone.
    let new: Vec<_> = (0..3).map(|_| new_writer(&database)).collect();
    arrived(&arrivals, 200).await;
    old.into_iter().for_each(Repeating::stop);
    assert!(database.value::<i64>(block("inserts")) >= 0, "the statistics lag; the query runs");
    poller.stop();
    run(&database, "finish").await;
    arrived(&arrivals, 100).await;

    new.into_iter().for_each(Repeating::stop);
    judge(&database, &arrivals).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_to_a_hand_written_outbox_loses_and_repeats_nothing() {
    let (database, arrivals) = service_with_a_textbook_outbox();
    let writers: Vec<_> = (0..3).map(|_| old_writer(&database)).collect();
    let poller = old_poller(&database, &arrivals);
    let relay = relay(&database, &arrivals).await;
    arrived(&arrivals, 100).await;
    run(&database, "switch").await;
    arrived(&arrivals, 100).await;

    poller.stop();
    run(&database, "back").await;
    eventually(SOON, async || database.value::<bool>(block("drained")).then_some(())).await;
    let poller = old_poller(&database, &arrivals);
    arrived(&arrivals, 100).await;
    writers.into_iter().for_each(Repeating::stop);
    judge(&database, &arrivals).await;
    poller.stop();
    relay.shutdown().await;
}

#[test]
fn the_sql_of_the_other_chapters_is_run() {
    let database = TestDatabase::new();
    let mut blocks = 0;
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src");
    for page in fs::read_dir(pages).expect("the guide is there") {
        let page = page.expect("it can be listed").path();
        let is_page = page.extension().is_some_and(|extension| extension == "md");
        if !is_page || page.ends_with("migrating.md") {
            continue;
        }
        let text = fs::read_to_string(&page).expect("it can be read");
        for block in text.split("\n```sql\n").skip(1) {
            database.sql(block.split("\n```").next().expect("a fence closes"));
            blocks += 1;
        }
    }
    assert!(blocks > 0, "no block was found");
}
