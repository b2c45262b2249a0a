//! What an emit costs the transaction that pays for it.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use diesel_async::AsyncConnection as _;
use futures_util::SinkExt as _;
use outbox_diesel::subscription::Start;
use outbox_diesel::{AsyncEmit as _, EmitError};

use crate::drain::sides;
use crate::figure::{Figure, Goal, Round};
use crate::load::{OrderPlaced, Saying, full, lay_out};
use crate::log::{Log, Shape};
use crate::side::Side;
use crate::{Bench, Outcome};

/// How long each side of a round runs.
const TIME: Duration = Duration::from_secs(2);

pub(crate) async fn run(bench: &mut Bench) -> Outcome {
    if bench.wants("emit_vs_textbook_insert") {
        against_textbook(bench).await?;
    }
    // The relay has nothing to deliver: none of the topics is for it.
    under_relay(bench, "emit_under_relay_vs_alone", &["other"], Goal::Ratio(0.97)).await?;
    // For comparison: the relay delivers all of it, at the same time and on the same machine.
    under_relay(bench, "emit_under_delivering_relay_vs_alone", &[], Goal::None).await?;
    if bench.wants("emit_listen_awake_vs_poll") {
        under_listener(bench).await?;
    }
    if bench.wants("emit_all_vs_copy") {
        against_copy(bench).await?;
    }
    Ok(())
}

async fn against_textbook(bench: &mut Bench) -> Outcome {
    let mut figure = Figure::new("emit_vs_textbook_insert", "transactions/s", Goal::Ratio(0.9));
    let log = Log::new(&bench.servers, Shape::none());
    lay_out(&log.database);
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            let saying = if side == 0 { Saying::Emit } else { Saying::Insert };
            rates[usize::from(side)] = full(&log.database, saying, TIME).await?;
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

async fn under_relay(bench: &mut Bench, name: &str, topics: &[&str], goal: Goal) -> Outcome {
    if !bench.wants(name) {
        return Ok(());
    }
    let mut figure = Figure::new(name, "transactions/s", goal);
    let mut log = Log::new(&bench.servers, Shape::none());
    lay_out(&log.database);
    let subscription = log.subscribe(Start::Now, topics).await?;
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            let mut relay = None;
            if side == 0 {
                relay = Some(counting(&log, &subscription, &[]).await?);
            }
            rates[usize::from(side)] = full(&log.database, Saying::Emit, TIME).await?;
            if let Some(relay) = relay {
                relay.end().await?;
            }
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

/// A relay that gets this subscription and only counts.
async fn counting(log: &Log, subscription: &str, options: &[&str]) -> Outcome<Side> {
    let (url, never) = (log.database.url(), u64::MAX.to_string());
    let arguments = ["counting", &url, subscription, &never];
    let mut side = Side::start(&[&arguments, options].concat()).await?;
    side.go().await?;
    log.wait_for_shares(subscription, 1).await;
    log.wait_for_settle(subscription).await;
    Ok(side)
}

/// With the triggers of a relay that is to be woken, and awake, against one that polls. Neither has
/// anything to deliver.
async fn under_listener(bench: &mut Bench) -> Outcome {
    let mut figure = Figure::new("emit_listen_awake_vs_poll", "transactions/s", Goal::Ratio(0.95));
    let mut logs = Vec::new();
    for options in [&["--listen"][..], &[]] {
        let mut log = Log::new(&bench.servers, Shape::none());
        lay_out(&log.database);
        let subscription = log.subscribe(Start::Now, &["other"]).await?;
        logs.push((log, subscription, options));
    }
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            let (log, subscription, options) = &logs[usize::from(side)];
            let relay = counting(log, subscription, options).await?;
            if side == 0 {
                wait_for_triggers(log).await?;
            }
            rates[usize::from(side)] = full(&log.database, Saying::Emit, TIME).await?;
            relay.end().await?;
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

async fn wait_for_triggers(log: &Log) -> Outcome {
    let until = Instant::now() + Duration::from_secs(10);
    while !log.database.value::<bool>("SELECT outbox.wake_is_installed()") {
        if Instant::now() > until {
            return Err("the relay that is to be woken has installed no triggers".into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Rows per transaction.
const SLICE: i64 = 1000;

async fn against_copy(bench: &mut Bench) -> Outcome {
    let mut figure = Figure::new("emit_all_vs_copy", "rows/s", Goal::Ratio(0.8));
    let log = Log::new(&bench.servers, Shape::none());
    for round in 0..bench.rounds {
        let mut rates = [0.0; 2];
        for side in sides(round) {
            let before = log.database.value::<i64>("SELECT count(*) FROM outbox.events");
            let started = Instant::now();
            let rows = if side == 0 { emit_all(&log).await? } else { copy(&log).await? };
            let seconds = started.elapsed().as_secs_f64();
            let after = log.database.value::<i64>("SELECT count(*) FROM outbox.events");
            if after - before != rows {
                return Err(format!("{rows} rows became {}", after - before).into());
            }
            #[expect(clippy::cast_precision_loss, reason = "a few hundred thousand")]
            let rows = rows as f64;
            rates[usize::from(side)] = rows / seconds;
        }
        figure.push(Round::of(rates[0], rates[1]));
    }
    bench.report(&figure);
    Ok(())
}

async fn emit_all(log: &Log) -> Outcome<i64> {
    let mut conn = log.postgres().await;
    let started = Instant::now();
    let mut rows = 0;
    while started.elapsed() < TIME {
        let events: Vec<OrderPlaced> = (rows..rows + SLICE).map(OrderPlaced::new).collect();
        conn.transaction::<_, EmitError, _>(async |conn| conn.emit_all(&events).await).await?;
        rows += SLICE;
    }
    Ok(rows)
}

const COPY: &str = "\
COPY outbox.events (id, topic, aggregate_type, aggregate_id, event_type, event_version, payload, headers) FROM STDIN";

async fn copy(log: &Log) -> Outcome<i64> {
    let (client, connection) =
        tokio_postgres::connect(&log.database.url(), tokio_postgres::NoTls).await?;
    let connection = tokio::spawn(connection);
    let started = Instant::now();
    let mut rows = 0;
    while started.elapsed() < TIME {
        let events: Vec<OrderPlaced> = (rows..rows + SLICE).map(OrderPlaced::new).collect();
        let mut text = String::new();
        for event in &events {
            let payload = serde_json::to_string(event)?;
            let (id, order) = (uuid::Uuid::now_v7(), event.id);
            // Nothing in these payloads needs to be escaped.
            writeln!(text, "{id}\ta\torder\t{order}\torder.placed\t1\t{payload}\t{{}}")?;
        }
        let mut sink = Box::pin(client.copy_in(COPY).await?);
        sink.send(std::io::Cursor::new(text.into_bytes())).await?;
        sink.close().await?;
        rows += SLICE;
    }
    drop(client);
    connection.await??;
    Ok(rows)
}
