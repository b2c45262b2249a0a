//! How fast a backlog goes out, and what that costs.

use std::time::Instant;

use diesel_async::SimpleAsyncConnection as _;
use outbox_diesel::subscription::Start;

use crate::figure::{Figure, Goal, Round};
use crate::judge::Judge;
use crate::log::{Drained, Log, Shape, forget, judge, stream_of, wait_for};
use crate::side::{Side, TEXTBOOK_SCHEMA};
use crate::{Bench, Outcome, peers};

pub(crate) async fn run(bench: &mut Bench) -> Outcome {
    let shape = Shape::of(bench.events);
    let heavy = Shape { bytes: 2048, events: shape.events / 3, ..Shape::of(bench.events / 3) };
    let hot = Shape { aggregates: 1, ..shape };
    if bench.wants("drain_vs_raw_limit") || bench.wants("drain_vs_textbook") {
        against_limits(bench, shape, "").await?;
        against_limits(bench, heavy, "_2kb").await?;
        against_limits(bench, hot, "_hot_aggregate").await?;
    }
    peers::run(bench, shape).await?;
    if bench.wants("drain_pinned_vs_unpinned") {
        pinned(bench, shape).await?;
    }
    if bench.wants("drain_observed_vs_plain") {
        observed(bench, shape).await?;
    }
    if bench.wants("drain_64_partitions_vs_8") {
        partitions(bench, shape).await?;
    }
    if bench.wants("drain_2_relays_vs_1") {
        relays(bench, shape).await?;
    }
    let of_footprint = ["relay_rss_mb", "relay_rss_big_mb", "consume_wal_bytes_per_event"];
    if of_footprint.iter().any(|name| bench.wants(name)) {
        footprint(bench).await?;
    }
    Ok(())
}

/// Against the slower one of reading the rows and of adding the entries; the first shape also
/// against the textbook.
async fn against_limits(bench: &mut Bench, shape: Shape, suffix: &str) -> Outcome {
    let goal = if suffix.is_empty() { Goal::Ratio(0.75) } else { Goal::None };
    let mut limit = Figure::new(format!("drain_vs_raw_limit{suffix}"), "events/s", goal);
    let mut textbook = Figure::new("drain_vs_textbook", "events/s", Goal::Ratio(60.0));
    let mut log = Log::new(&bench.servers, shape);
    let events = f64::from(shape.events);
    for round in 0..bench.rounds {
        let (mut ours, mut slower) = (None, 0.0);
        for side in sides(round) {
            if side == 0 {
                ours = Some(log.drain().await?.events_per_second);
            } else {
                slower = events / select(&log).await?.max(xadd(&log).await?);
            }
        }
        let ours = ours.expect("both sides ran");
        limit.push(Round::of(ours, slower));
        if suffix.is_empty() {
            textbook.push(Round::of(ours, drain_textbook(&log, shape.events / 50).await?));
        }
    }
    bench.report(&limit);
    bench.report(&textbook);
    Ok(())
}

