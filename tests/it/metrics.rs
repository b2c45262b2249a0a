//! Metrics of a relay in the process: none is left as it was when the relay ends, however it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diesel::connection::SimpleConnection as _;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use outbox_diesel::admin::{self, Events};
use outbox_diesel::publish::{OwnedMessage, RecordingPublisher, publisher_fn};
use outbox_diesel::{Relay, RelayHandle};
use outbox_tests::{SOON, TestDatabase, eventually, orders, quick};
use tokio_util::sync::CancellationToken;

struct Measured {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Measured {
    fn new() -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        Self { handle: recorder.handle(), recorder }
    }

    /// A relay whose metrics come here.
    async fn relay(&self, database: &TestDatabase, broker: &RecordingPublisher) -> RelayHandle {
        let relay =
            Relay::builder(database.relay_pool().await).publisher(broker.clone()).options(quick());
        metrics::with_local_recorder(&self.recorder, || relay.spawn()).unwrap()
    }

    fn value(&self, metric: &str) -> Option<f64> {
        let series = format!("{metric}{{subscription=\"default\"}} ");
        let text = self.handle.render();
        text.lines().find_map(|line| line.strip_prefix(&series))?.parse().ok()
    }

    async fn tells(&self, metric: &str, expected: f64) {
        eventually(SOON * 2, async || {
            let value = self.value(metric)?;
            (value.total_cmp(&expected).is_eq() || (value.is_nan() && expected.is_nan()))
                .then_some(())
        })
        .await;
    }

    async fn tells_of_no_relay(&self) {
        self.tells("outbox_relay_up", 0.0).await;
        self.tells("outbox_shards_leased", 0.0).await;
        for gauge in [
            "outbox_events_pending",
            "outbox_oldest_pending_seconds",
            "outbox_dead_letters",
            "outbox_parked",
            "outbox_publisher_available",
            "outbox_default_partition_rows",
            "outbox_partitions_ahead",
            "outbox_overdue_partitions",
            "outbox_oldest_open_transaction_seconds",
            "outbox_oldest_snapshot_transactions",
            "outbox_notification_queue_usage",
        ] {
            self.tells(gauge, f64::NAN).await;
        }
    }
}

#[tokio::test]
async fn a_relay_that_stopped_leaves_no_gauge_at_its_last_good_value() {
    let (database, measured) = (TestDatabase::new(), Measured::new());
    let broker = RecordingPublisher::default();
    let relay = measured.relay(&database, &broker).await;
    database.insert("a");
    orders(&broker, 1).await;
    measured.tells("outbox_events_published_total", 1.0).await;
    measured.tells("outbox_events_pending", 0.0).await;
    measured.tells("outbox_shards_leased", 16.0).await;
    let progress = "outbox_relay_last_progress_timestamp_seconds";
    let then = measured.value(progress).unwrap();
    eventually(SOON, async || measured.value(progress).filter(|now| *now > then)).await;
    relay.shutdown().await;
    measured.tells_of_no_relay().await;
    assert!(measured.value("outbox_events_published_total").is_some());
}

#[tokio::test]
async fn a_relay_whose_future_was_dropped_leaves_none_either() {
    let (database, measured) = (TestDatabase::new(), Measured::new());
    let relay = Relay::builder(database.relay_pool().await)
        .publisher(RecordingPublisher::default())
        .options(quick());
    let running = relay.run(CancellationToken::new());
    let mut running = Box::pin(running);
    // Its metrics are made when it is first polled.
    std::future::poll_fn(|context| {
        metrics::with_local_recorder(&measured.recorder, || {
            _ = running.as_mut().poll(context);
        });
        std::task::Poll::Ready(())
    })
    .await;
    tokio::select! {
        _ = &mut running => panic!("it runs until it is cancelled"),
        () = measured.tells("outbox_events_pending", 0.0) => {}
    }
    drop(running);
    measured.tells_of_no_relay().await;
}

#[tokio::test]
async fn a_relay_that_is_interrupted_is_blind_until_it_works_again() {
    let (database, measured) = (TestDatabase::new(), Measured::new());
    let broker = RecordingPublisher::default();
    let relay = measured.relay(&database, &broker).await;
    measured.tells("outbox_events_pending", 0.0).await;
    // The schema is another one: the relay refuses to work.
    database.sql("ALTER SCHEMA outbox RENAME TO elsewhere");
    measured.tells_of_no_relay().await;
    database.sql("ALTER SCHEMA elsewhere RENAME TO outbox");
    measured.tells("outbox_relay_up", 1.0).await;
    tokio::time::timeout(Duration::from_secs(20), relay.shutdown()).await.unwrap();
}

#[tokio::test]
async fn a_snapshot_that_holds_back_vacuum_is_told_though_its_transaction_never_emitted() {
    let (database, measured) = (TestDatabase::new(), Measured::new());
    let relay = measured.relay(&database, &RecordingPublisher::default()).await;
    let mut report = database.sync();
    report.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class").unwrap();
    for n in 0..500 {
        database.insert(&n.to_string());
    }
    let age = || measured.value("outbox_oldest_snapshot_transactions");
    let held = eventually(SOON * 2, async || age().filter(|age| *age >= 500.0)).await;
    measured.tells("outbox_oldest_open_transaction_seconds", 0.0).await;
    report.batch_execute("COMMIT").unwrap();
    eventually(SOON * 2, async || age().filter(|age| *age < held)).await;
    relay.shutdown().await;
}

/// Lets the blocked thread go, also when the test fails: its runtime waits for it.
struct Released(Arc<AtomicBool>);

impl Drop for Released {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_loop_is_stuck_does_not_go_on_telling_what_it_saw_last() {
    let (database, measured) = (TestDatabase::new(), Measured::new());
    let is_stuck = Released(Arc::default());
    let (is_over, over) = std::sync::mpsc::channel::<()>();
    let runtime = tokio::runtime::Handle::current();
    // A host does other things too. Else no thread but the blocked one might look after the timers.
    std::thread::spawn(move || {
        let step = Duration::from_millis(20);
        while over.recv_timeout(step) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            runtime.spawn(async {});
        }
    });
    let stuck = is_stuck.0.clone();
    let publisher = publisher_fn(move |_: OwnedMessage| {
        // Blocks its thread: no timeout gets it out of there.
        while stuck.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::future::ready(Ok(()))
    });
    let relay = Relay::builder(database.relay_pool().await).publisher(publisher).options(quick());
    let relay = metrics::with_local_recorder(&measured.recorder, || relay.spawn()).unwrap();
    measured.tells("outbox_events_pending", 0.0).await;
    let progress = "outbox_relay_last_progress_timestamp_seconds";
    is_stuck.0.store(true, Ordering::SeqCst);
    database.insert("a");
    measured.tells("outbox_events_pending", f64::NAN).await;
    measured.tells("outbox_oldest_pending_seconds", f64::NAN).await;
    let then = measured.value(progress).unwrap();
    // Others see what waits: it is the database that tells, not this relay.
    let overview = admin::overview(&mut database.connect().await).await.unwrap();
    assert_eq!(overview.subscriptions[0].pending, Events::Exactly(1));
    assert!(overview.subscriptions[0].oldest_pending_at.is_some());
    assert!(measured.value(progress).unwrap().total_cmp(&then).is_eq(), "it made no progress");
    is_stuck.0.store(false, Ordering::SeqCst);
    measured.tells("outbox_events_pending", 0.0).await;
    relay.shutdown().await;
    drop(is_over);
}
