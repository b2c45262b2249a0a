//! `Wake::Listen`: relays that sleep are woken by what is emitted, and by nothing else.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection as _;
use diesel::{Connection as _, PgConnection};
use diesel_async::AsyncConnection as _;
use outbox_diesel::admin::{self, Filter};
use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::{AsyncEmit as _, Health, RelayOptions, RetryOptions, Wake};
use outbox_tests::{
    Crashable, SOON, Scalar as _, TestDatabase, TestEvent, eventually, insert, orders, quick,
};
use xtask::postgres::{Durability, Options, Postgres};

/// A server that emits may notify on.
pub(crate) fn server() -> Postgres {
    let options = Options::default().durability(Durability::None);
    Postgres::start(options.setting("max_prepared_transactions", "0")).unwrap()
}

/// A database on a server of this file's own. A transaction that stays open keeps the relays of all
/// its databases awake: tests with one start another server.
pub(crate) fn quiet_database() -> TestDatabase {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    TestDatabase::on(&SERVER.get_or_init(server).url("postgres"))
}

/// A relay with these options delivers nothing for a minute unless it is woken.
pub(crate) fn deep() -> RelayOptions {
    quick().wake(Wake::Listen).poll_asleep(Duration::from_secs(60))
}

/// How many relays hold the lock of those that sleep.
fn sleepers(database: &TestDatabase) -> i64 {
    database.value(
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
         WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.mode = 'ShareLock' AND l.granted",
    )
}

/// Waits until so many relays are asleep and none of them asks anything any more.
pub(crate) async fn asleep(database: &TestDatabase, relays: i64) {
    let asked = "SELECT count(*) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name = 'relay'
           AND state_change > clock_timestamp() - interval '150 ms'";
    eventually(SOON, async || {
        (sleepers(database) == relays && database.value::<i64>(asked) == 0).then_some(())
    })
    .await;
}

/// Listens as relays do, and counts what emits notify.
pub(crate) struct Spy(PgConnection);

impl Spy {
    pub(crate) fn on(database: &TestDatabase) -> Self {
        let mut conn = database.sync();
        conn.batch_execute("LISTEN outbox_wake").unwrap();
        Self(conn)
    }

    /// What was notified since the last call.
    pub(crate) fn heard(&mut self) -> Vec<String> {
        // Notifications arrive with an answer.
        self.0.batch_execute("SELECT 1").unwrap();
        self.0.notifications_iter().map(|heard| heard.unwrap().payload).collect()
    }