/// Both sides, in an order that alternates.
pub(crate) fn sides(round: u32) -> [u8; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

async fn seconds(arguments: &[&str]) -> Outcome<f64> {
    let mut side = Side::start(arguments).await?;
    side.go().await?;
    let seconds = side.done().await?.parse()?;
    side.end().await?;
    Ok(seconds)
}

async fn select(log: &Log) -> Outcome<f64> {
    seconds(&["select", &log.database.url()]).await
}

async fn xadd(log: &Log) -> Outcome<f64> {
    let stream = "bench-xadd";
    let seconds = seconds(&["xadd", &log.database.url(), &log.redis, stream]).await?;
    let mut conn = log.connect().await?;
    judge(&mut conn, stream, Judge::default(), log.shape).await?;
    forget(&mut conn, stream).await?;
    Ok(seconds)
}

/// The same events in a table of its own; fewer, for its pace does not depend on how many.
async fn drain_textbook(log: &Log, events: u32) -> Outcome<f64> {
    let aggregates = log.shape.aggregates;
    let events = events.max(aggregates) / aggregates * aggregates;
    let stream = "bench-textbook";
    log.database.sql(&format!(
        "DROP SCHEMA IF EXISTS textbook CASCADE; {TEXTBOOK_SCHEMA};
         INSERT INTO textbook.outbox (aggregate_type, aggregate_id, event_type, payload)
         SELECT aggregate_type, aggregate_id, event_type, payload FROM outbox.events ORDER BY seq LIMIT {events};
         ANALYZE textbook.outbox"
    ));
    let mut side = Side::start(&["textbook", &log.database.url(), &log.redis, stream]).await?;
    let started = Instant::now();
    side.go().await?;
    side.done().await?;
    let seconds = started.elapsed().as_secs_f64();
    side.end().await?;
    let mut conn = log.connect().await?;
    judge(&mut conn, stream, Judge::default(), Shape { events, ..log.shape }).await?;
    forget(&mut conn, stream).await?;
    Ok(f64::from(events) / seconds)
}

/// With a transaction that has written and stays open.
async fn pinned(bench: &mut Bench, shape: Shape) -> Outcome {
    let mut figure = Figure::new("drain_pinned_vs_unpinned", "events/s", Goal::Ratio(0.9));
    let mut log = Log::new(&bench.servers, shape);
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            let mut pin = log.postgres().await;
            if side == 0 {
                pin.batch_execute(
                    "BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE TEMPORARY TABLE pin ()",
                )
                .await?;
            }
            rates[usize::from(side)] = log.drain().await?.events_per_second;
            drop(pin);
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

/// With metrics that are recorded and rendered, and with a log at level info; and with neither.
async fn observed(bench: &mut Bench, shape: Shape) -> Outcome {
    let mut figure = Figure::new("drain_observed_vs_plain", "events/s", Goal::Ratio(0.97));
    let mut log = Log::new(&bench.servers, shape);
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            let drained = if side == 0 { log.drain_observed().await? } else { log.drain().await? };
            rates[usize::from(side)] = drained.events_per_second;
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

/// The same rows in many partitions and in few.
async fn partitions(bench: &mut Bench, shape: Shape) -> Outcome {
    let mut figure = Figure::new("drain_64_partitions_vs_8", "events/s", Goal::Ratio(0.9));
    let log =
        |partitions| Log::new(&bench.servers, Shape { partitions: Some(partitions), ..shape });
    let mut logs = [log(64), log(8)];
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            rates[usize::from(side)] = logs[usize::from(side)].drain().await?.events_per_second;
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

/// Two relays that share the shards, and one that has them all.
async fn relays(bench: &mut Bench, shape: Shape) -> Outcome {
    let mut figure = Figure::new("drain_2_relays_vs_1", "events/s", Goal::Ratio(0.9));
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            rates[usize::from(side)] = shared(bench, shape, 2 - usize::from(side)).await?;
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

/// Events per second from the commit of a backlog on, with relays that share the shards already.
pub(crate) async fn shared(bench: &Bench, shape: Shape, relays: usize) -> Outcome<f64> {
    let mut log = Log::new(&bench.servers, Shape { events: 0, ..shape });
    let subscription = log.subscribe(Start::Now, &[]).await?;
    let stream = stream_of(&subscription);
    let prefix = format!("{subscription}:");
    let mut sides = Vec::new();
    for _ in 0..relays {
        let mut side = log.relay(&subscription, &prefix).await?;
        side.go().await?;
        sides.push(side);
    }
    log.wait_for_shares(&subscription, relays).await;
    log.shape = shape;
    log.emit();
    let started = Instant::now();
    let mut conn = log.connect().await?;
    wait_for(&mut conn, &stream, u64::from(shape.events)).await?;
    let seconds = started.elapsed().as_secs_f64();
    for side in sides {
        side.end().await?;
    }
    judge(&mut conn, &stream, Judge::default(), shape).await?;
    forget(&mut conn, &stream).await?;
    Ok(f64::from(shape.events) / seconds)
}

/// Memory of the relay, and what consuming writes.
async fn footprint(bench: &mut Bench) -> Outcome {
    let mut memory = Figure::new("relay_rss_mb", "MiB", Goal::AtMost(64.0));
    let mut big = Figure::new("relay_rss_big_mb", "MiB", Goal::AtMost(128.0));
    let mut wal = Figure::new("consume_wal_bytes_per_event", "bytes", Goal::AtMost(5.0));
    let shape = Shape::of(1_000_000);
    let mut log = Log::new(&bench.servers, shape);
    for _ in 0..bench.rounds {
        let before = log.wal();
        let Drained { peak_memory, .. } = log.drain().await?;
        wal.push(Round::alone((log.wal() - before) / f64::from(shape.events)));
        memory.push(Round::alone(peak_memory));
    }
    bench.report(&memory);
    bench.report(&wal);
    let shape = Shape { events: 300, aggregates: 50, bytes: 1_048_000, partitions: None };
    drop(log);
    let mut log = Log::new(&bench.servers, shape);
    for _ in 0..bench.rounds {
        big.push(Round::alone(log.drain().await?.peak_memory));
    }
    bench.report(&big);
    Ok(())
}
