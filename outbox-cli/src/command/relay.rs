//! `outbox relay`.

mod retry;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use outbox_diesel::{Health, Order, RelayHandle, RelayOptions, RetryOptions, Wake};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracing_subscriber::EnvFilter;

use self::retry::{RetryFor, parse_order, parse_retry_for};
use crate::Global;
use crate::broker::{self, Publishing, Streams};
use crate::database::Target;
use crate::failure::Failure;
use crate::health::{self, describe};
use crate::screen::Screen;
use crate::times::parse_duration;

/// Runs a relay to Redis Streams until SIGINT or SIGTERM; then it finishes what is in flight and
/// hands its shards over. A second signal ends it at once.
///
/// At its start a database that cannot be reached, or has another schema, is an error. Later it waits
/// for the database as it does for Redis.
#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Which subscription it works for.
    #[arg(long, env = "OUTBOX_SUBSCRIPTION", default_value = "default", value_name = "NAME")]
    subscription: String,
    /// Redis: redis://user:password@host:port/, or rediss:// for TLS.
    #[arg(long, env = "REDIS_URL", hide_env_values = true, value_name = "URL")]
    redis_url: String,
    #[command(flatten)]
    streams: Streams,
    #[command(flatten)]
    publishing: Publishing,
    #[command(flatten)]
    options: Options,
    /// With --wake listen, and a database URL that leads through a transaction pooler: the server
    /// itself. One connection listens there.
    #[arg(long, env = "OUTBOX_DIRECT_URL", hide_env_values = true, value_name = "URL")]
    direct_url: Option<String>,
    /// Answer HTTP here: /healthz (restart me if it fails), /readyz (events are delivered) and /metrics
    /// (for Prometheus).
    #[arg(long, env = "OUTBOX_LISTEN", value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// What to log: error, warn, info, debug, or as tracing's filters say.
    #[arg(long, env = "RUST_LOG", default_value = "info", value_name = "FILTER")]
    log: String,
}

