//! Our relay with the settings it has by default.

use std::fs::File;
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use diesel_async::AsyncPgConnection;
use diesel_async::pooled_connection::AsyncDieselConnectionManager;
use metrics_exporter_prometheus::PrometheusBuilder;
use outbox_diesel::publish::redis::RedisPublisher;
use outbox_diesel::publish::{Batch, Publisher, Receipt};
use outbox_diesel::{Relay, RelayOptions, Wake};
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
    /// Woken by what is emitted, instead of polling.
    #[arg(long)]
    listen: bool,
}

impl Source {
    async fn relay<P: Publisher>(&self, publisher: P) -> Outcome<Relay<P>> {
        let manager = AsyncDieselConnectionManager::<AsyncPgConnection>::new(&self.database);
        let pool = bb8::Pool::builder().max_size(1).build(manager).await?;
        let wake = if self.listen { Wake::Listen } else { Wake::Poll };
        let relay = Relay::builder(pool).publisher(publisher).subscription(&self.subscription);
        Ok(relay.options(RelayOptions::default().wake(wake)))
    }
}

/// To Redis.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ToRedis {
    #[command(flatten)]
    source: Source,
    redis: String,
    prefix: String,
    /// As a host that watches it: with a recorder of metrics, read once a second, and a log at level
    /// info. Both cost what they cost; nobody keeps what they tell.
    #[arg(long)]
    observed: bool,
}

impl ToRedis {
    pub(super) async fn run(self) -> Outcome {
        if self.observed {
            observe()?;
        }
        let publisher = RedisPublisher::connect_lazily(self.redis)?.stream_prefix(self.prefix);
        let relay = self.source.relay(publisher).await?;
        run(relay).await
    }
}

/// Seconds, as in `outbox relay`.
const BUCKETS: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0,
];

fn observe() -> Outcome {
    let log = Mutex::new(File::options().write(true).open("/dev/null")?);
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(log).try_init()?;
    let metrics = PrometheusBuilder::new().set_buckets(BUCKETS)?.install_recorder()?;
    tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_secs(1));
        loop {
            pace.tick().await;
            black_box(metrics.render());
        }
    });
    Ok(())
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
