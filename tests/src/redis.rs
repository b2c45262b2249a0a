//! [`TestRedis`]: each test owns a prefix.

use std::env;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, Commands as _};

/// A prefix on a shared Redis. Its keys are deleted when the value is dropped.
#[derive(Debug)]
pub struct TestRedis {
    client: Client,
    prefix: String,
}

impl TestRedis {
    /// A prefix that no other test has, on the server of `REDIS_URL`.
    #[must_use]
    pub fn new() -> Self {
        let url = env::var("REDIS_URL").expect(
            "REDIS_URL is not set: run the tests with `cargo xtask test`, which starts servers of \
             its own, or name a Redis server",
        );
        let client = Client::open(url).expect("REDIS_URL is a URL: redis://host:port");
        Self { client, prefix: format!("test-{}:", uuid::Uuid::new_v4().simple()) }
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> String {
        env::var("REDIS_URL").expect("checked in new")
    }

    /// What all keys of the test begin with: give it to the publisher, or to the topics.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A connection.
    pub async fn connect(&self) -> MultiplexedConnection {
        self.client.get_multiplexed_async_connection().await.expect("Redis takes connections")
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
