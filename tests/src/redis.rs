//! [`TestRedis`]: each test owns a prefix.

use std::env;
use std::sync::OnceLock;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Commands as _};
use xtask::redis::{Options, Redis};

const PATIENCE: Duration = Duration::from_secs(30);

/// A prefix on a shared Redis. Its keys are deleted when the value is dropped.
#[derive(Debug)]
pub struct TestRedis {
    url: String,
    client: Client,
    prefix: String,
}

impl TestRedis {
    /// A prefix that no other test has, on the shared server.
    #[must_use]
    pub fn new() -> Self {
        Self::on(shared_server())
    }

    /// The same on a server of the test's own, which it may kill.
    #[must_use]
    pub fn on(server: &str) -> Self {
        let client = Client::open(server).expect("a server's URL: redis://host:port");
        let prefix = format!("test-{}:", uuid::Uuid::new_v4().simple());
        Self { url: server.to_owned(), client, prefix }
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// What all keys of the test begin with: give it to the publisher, or to the topics.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A connection.
    pub async fn connect(&self) -> MultiplexedConnection {
        // On a busy machine a page of large entries takes longer than the default of half a second.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("Redis takes connections")
    }
}

impl Default for TestRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        // A server that the test has killed has no keys to delete.
        let Ok(mut conn) = self.client.get_connection() else { return };
        let keys: Vec<String> = conn
            .scan_match(format!("*{}*", self.prefix))
            .map(|keys| keys.filter_map(Result::ok).collect())
            .unwrap_or_default();
        if !keys.is_empty() {
            conn.del::<_, ()>(keys).ok();
        }
    }
}

/// The server of `REDIS_URL`, as under `cargo xtask test`, or else a private one that ends with this
/// process.
fn shared_server() -> &'static str {
    static URL: OnceLock<String> = OnceLock::new();
    static PRIVATE: OnceLock<Redis> = OnceLock::new();
    URL.get_or_init(|| {
        env::var("REDIS_URL").unwrap_or_else(|_| {
            let start = || Redis::start(Options::default()).unwrap_or_else(|why| panic!("{why}"));
            PRIVATE.get_or_init(start).url()
        })
    })
}
