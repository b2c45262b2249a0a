//! [`TestDatabase::relay`]: a relay that does everything sooner than one in production.

use std::time::Duration;

use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::publish::{Publisher, RecordingPublisher};
use outbox_diesel::relay::Pool;
use outbox_diesel::{Relay, RelayHandle, RelayOptions, RetryOptions};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{TestDatabase, eventually};

/// How long tests wait for what should happen within milliseconds.
pub const SOON: Duration = Duration::from_secs(20);

const LEASE: Duration = Duration::from_secs(3);
const HEARTBEAT: Duration = Duration::from_millis(500);

/// The lease of [`quick`] relays.
#[must_use]
pub fn quick_lease() -> Duration {
    LEASE
}

/// The heartbeat of [`quick`] relays.
#[must_use]
pub fn quick_heartbeat() -> Duration {
    HEARTBEAT
}

/// A short lease, and short pauses.
#[must_use]
pub fn quick() -> RelayOptions {
    RelayOptions::default()
        .lease(LEASE)
        .heartbeat(HEARTBEAT)
        .publish_timeout(Duration::from_secs(1))
        .database_timeout(Duration::from_secs(2))
        .retry(RetryOptions::default().base(Duration::from_millis(20)))
}

/// With `RUST_LOG` set, what relays log goes next to the test that failed.
pub(crate) fn log() {
    // Another test may have been first.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init()
        .ok();
}

impl TestDatabase {
    /// A relay of the default subscription with [`quick`] options.
    pub async fn relay(&self, publisher: impl Publisher) -> RelayHandle {
        self.relay_with(publisher, quick()).await
    }

    /// A relay of the default subscription.
    pub async fn relay_with(
        &self,
        publisher: impl Publisher,
        options: RelayOptions,
    ) -> RelayHandle {
        log();
        Relay::builder(self.relay_pool().await)
            .publisher(publisher)
            .options(options)
            .spawn()
            .expect("options that fit together")
    }

    /// A relay of the default subscription that connects as this role.
    pub async fn relay_as(&self, role: &str, publisher: impl Publisher) -> RelayHandle {
        let pool = bb8::Pool::builder()
            .build(AsyncDieselConnectionManager::new(self.url_as(role)))
            .await
            .expect("a pool opens no connection before it is asked for one");
        Relay::builder(pool)
            .publisher(publisher)
            .options(quick())
            .spawn()
            .expect("options that fit together")
    }

    /// A pool whose connections can be told from the test's own.
    pub async fn relay_pool(&self) -> Pool {
        let url = format!("{}?application_name=relay", self.url());
        bb8::Pool::builder()
            .build(AsyncDieselConnectionManager::new(url))
            .await
            .expect("a pool opens no connection before it is asked for one")
    }
}

/// A relay that can crash.
#[derive(Debug)]
pub struct Crashable(JoinHandle<()>);

impl Crashable {
    /// Of this subscription.
    pub async fn start(
        database: &TestDatabase,
        subscription: &str,
        publisher: impl Publisher,
        options: RelayOptions,
    ) -> Self {
        let relay = Relay::builder(database.relay_pool().await)
            .publisher(publisher)
            .options(options)
            .subscription(subscription);
        Self(tokio::spawn(async move {
            relay.run(CancellationToken::new()).await.expect("options that fit together");
        }))
    }

    /// Ends it as a crash would, and its leases as time would.
    pub async fn crash(self, database: &TestDatabase) {
        self.0.abort();
        self.0.await.ok();
        // The server may still be running what it asked for.
        database.cut_relays();
        database.sql(
            "DELETE FROM outbox.relays; UPDATE outbox.cursors SET leased_until = clock_timestamp()",
        );
    }
}

/// The orders whose events the broker has, once there are as many, in order of arrival.
pub async fn orders(broker: &RecordingPublisher, count: usize) -> Vec<String> {
    eventually(SOON, async || {
        let sent = broker.delivered();
        (sent.len() >= count)
            .then(|| sent.iter().map(|sent| sent.message.aggregate_id().to_owned()).collect())
    })
    .await
}