/// Settings of a relay, with the library's defaults.
#[derive(Debug, clap::Args)]
struct Options {
    /// How long a shard stays with a relay that is not heard of.
    #[arg(long, env = "OUTBOX_LEASE", default_value = "10s", value_parser = parse_duration, value_name = "DURATION")]
    lease: Duration,
    /// How often the lease is renewed.
    #[arg(long, env = "OUTBOX_HEARTBEAT", default_value = "3s", value_parser = parse_duration, value_name = "DURATION")]
    heartbeat: Duration,
    /// How long one call of Redis may take before its outcome counts as unknown.
    #[arg(long, env = "OUTBOX_PUBLISH_TIMEOUT", default_value = "5s", value_parser = parse_duration, value_name = "DURATION")]
    publish_timeout: Duration,
    /// How long one statement may take before the connection is given up.
    #[arg(long, env = "OUTBOX_DATABASE_TIMEOUT", default_value = "5s", value_parser = parse_duration, value_name = "DURATION")]
    database_timeout: Duration,
    /// How many events are read and published at once, at most.
    #[arg(long, env = "OUTBOX_BATCH_EVENTS", default_value_t = 1000, value_name = "EVENTS")]
    batch_events: u16,
    /// How many bytes of events are read and published at once.
    #[arg(long, env = "OUTBOX_BATCH_BYTES", default_value_t = 8 * 1024 * 1024, value_name = "BYTES")]
    batch_bytes: u32,
    /// The shortest pause between two polls while events come.
    #[arg(long, env = "OUTBOX_POLL_AWAKE", default_value = "1ms", value_parser = parse_duration, value_name = "DURATION")]
    poll_awake: Duration,
    /// The pause between two polls while nothing happens.
    #[arg(long, env = "OUTBOX_POLL_IDLE", default_value = "20ms", value_parser = parse_duration, value_name = "DURATION")]
    poll_idle: Duration,
    /// How the relay learns of events: `poll`, or `listen` to sleep until a commit wakes it. See the
    /// guide for what `listen` needs.
    #[arg(long, env = "OUTBOX_WAKE", default_value = "poll", value_parser = parse_wake, value_name = "WAKE")]
    wake: Wake,
    /// With --wake listen: how often a relay that sleeps looks all the same.
    #[arg(long, env = "OUTBOX_POLL_ASLEEP", default_value = "5s", value_parser = parse_duration, value_name = "DURATION")]
    poll_asleep: Duration,
    /// How often cursors are written, at most.
    #[arg(long, env = "OUTBOX_SETTLE_INTERVAL", default_value = "100ms", value_parser = parse_duration, value_name = "DURATION")]
    settle_interval: Duration,
    /// How long a shutdown may take.
    #[arg(long, env = "OUTBOX_SHUTDOWN_TIMEOUT", default_value = "10s", value_parser = parse_duration, value_name = "DURATION")]
    shutdown_timeout: Duration,
    /// The longest pause after the first rejection of an event; it doubles from there.
    #[arg(long, env = "OUTBOX_RETRY_BASE", default_value = "2s", value_parser = parse_duration, value_name = "DURATION")]
    retry_base: Duration,
    /// The longest pause at all.
    #[arg(long, env = "OUTBOX_RETRY_CAP", default_value = "5m", value_parser = parse_duration, value_name = "DURATION")]
    retry_cap: Duration,
    /// How often an event is tried before it is dead.
    #[arg(long, env = "OUTBOX_RETRY_ATTEMPTS", default_value_t = 10, value_name = "ATTEMPTS")]
    retry_attempts: u16,
    /// What later events of an aggregate do while an earlier one is not delivered: `hold` (wait, behind
    /// a dead one until somebody retries or discards it), `skip` (wait until it is dead) or
    /// `unordered` (never wait).
    #[arg(long, env = "OUTBOX_ORDER", default_value = "hold", value_parser = parse_order, value_name = "ORDER")]
    order: Order,
    /// Other retries for one event type: TYPE:attempts=3,base=1s,cap=1m,order=unordered. May be
    /// repeated; in the variable separated by semicolons.
    #[arg(long, env = "OUTBOX_RETRY_FOR", value_parser = parse_retry_for, value_delimiter = ';', value_name = "TYPE:SETTINGS")]
    retry_for: Vec<RetryFor>,
    /// How long delivered events stay, at least.
    #[arg(long, env = "OUTBOX_RETENTION", default_value = "7days", value_parser = parse_duration, value_name = "DURATION")]
    retention: Duration,
    /// Delete delivered events of this age one by one, before their partition goes.
    #[arg(long, env = "OUTBOX_PURGE_AFTER", value_parser = parse_duration, value_name = "DURATION")]
    purge_after: Option<Duration>,
}

impl Options {
    fn relay_options(&self) -> RelayOptions {
        let retry = RetryOptions::default()
            .base(self.retry_base)
            .cap(self.retry_cap)
            .attempts(self.retry_attempts)
            .order(self.order);
        let mut options = RelayOptions::default()
            .lease(self.lease)
            .heartbeat(self.heartbeat)
            .publish_timeout(self.publish_timeout)
            .database_timeout(self.database_timeout)
            .batch_events(self.batch_events)
            .batch_bytes(self.batch_bytes)
            .poll_awake(self.poll_awake)
            .poll_idle(self.poll_idle)
            .wake(self.wake)
            .poll_asleep(self.poll_asleep)
            .settle_interval(self.settle_interval)
            .shutdown_timeout(self.shutdown_timeout)
            .retry(retry.clone())
            .retention(self.retention);
        for own in &self.retry_for {
            options = options.retry_for(own.event_type.clone(), own.over(retry.clone()));
        }
        match self.purge_after {
            Some(age) => options.purge_after(age),
            None => options,
        }
    }
}

