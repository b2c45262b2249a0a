//! [`RelayThread`]: a relay that can crash and stand still without its test.

use std::thread::JoinHandle;

use diesel::connection::CacheSize;
use diesel_async::pooled_connection::{AsyncDieselConnectionManager, ManagerConfig};
use diesel_async::{AsyncConnection as _, AsyncPgConnection};
use futures_util::FutureExt as _;
use outbox_diesel::publish::Publisher;
use outbox_diesel::{Relay, RelayOptions};
use tokio_util::sync::CancellationToken;

use crate::{MishapPublisher, Mishaps};

/// A relay on a thread and a runtime of its own: when a [`Mishap`](crate::Mishap) stops the thread,
/// its heartbeat stops too, as in a process that is stopped. Dropping the value crashes it.
#[derive(Debug)]
pub struct RelayThread {
    mishaps: Mishaps,
    cancelled: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl RelayThread {
    /// Starts a relay of the subscription on the database at the URL.
    ///
    /// # Panics
    /// If the operating system gives no thread.
    pub fn start(
        url: &str,
        subscription: &str,
        publisher: impl Publisher,
        options: RelayOptions,
    ) -> Self {
        crate::relays::log();
        let mishaps = Mishaps::default();
        let cancelled = CancellationToken::new();
        let publisher = MishapPublisher::new(publisher, mishaps.clone());
        let run = run(
            url.to_owned(),
            subscription.to_owned(),
            publisher,
            options,
            cancelled.clone(),
            mishaps.crash().clone(),
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let thread = std::thread::spawn(move || runtime.block_on(run));
        Self { mishaps, cancelled, thread: Some(thread) }
    }

    /// What is going to happen to it.
    #[must_use]
    pub fn mishaps(&self) -> &Mishaps {
        &self.mishaps
    }

    /// Whether it has crashed or stopped.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Kills it wherever it is.
    pub fn crash(&self) {
        self.mishaps.crash().cancel();
    }

    /// Stops it in order, without waiting.
    pub fn stop(&self) {
        self.cancelled.cancel();
    }
}

impl Drop for RelayThread {
    fn drop(&mut self) {
        self.crash();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("a relay does not panic");
            }
        }
    }
}

async fn run(
    url: String,
    subscription: String,
    publisher: impl Publisher,
    options: RelayOptions,
    cancelled: CancellationToken,
    crash: CancellationToken,
) {
    let pool = bb8::Pool::builder().max_size(1).build(pooler_proof(&url)).await;
    let relay = Relay::builder(pool.expect("a pool opens nothing yet"))
        .publisher(publisher)
        .options(options)
        .subscription(subscription);
    tokio::select! {
        ended = relay.run(cancelled) => ended.expect("options that fit together"),
        () = crash.cancelled() => {}
    }
}

/// Connections that keep no prepared statements: right behind a transaction pooler, and harmless
/// elsewhere.
fn pooler_proof(url: &str) -> AsyncDieselConnectionManager<AsyncPgConnection> {
    let mut config = ManagerConfig::default();
    config.custom_setup = Box::new(|url| {
        async {
            let mut conn = AsyncPgConnection::establish(url).await?;
            conn.set_prepared_statement_cache_size(CacheSize::Disabled);
            Ok(conn)
        }
        .boxed()
    });
    AsyncDieselConnectionManager::new_with_config(url, config)
}