    fn events(&mut self) -> usize {
        self.heard().iter().filter(|heard| *heard == "event").count()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleeping_relay_is_woken_by_an_emit_a_plain_insert_and_a_copy() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), deep()).await;
    let copy = "COPY outbox.events (topic, aggregate_type, aggregate_id, event_type, payload) FROM PROGRAM 'printf ''order\\torder\\tcopied\\torder.created\\t{}\\n'''";
    let mut slowest = Duration::ZERO;
    let mut expected = Vec::new();
    for how in ["emitted", "inserted", "copied", "inserted into default"] {
        asleep(&database, 1).await;
        match how {
            "emitted" => {
                let mut conn = database.connect().await;
                let event = TestEvent::new(how);
                conn.transaction(async |conn| conn.emit(&event).await).await.unwrap();
            }
            "copied" => database.sql(copy),
            how => database.insert(how),
        }
        let committed = Instant::now();
        expected.push(how.to_owned());
        assert_eq!(orders(&broker, expected.len()).await, expected);
        slowest = slowest.max(committed.elapsed());
        if how == "copied" {
            database.sql("SELECT setval('outbox.event_seq', 3000000)");
        }
    }
    println!("woken and delivered within {slowest:?}");
    // A fallback would take a minute.
    assert!(slowest < Duration::from_secs(5), "{slowest:?}");
    relay.shutdown().await;
    assert_eq!(sleepers(&database), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_asleep_asks_less_than_twice_a_second() {
    let server = server();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    let options = RelayOptions::default().wake(Wake::Listen);
    let relay = database.relay_with(broker.clone(), options).await;
    relay.ready().await.unwrap();
    asleep(&database, 1).await;
    // Asked from another database, so that asking is not counted.
    let elsewhere = database.url().replace(database.name(), "postgres");
    let mut outside = PgConnection::establish(&elsewhere).unwrap();
    let name = database.name().to_owned();
    let mut transactions = move || {
        let query = format!(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{name}'"
        );
        i64::of(&query, &mut outside).unwrap()
    };
    // What the server counts, a session says at its next statement: those of before are out by then.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let (before, started) = (transactions(), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    #[allow(clippy::cast_precision_loss, reason = "a few dozen")]
    let per_second = (transactions() - before) as f64 / started.elapsed().as_secs_f64();
    println!("{per_second:.2} statements per second");
    assert!(per_second <= 2.0, "{per_second}");
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emits_notify_nobody_while_a_relay_is_awake_and_once_while_all_sleep() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), deep()).await;
    let second = database.relay_with(broker.clone(), deep()).await;
    asleep(&database, 2).await;
    let mut spy = Spy::on(&database);
    let mut conn = database.sync();
    conn.batch_execute(&insert("wakes")).unwrap();
    assert_eq!(spy.events(), 1);
    orders(&broker, 1).await;
    // Without a lull in which somebody could fall asleep again.
    let is_reset = "SELECT pg_sequence_last_value('outbox.asleep_until') = 1";
    eventually(SOON, async || {
        conn.batch_execute(&insert("meanwhile")).unwrap();
        bool::of(is_reset, &mut conn).unwrap().then_some(())
    })
    .await;
    spy.events();
    let mut lulls = 0;
    for n in 0..200 {
        let before = Instant::now();
        conn.batch_execute(&insert(&n.to_string())).unwrap();
        lulls += usize::from(before.elapsed() > Duration::from_millis(200));
    }
    relay.drained().await.unwrap();
    second.drained().await.unwrap();
    assert_eq!(broker.delivered().len(), database.emitted().len());
    let notified = spy.events();
    println!("{notified} of 200 emits notified; {lulls} lulls");
    assert!(notified <= lulls * 2, "{notified}, {lulls}");
    relay.shutdown().await;
    second.shutdown().await;
    // Nobody is left to notify.
    database.insert("later");
    assert_eq!(spy.events(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_commits_long_after_its_relay_fell_asleep_wakes_it() {
    let server = server();
    let database = TestDatabase::on(&server.url("postgres"));
    let broker = RecordingPublisher::default();
    // Emitted while all are awake, and committed when all would sleep.
    let mut late = database.sync();
    database.sql("SELECT outbox.install_wake()");
    late.batch_execute(&format!("BEGIN; {}", insert("late"))).unwrap();
    let relay = database.relay_with(broker.clone(), deep()).await;
    let second = database.relay_with(broker.clone(), deep()).await;
    eventually(SOON, async || (sleepers(&database) == 2).then_some(())).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    late.batch_execute("COMMIT").unwrap();
    let committed = Instant::now();
    assert_eq!(orders(&broker, 1).await, ["late"]);
    println!("delivered {:?} after its commit", committed.elapsed());
    asleep(&database, 2).await;
    // From now on the same takes a notification.
    late.batch_execute(&format!("BEGIN; {}", insert("later"))).unwrap();
    asleep(&database, 2).await;
    late.batch_execute("COMMIT").unwrap();
    assert_eq!(orders(&broker, 2).await, ["late", "later"]);
    relay.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_killed_asleep_keeps_nobody_from_waking_and_emits_from_resting() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let options = deep().poll_asleep(Duration::from_secs(1));
    let killed = Crashable::start(&database, "default", broker.clone(), options).await;
    asleep(&database, 1).await;
    let mut spy = Spy::on(&database);
    killed.crash(&database).await;
    database.insert("into the dark");
    assert_eq!(spy.events(), 1, "it was thought to sleep");
    // What it wrote into the register runs out.
    eventually(SOON, async || {
        database.insert("into the dark");
        (spy.events() == 0).then_some(())
    })
    .await;
    let relay = database.relay_with(broker.clone(), deep()).await;
    relay.ready().await.unwrap();
    relay.drained().await.unwrap();
    asleep(&database, 1).await;
    let before = broker.delivered().len();
    database.insert("and there was light");
    orders(&broker, before + 1).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_and_an_operator_wake_a_relay_too() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    broker.reject(|event| (event.aggregate_id() == "poison").then(|| "no".to_owned()));
    let retry = RetryOptions::default().attempts(1);
    let relay = database.relay_with(broker.clone(), deep().retry(retry)).await;
    database.insert("poison");
    let dead = "SELECT EXISTS (SELECT FROM outbox.dead_letters)";
    eventually(SOON, async || database.value::<bool>(dead).then_some(())).await;
    asleep(&database, 1).await;
    let asked = Instant::now();
    relay.drained().await.unwrap();
    assert!(asked.elapsed() < SOON);
    asleep(&database, 1).await;
    broker.reject(|_| None);
    admin::retry_all(&mut database.connect().await, &Filter::default()).await.unwrap();
    assert_eq!(orders(&broker, 1).await, ["poison"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_comes_due_wakes_its_relay() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let once = AtomicBool::new(true);
    broker.reject(move |_| once.swap(false, Ordering::Relaxed).then(|| "not yet".to_owned()));
    let retry = RetryOptions::default().base(Duration::from_secs(4));
    let relay = database.relay_with(broker.clone(), deep().retry(retry)).await;
    database.insert("a");
    assert_eq!(orders(&broker, 1).await, ["a"]);
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_comes_gets_its_share_of_sleepers_and_one_that_goes_leaves_them_all() {
    let database = quiet_database();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), deep()).await;
    asleep(&database, 1).await;
    let second = database.relay_with(broker.clone(), deep()).await;
    let owners = "SELECT count(DISTINCT owner) FROM outbox.cursors WHERE leased_until > now()";
    eventually(SOON, async || (database.value::<i64>(owners) == 2).then_some(())).await;
    asleep(&database, 2).await;
    second.shutdown().await;
    eventually(SOON, async || (database.value::<i64>(owners) == 1).then_some(())).await;
    relay.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emits_that_may_be_prepared_are_never_made_to_notify() {
    // The tests' server allows prepared transactions.
    let database = TestDatabase::new();
    let broker = RecordingPublisher::default();
    let relay = database.relay_with(broker.clone(), deep()).await;
    let cause = eventually(SOON, async || match relay.health() {
        Health::Interrupted { cause } => Some(cause),
        _ => None,
    })
    .await;
    assert!(cause.contains("max_prepared_transactions = 20"), "{cause}");
    assert!(cause.contains("Wake::Poll"), "{cause}");
    relay.shutdown().await;
    let refused = database.sync().batch_execute("SELECT outbox.install_wake()").unwrap_err();
    assert!(refused.to_string().contains("max_prepared_transactions"), "{refused}");
    // The triggers may be older than the setting.
    database.sql(
        "CREATE TRIGGER wake_relays AFTER INSERT ON outbox.events FOR EACH STATEMENT EXECUTE FUNCTION outbox.wake_relays('event');
         SELECT outbox.fall_asleep('1 min')",
    );
    let name = database.name();
    database.sql(&format!("BEGIN; {}; PREPARE TRANSACTION '{name}'", insert("a")));
    database.sql(&format!("COMMIT PREPARED '{name}'"));
    assert_eq!(database.emitted(), ["a"]);
}
