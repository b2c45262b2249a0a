//! How cost grows: the pace of a drain into Redis over one quantity at a time, as plots.

use std::fs;
use std::path::Path;

use diesel_async::{AsyncPgConnection, SimpleAsyncConnection as _};

use crate::drain::shared;
use crate::figure::median;
use crate::log::{Log, Shape};
use crate::plot::Plot;
use crate::{Bench, Outcome};

/// Writes the plots into the directory, and returns what refers to them.
pub(crate) async fn run(bench: &Bench, plots: &Path) -> Outcome<Vec<String>> {
    let base = bench.events / 2;
    let mut events = Plot::new("events", "events in the backlog");
    for of in [base / 4, base / 2, base, base * 2, base * 4] {
        let shape = Shape::of(of);
        events.push(shape.events, drain(bench, shape, 0).await?);
    }
    let mut partitions = Plot::new("partitions", "partitions of the log");
    for of in [1, 4, 16, 64, 256] {
        let shape = Shape { partitions: Some(of), ..Shape::of(base) };
        partitions.push(of, drain(bench, shape, 0).await?);
    }
    let mut aggregates = Plot::new("aggregates", "aggregates");
    for of in [1, 10, 100, 1_000, 10_000, 100_000] {
        let shape = Shape { events: base.max(of) / of * of, aggregates: of, ..Shape::of(base) };
        aggregates.push(of, drain(bench, shape, 0).await?);
    }
    let mut transactions = Plot::new("open_transactions", "open transactions that have emitted");
    for of in [0, 10, 50, 100] {
        transactions.push(of, drain(bench, Shape::of(base), of).await?);
    }
    let mut relays = Plot::new("relays", "relays on the same machine");
    for of in [1_u32, 2, 4, 8] {
        let mut rates = Vec::new();
        for _ in 0..bench.rounds {
            rates.push(shared(bench, Shape::of(base), of as usize).await?);
        }
        relays.push(of, median(rates));
    }
    fs::create_dir_all(plots)?;
    let mut lines = Vec::new();
    for plot in [events, partitions, aggregates, transactions, relays] {
        println!("{}", plot.to_row());
        let directory = plots.file_name().unwrap_or_default().to_string_lossy();
        lines.push(format!("![{}]({directory}/{}.svg)", plot.to_row(), plot.name()));
        fs::write(plots.join(format!("{}.svg", plot.name())), plot.to_svg())?;
    }
    Ok(lines)
}

/// Events per second, while so many transactions are open that have emitted.
async fn drain(bench: &Bench, shape: Shape, open: u32) -> Outcome<f64> {
    let mut log = Log::new(&bench.servers, shape);
    let mut transactions: Vec<AsyncPgConnection> = Vec::new();
    for _ in 0..open {
        let mut conn = log.postgres().await;
        conn.batch_execute(
            "BEGIN; INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
             VALUES ('never', 'never', 'never', 'never', '{}')",
        )
        .await?;
        transactions.push(conn);
    }
    let mut rates = Vec::new();
    for _ in 0..bench.rounds {
        rates.push(log.drain().await?.events_per_second);
    }
    Ok(median(rates))
}
