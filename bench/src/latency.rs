//! How long an event takes from its commit to its entry in Redis, and what delivering costs at a
//! steady rate.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use redis::AsyncCommands as _;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};

use crate::drain::sides;
use crate::figure::{Figure, Goal, Round, percentile};
use crate::load::{self, Committed, Saying};
use crate::log::{Log, Shape, forget};
use crate::side::Side;
use crate::{Bench, Outcome};

const PER_SECOND: u32 = 1000;
/// How long each steady load lasts.
const TIME: Duration = Duration::from_secs(4);
/// How many first events after idle a round has.
const FIRSTS: i64 = 50;

/// The subscription that the migration creates.
const SUBSCRIPTION: &str = "default";
const PREFIX: &str = "bench-latency:";
const STREAM: &str = "bench-latency:a";

pub(crate) async fn run(bench: &mut Bench) -> Outcome {
    at_a_steady_rate(bench).await?;
    // Longer than a relay takes to become idle, and than it takes to fall asleep.
    let idle = Duration::from_millis(120);
    let asleep = Duration::from_millis(500);
    for (name, most, pause, options) in [
        ("after_idle_poll_p99_ms", 35.0, idle, &[][..]),
        ("after_idle_listen_p99_ms", 30.0, asleep, &["--listen"]),
    ] {
        if !bench.wants(name) {
            continue;
        }
        let mut figure = Figure::new(name, "ms", Goal::AtMost(most));
        for _ in 0..bench.rounds {
            figure.push(Round::alone(after_idle(bench, pause, options).await?));
        }
        bench.report(&figure);
    }
    Ok(())
}

async fn at_a_steady_rate(bench: &mut Bench) -> Outcome {
    let goal = Goal::EitherAtMost { ratio: 3.0, ours: 5.0 };
    let mut p50 = Figure::new("latency_p50_vs_commit_p50", "ms", goal);
    let mut p99 = Figure::new("latency_p99_ms", "ms", Goal::AtMost(30.0));
    let mut ticks = Figure::new("ticks_6_relays_vs_1", "ticks/s", Goal::RatioAtMost(1.1));
    let mut wal = Figure::new("consume_wal_bytes_at_1000_per_s", "bytes", Goal::AtMost(150.0));
    let figures = [&p50, &p99, &ticks, &wal];
    if !figures.iter().any(|figure| bench.wants(&figure.name)) {
        return Ok(());
    }
    for round in 0..bench.rounds {
        // The difference is what consuming writes.
        let (mut alone, mut under) = (None, None);
        for side in sides(round) {
            if side == 0 {
                under = Some(steady(bench, 1).await?);
            } else {
                alone = Some(steady(bench, 0).await?);
            }
        }
        let (alone, mut under) = (alone.expect("both ran"), under.expect("both ran"));
        let median = percentile(&mut under.latencies, 0.5);
        p50.push(Round::of(median, percentile(&mut under.commits, 0.5)));
        p99.push(Round::alone(percentile(&mut under.latencies, 0.99)));
        wal.push(Round::alone(under.wal - alone.wal));
        let six = steady(bench, 6).await?;
        ticks.push(Round::of(six.ticks, under.ticks));
    }
    for figure in [&p50, &p99, &wal, &ticks] {
        bench.report(figure);
    }
    Ok(())
}

struct Steady {
    /// Milliseconds from commit to entry.
    latencies: Vec<f64>,
    /// Milliseconds of each COMMIT.
    commits: Vec<f64>,
    /// Bytes per event, of everybody.
    wal: f64,
    /// Per second.
    ticks: f64,
}

