//! Our relay with the settings it has by default.

use std::sync::{Arc, Mutex};

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use outbox_diesel::Relay;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::publish::{Batch, Publisher, Receipt};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Input;
use crate::Outcome;
use crate::judge::Judge;

/// Where the events are.
#[derive(Debug, Clone, clap::Args)]
struct Source {
    database: String,
    subscription: String,
}

impl Source {
    async fn relay<P: Publisher>(&self, publisher: P) -> Outcome<Relay<P>> {
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&self.database);
        let pool = bb8::Pool::builder().max_size(1).build(manager).await?;
        Ok(Relay::builder(pool).publisher(publisher).subscription(&self.subscription))
    }
}

/// To Redis.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ToRedis {
    #[command(flatten)]
    source: Source,
    redis: String,
    prefix: String,
}

impl ToRedis {
    pub(super) async fn run(self) -> Outcome {
        let publisher = RedisPublisher::connect_lazily(self.redis)?.stream_prefix(self.prefix);
        let relay = self.source.relay(publisher).await?;
        run(relay).await
    }
}

/// To nowhere.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Counting {
    #[command(flatten)]
    source: Source,
    /// Done after these many.
    events: u64,
}

impl Counting {
    pub(super) async fn run(self) -> Outcome {
        let judge = Arc::new(Mutex::new(Judge::default()));
        let all = Arc::new(Notify::new());
        let publisher =
            Counter { judge: Arc::clone(&judge), events: self.events, all: Arc::clone(&all) };
        let relay = self.source.relay(publisher).await?;
        let report = async {
            all.notified().await;
            let verdict = judge.lock().expect("no panic while it is held").verdict(self.events);
            println!("done {}", verdict.err().unwrap_or_default());
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = run(relay) => ended,
            () = report => Ok(()),
        }
    }
}

async fn run<P: Publisher>(relay: Relay<P>) -> Outcome {
    let input = Input::wait_for_go().await?;
    let cancelled = CancellationToken::new();
    let (ended, ()) = tokio::join!(relay.run(cancelled.clone()), async {
        input.wait_for_end().await;
        cancelled.cancel();
    });
    Ok(ended?)
}

/// Takes every event.
struct Counter {
    judge: Arc<Mutex<Judge>>,
    events: u64,
    all: Arc<Notify>,
}

impl Publisher for Counter {
    async fn publish(&mut self, batch: &Batch<'_>) -> Receipt {
        let mut judge = self.judge.lock().expect("no panic while it is held");
        for message in batch.messages() {
            judge.see(message.aggregate_id(), message.payload());
        }
        if judge.events() >= self.events {
            self.all.notify_one();
        }
        Receipt::all_delivered(batch)
    }
}