impl Relay {
    pub(crate) async fn run(&self, global: &Global, screen: &Screen) -> Result<ExitCode, Failure> {
        broker::choose_crypto_provider();
        start_log(&self.log, screen)?;
        let target = global.target()?;
        let publisher = self.streams.publisher(&self.redis_url, &self.publishing)?;
        let mut signals = Signals::listen()?;
        // A relay waits for a database that goes away. One that was never there is a mistake, and
        // whoever starts it should know at once.
        drop(target.open().await?);
        let listener =
            match self.listen {
                Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
                    Failure::new(format!("cannot listen on {address}: {error}"))
                })?),
                None => None,
            };
        // Before anything is counted.
        let metrics = match &listener {
            Some(_) => Some(health::record().map_err(|error| Failure::new(error.to_string()))?),
            None => None,
        };
        let mut relay = outbox_diesel::Relay::builder(target.pool().await?)
            .subscription(self.subscription.clone())
            .options(self.options.relay_options())
            .publisher(publisher);
        if let Some(url) = &self.direct_url {
            relay = relay.direct(Target::parse(url, false)?.manager());
        }
        let relay = relay.spawn().map_err(|error| Failure::usage(error.to_string()))?;
        info!(
            version = env!("CARGO_PKG_VERSION"),
            subscription = self.subscription,
            from = %target,
            to = broker::server(&self.redis_url),
            "the relay starts"
        );
        let (seen, health) = watch::channel(relay.health());
        let cancelled = CancellationToken::new();
        let server = listener.zip(metrics).map(|(listener, metrics)| {
            if let Ok(address) = listener.local_addr() {
                info!(%address, "answers /healthz, /readyz and /metrics");
            }
            tokio::spawn(health::serve(listener, health, metrics, cancelled.clone()))
        });

        watch_health(&relay, &seen, &mut signals).await;
        info!("stopping; a second signal ends it at once");
        seen.send_replace(Health::Stopping);
        tokio::select! {
            () = relay.shutdown() => {}
            () = signals.next() => {
                warn!("ended at once: what was in flight has an unknown outcome, and shards wait for their leases to end");
                return Ok(ExitCode::from(130));
            }
        }
        seen.send_replace(Health::Stopped);
        cancelled.cancel();
        if let Some(server) = server {
            // A client that keeps its connection open must not keep the process.
            tokio::time::timeout(Duration::from_secs(1), server).await.ok();
        }
        info!("stopped");
        Ok(ExitCode::SUCCESS)
    }
}

fn parse_wake(text: &str) -> Result<Wake, String> {
    match text {
        "poll" => Ok(Wake::Poll),
        "listen" => Ok(Wake::Listen),
        _ => Err("write poll or listen".to_owned()),
    }
}

/// Passes on what the relay says of itself, until a signal comes.
async fn watch_health(relay: &RelayHandle, seen: &watch::Sender<Health>, signals: &mut Signals) {
    let mut pace = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            () = signals.next() => return,
            _ = pace.tick() => {}
        }
        let health = relay.health();
        let told = describe(&health);
        if seen.send_if_modified(|last| {
            let is_news = *last != health;
            *last = health;
            is_news
        }) {
            info!(health = told, "the relay's health changed");
        }
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// To standard error: in colours on a terminal, and as JSON where that is asked for.
fn start_log(filter: &str, screen: &Screen) -> Result<(), Failure> {
    use std::io::IsTerminal as _;
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::usage(format!("--log {filter}: {error}"))
            .advice("write info, or outbox_diesel=debug")
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if screen.is_json() {
        log.json().init();
    } else {
        let in_colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        log.with_ansi(in_colours).with_target(false).init();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn without_options_the_relay_has_the_librarys_defaults() {
        let line = Line::parse_from(["relay"]);
        assert_eq!(line.options.relay_options(), RelayOptions::default());
    }

    #[test]
    fn every_option_has_a_variable() {
        use clap::CommandFactory as _;
        let command = crate::grammar();
        let relay = command.find_subcommand("relay").expect("it is there");
        let without: Vec<_> = relay
            .get_arguments()
            .filter(|argument| argument.get_env().is_none() && !argument.is_global_set())
            .map(|argument| argument.get_id().to_string())
            .collect();
        assert!(without.is_empty(), "{without:?}");
        assert!(Line::command().get_arguments().count() >= 15);
    }
}
