//! [`TestDatabase::relay`]: a relay that does everything sooner than one in production.

use std::time::Duration;

use outbox_diesel::publish::Publisher;
use outbox_diesel::{Relay, RelayHandle, RelayOptions, RetryOptions};

use crate::TestDatabase;

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
        // Another test may have been first.
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_test_writer()
            .try_init()
            .ok();
        Relay::builder(self.pool(1).await)
            .publisher(publisher)
            .options(options)
            .spawn()
            .expect("options that fit together")
    }
}
