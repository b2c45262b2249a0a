//! A relay on its own: `relay <database url> <redis url> <stream prefix>`. Ends in order when its
//! standard input does. `RELAY_OPTIONS=default` takes the options of production, `forgetful` keeps
//! nothing; else the tests' quick ones. `RELAY_SCRIPTS=none` publishes without scripts. The process ends
//! at once when it is to publish an event of the aggregate `RELAY_DIES_AT`.

use std::io::Read as _;

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::publish::{Batch, Contact, Publisher, Receipt, Unavailable};
use outbox_diesel::{Relay, RelayOptions};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, redis, prefix] = arguments.as_slice() else {
        panic!("relay <database url> <redis url> <stream prefix>");
    };
    let cancelled = CancellationToken::new();
    let at_end = cancelled.clone();
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        at_end.cancel();
    });
    let options = match std::env::var("RELAY_OPTIONS").as_deref() {
        Ok("default") => RelayOptions::default(),
        // Keeps nothing longer than it must.
        Ok("forgetful") => outbox_tests::quick().retention(std::time::Duration::ZERO),
        _ => outbox_tests::quick(),
    };
    let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(database);
    let pool = bb8::Pool::builder().max_size(1).build(manager).await.expect("a pool");
    let mut publisher = RedisPublisher::connect_lazily(redis.as_str()).expect("a Redis URL");
    if std::env::var("RELAY_SCRIPTS").as_deref() == Ok("none") {
        publisher = publisher.without_scripts();
    }
    let publisher = Deadly {
        publisher: publisher.stream_prefix(prefix),
        aggregate: std::env::var("RELAY_DIES_AT").ok(),
    };
    Relay::builder(pool)
        .publisher(publisher)
        .options(options)
        .run(cancelled)
        .await
        .expect("options that fit together");
}

/// A publisher that takes its process along.
struct Deadly {
    publisher: RedisPublisher,
    aggregate: Option<String>,
}

impl Publisher for Deadly {
    async fn contact(&mut self, batch: &Batch<'_>) -> Result<Vec<Contact>, Unavailable> {
        self.publisher.contact(batch).await
    }

    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        let deadly = self.aggregate.as_deref();
        if batch.messages().iter().any(|message| Some(message.aggregate_id()) == deadly) {
            // Neither unwinds nor runs any destructor.
            std::process::abort();
        }
        self.publisher.publish(batch).await
    }
}
