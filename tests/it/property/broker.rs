//! Where events go: memory, or Redis.

use std::time::Duration;

use outbox_diesel::publish::RecordingPublisher;
use outbox_diesel::publish::redis::{RedisPublisher, StreamNaming};
use outbox_diesel::{Order, RelayOptions, RetryOptions};
use outbox_tests::{RelayThread, TestRedis};
use redis::streams::StreamRangeReply;

use super::step::{AGGREGATES, SKIPPING, SKIPPING_TYPE, UNORDERED, UNORDERED_TYPE};

/// What arrived of each aggregate.
pub(crate) type Arrived = [Vec<i64>; AGGREGATES];

#[derive(Debug)]
pub(crate) enum Broker {
    /// Knows which subscription an event came from, and the order across topics.
    Memory(RecordingPublisher),
    /// One stream for both topics and both subscriptions.
    Redis(Box<TestRedis>),
}

impl Broker {
    pub(crate) fn in_memory() -> Self {
        Self::Memory(RecordingPublisher::default())
    }

    pub(crate) fn redis() -> Self {
        Self::Redis(Box::default())
    }

    pub(crate) fn relay(&self, url: &str, subscription: &str) -> RelayThread {
        match self {
            Self::Memory(broker) => {
                RelayThread::start(url, subscription, broker.clone(), options())
            }
            Self::Redis(redis) => {
                let publisher = RedisPublisher::connect_lazily(redis.url()).expect("a URL");
                let publisher =
                    publisher.streams(StreamNaming::Single(stream(redis))).stream_prefix("");
                RelayThread::start(url, subscription, publisher, options())
            }
        }
    }

    /// Rejects every second version of each aggregate; Redis rejects all.
    pub(crate) async fn reject(&self, odd: bool) {
        match self {
            Self::Memory(broker) => broker.reject(move |event| {
                let rejects = version(event.payload()) % 2 == i64::from(odd);
                rejects.then(|| "not now".to_owned())
            }),
            // The key holds something else for a while.
            Self::Redis(redis) => {
                call(redis, "if redis.call('TYPE', KEYS[1]).ok == 'string' then return 0 end
                    if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('RENAME', KEYS[1], KEYS[2]) end
                    redis.call('SET', KEYS[1], '') return 1").await;
            }
        }
    }

    pub(crate) async fn accept(&self) {
        match self {
            Self::Memory(broker) => broker.reject(|_| None),
            Self::Redis(redis) => {
                call(redis, "if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return 0 end
                    redis.call('DEL', KEYS[1])
                    if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], KEYS[1]) end
                    return 1").await;
            }
        }
    }

    /// Whether it can be told which subscription an event came from. Else there is no order to be
    /// seen where events may pass others.
    pub(crate) fn knows_subscriptions(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    /// What arrived of each subscription.
    pub(crate) async fn arrived(&self) -> [Arrived; 2] {
        match self {
            Self::Memory(broker) => {
                let mut arrived = <[Arrived; 2]>::default();
                for recorded in broker.delivered() {
                    let subscription = usize::from(recorded.subscription != "default");
                    let aggregate = recorded.message.aggregate_id();
                    note(&mut arrived[subscription], aggregate, recorded.message.payload());
                }
                arrived
            }
            Self::Redis(redis) => {
                let mut both = Arrived::default();
                let mut conn = redis.connect().await;
                let aside = aside(redis);
                for key in [stream(redis), aside] {
                    let page: Result<StreamRangeReply, _> = redis::cmd("XRANGE")
                        .arg(&key)
                        .arg("-")
                        .arg("+")
                        .query_async(&mut conn)
                        .await;
                    for entry in page.map(|page| page.ids).unwrap_or_default() {
                        let text = |field| entry.get::<String>(field).expect("in every entry");
                        note(&mut both, &text("aggregate_id"), &text("payload"));
                    }
                }
                let mut arrived = <[Arrived; 2]>::default();
                for (aggregate, versions) in both.iter().enumerate() {
                    let parts = match aggregate {
                        SKIPPING | UNORDERED => deal(versions),
                        _ => unravel(versions),
                    };
                    for (nth, part) in parts.into_iter().enumerate() {
                        arrived[nth][aggregate] = part;
                    }
                }
                arrived
            }
        }
    }
}

/// Everything at once, so that a schedule takes little time.
fn options() -> RelayOptions {
    let retry = RetryOptions::default()
        .attempts(u16::MAX)
        .base(Duration::from_millis(20))
        .cap(Duration::from_millis(100));
    RelayOptions::default()
        .lease(Duration::from_secs(1))
        .heartbeat(Duration::from_millis(150))
        .publish_timeout(Duration::from_millis(300))
        .database_timeout(Duration::from_millis(700))
        .batch_events(5)
        .retry(retry.clone())
        .retry_for(SKIPPING_TYPE, retry.clone().attempts(2).order(Order::Skip))
        .retry_for(UNORDERED_TYPE, retry.order(Order::Unordered))
}

fn stream(redis: &TestRedis) -> String {
    format!("{}{{all}}", redis.prefix())
}

fn aside(redis: &TestRedis) -> String {
    format!("{}aside", stream(redis))
}

async fn call(redis: &TestRedis, script: &str) {
    let script = redis::Script::new(script);
    let mut call = script.prepare_invoke();
    let done: redis::RedisResult<i64> =
        call.key(stream(redis)).key(aside(redis)).invoke_async(&mut redis.connect().await).await;
    done.expect("Redis runs the script");
}

fn note(arrived: &mut Arrived, aggregate: &str, payload: &str) {
    let aggregate: usize = aggregate.parse().expect("a number");
    arrived[aggregate].push(version(payload));
}

fn version(payload: &str) -> i64 {
    let payload: serde_json::Value = serde_json::from_str(payload).expect("JSON");
    payload["v"].as_i64().expect("a version")
}

/// Takes apart two interleaved sequences that both count up from 1. What belongs to neither goes to
/// the first, for the model to complain of.
fn unravel(versions: &[i64]) -> [Vec<i64>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for version in versions {
        let is_next = |part: &Vec<i64>| part.last().map_or(1, |last| last + 1) == *version;
        let nth = usize::from(!is_next(&parts[0]) && is_next(&parts[1]));
        parts[nth].push(*version);
    }
    parts
}

/// Each version first to one, then to the other. A third one goes to the first, for the model to
/// complain of.
fn deal(versions: &[i64]) -> [Vec<i64>; 2] {
    let mut parts = [Vec::new(), Vec::new()];
    for version in versions {
        let nth = usize::from(parts[0].contains(version) && !parts[1].contains(version));
        parts[nth].push(*version);
    }
    parts
}
