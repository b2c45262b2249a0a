//! Metrics of a relay in the process: none is left as it was when the relay ends, however it does.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use outbox_diesel::publish::RecordingPublisher;
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
        eventually(SOON, async || {
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