/// A steady load with so many relays.
async fn steady(bench: &Bench, relays: usize) -> Outcome<Steady> {
    let log = Log::new(&bench.servers, Shape::none());
    load::lay_out(&log.database);
    let sides = start(&log, relays, &[]).await?;
    let mut conn = log.connect().await?;
    forget(&mut conn, STREAM).await?;
    log.database.sql("CHECKPOINT");
    let taken = "SELECT coalesce(sum(n_tup_ins), 0)::bigint FROM pg_stat_user_tables
                 WHERE schemaname = 'outbox' AND relname = 'ticks'";
    let (wal, ticks) = (log.wal(), log.database.value::<i64>(taken));
    let watching = tokio::spawn(watch(log.connect().await?));
    let orders = load::steady(&log.database, PER_SECOND, TIME).await?;
    let arrivals = if relays == 0 {
        watching.abort();
        HashMap::new()
    } else {
        crate::log::wait_for(&mut conn, STREAM, count(&orders)).await?;
        tokio::time::timeout(Duration::from_secs(60), async {
            // Statistics are told once a second.
            tokio::time::sleep(Duration::from_millis(1500)).await;
            conn.xadd::<_, _, _, _, String>(STREAM, "*", &[("end", "")]).await?;
            watching.await?
        })
        .await??
    };
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    let (events, ticks) = (orders.len() as f64, (log.database.value::<i64>(taken) - ticks) as f64);
    let wal = (log.wal() - wal) / events;
    for side in sides {
        side.end().await?;
    }
    if relays > 0 && arrivals.len() != orders.len() {
        return Err(format!("{} of {} events arrived", arrivals.len(), orders.len()).into());
    }
    let latencies = orders
        .iter()
        .filter_map(|order| Some(arrivals.get(&order.id)?.saturating_duration_since(order.at)));
    let latencies = latencies.map(millis).collect();
    let commits = orders.iter().map(|order| millis(order.commit)).collect();
    Ok(Steady { latencies, commits, wal, ticks: ticks / TIME.as_secs_f64() })
}

fn count(orders: &[Committed]) -> u64 {
    u64::try_from(orders.len()).expect("a count")
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

async fn start(log: &Log, relays: usize, options: &[&str]) -> Outcome<Vec<Side>> {
    let mut sides = Vec::new();
    for _ in 0..relays {
        let mut side = log.relay_with(SUBSCRIPTION, PREFIX, options).await?;
        side.go().await?;
        sides.push(side);
    }
    if relays > 0 {
        log.wait_for_shares(SUBSCRIPTION, relays).await;
        log.wait_for_settle(SUBSCRIPTION).await;
    }
    Ok(sides)
}

/// When each order's event came. Ends at an entry that is none.
async fn watch(mut conn: MultiplexedConnection) -> Outcome<HashMap<i64, Instant>> {
    let options = StreamReadOptions::default().block(1000).count(1000);
    let mut last = "0".to_owned();
    let mut arrivals = HashMap::new();
    loop {
        let reply: Option<StreamReadReply> =
            conn.xread_options(&[STREAM], &[&last], &options).await?;
        let now = Instant::now();
        for entry in reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids) {
            let Some(id) = entry.get::<i64>("aggregate_id") else { return Ok(arrivals) };
            if arrivals.insert(id, now).is_some() {
                return Err(format!("order {id} arrived twice").into());
            }
            last = entry.id;
        }
    }
}

/// The 99th percentile, in milliseconds, of events that come alone, after a pause each.
async fn after_idle(bench: &Bench, pause: Duration, options: &[&str]) -> Outcome<f64> {
    let log = Log::new(&bench.servers, Shape::none());
    load::lay_out(&log.database);
    let sides = start(&log, 1, options).await?;
    let mut broker = log.connect().await?;
    forget(&mut broker, STREAM).await?;
    let mut conn = log.postgres().await;
    let mut latencies = Vec::new();
    for id in 1..=FIRSTS {
        // Not in step with the relay's polls.
        tokio::time::sleep(pause + Duration::from_micros(fastrand::u64(..40_000))).await;
        let mut reader = broker.clone();
        let reading = tokio::spawn(async move {
            let options = StreamReadOptions::default().block(30_000);
            let reply: Option<StreamReadReply> =
                reader.xread_options(&[STREAM], &["$"], &options).await?;
            Ok::<_, redis::RedisError>((reply.is_some(), Instant::now()))
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        let (_, committed) = load::order(&mut conn, id, Saying::Emit).await?;
        let (came, at) = reading.await??;
        if !came {
            return Err(format!("event {id} did not come").into());
        }
        latencies.push(millis(at.saturating_duration_since(committed)));
    }
    for side in sides {
        side.end().await?;
    }
    forget(&mut broker, STREAM).await?;
    Ok(percentile(&mut latencies, 0.99))
}
