//! The open transaction: somebody forgot to commit. Two stages side by side, by turns.

use std::fmt;
use std::time::{Duration, Instant};

use diesel_async::{AsyncConnection as _, AsyncPgConnection, SimpleAsyncConnection as _};

use super::stage::{Stage, percentile};
use crate::{backlog, eventually};

/// Events of one burst, and of one second of steady load.
const BURST: u32 = 50_000;
const RATE: u32 = 500;
const AGGREGATES: u32 = 40;
const STEADY: Duration = Duration::from_secs(8);

/// What may be lost to an open transaction.
const THROUGHPUT: f64 = 0.9;
const DELAY: f64 = 1.2;

/// Medians of all rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// How many rounds each side had.
    pub rounds: usize,
    /// Without the open transaction.
    pub without: Figures,
    /// With it.
    pub with: Figures,
}

/// What one side came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Events per second while a burst drains.
    pub throughput: f64,
    /// From commit to Redis at a steady load, which 99 of 100 events do not exceed, in ms.
    pub p99_ms: f64,
}

impl Comparison {
    /// Throughput with it over throughput without it.
    #[must_use]
    pub fn throughput_ratio(&self) -> f64 {
        self.with.throughput / self.without.throughput
    }

    /// Delay with it over delay without it. Redis tells times in whole milliseconds.
    #[must_use]
    pub fn p99_ratio(&self) -> f64 {
        self.with.p99_ms / self.without.p99_ms.max(1.0)
    }

    /// Whether all is as promised.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.throughput_ratio() >= THROUGHPUT && self.p99_ratio() <= DELAY
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            r#"{{"rounds":{},"events_per_second":{:.0},"events_per_second_open":{:.0},"throughput_ratio":{:.3},"p99_ms":{},"p99_ms_open":{},"p99_ratio":{:.3}}}"#,
            self.rounds,
            self.without.throughput,
            self.with.throughput,
            self.throughput_ratio(),
            self.without.p99_ms,
            self.with.p99_ms,
            self.p99_ratio(),
        )
    }
}

/// Alternates between a stage of its own and one in whose database a transaction that has emitted
/// is idle from the beginning to the end. The program is this package's `relay`.
///
/// # Panics
/// If a server can't be started, or if anything was lost, repeated or out of order.
pub async fn open_transaction(
    program: &str,
    length: Duration,
    relays: usize,
    seed: u64,
) -> Comparison {
    eprintln!("seed {seed}, {relays} relays, {} s on either side by turns", length.as_secs());
    let stages = [Stage::quick(program, relays).await, Stage::quick(program, relays).await];
    let mut open = lay_out(&stages).await;
    let mut rounds = [Vec::new(), Vec::new()];
    let until = Instant::now() + length;
    // The first round of each finds everything cold.
    let mut is_warm = false;
    while Instant::now() < until || rounds[1].is_empty() {
        for (stage, rounds) in stages.iter().zip(&mut rounds) {
            let figures = round(stage, seed).await;
            if is_warm {
                rounds.push(figures);
            }
        }
        is_warm = true;
    }
    open.batch_execute("COMMIT").await.expect("the transaction is still open");
    for stage in &stages {
        stage.scene.all_arrived().await;
        stage.scene.verdict().await.assert_clean(seed);
    }
    let [without, with] = rounds.each_ref().map(|rounds| median(rounds));
    Comparison { rounds: rounds[0].len(), without, with }
}

/// Writers' tables on both, and the open transaction on the second.
async fn lay_out(stages: &[Stage; 2]) -> AsyncPgConnection {
    for stage in stages {
        stage.scene.writers().count(1).start().await.stop().await;
    }
    let url = stages[1].scene.database().url();
    let mut conn = AsyncPgConnection::establish(&url).await.expect("the database is up");
    conn.batch_execute(
        "BEGIN;
         INSERT INTO ledger VALUES (1000000, 1);
         INSERT INTO outbox.events (topic, aggregate_type, aggregate_id, event_type, payload)
         VALUES ('a', 'account', '1000000', 'account.changed', '{\"v\":1}')",
    )
    .await
    .expect("emits");
    conn
}

async fn round(stage: &Stage, seed: u64) -> Figures {
    let before = stage.scene.arrivals().await.len();
    let writing = stage.scene.writers().seed(seed).per_second(RATE).start().await;
    tokio::time::sleep(STEADY).await;
    let commits = writing.stop().await;
    let steady = before + commits.len();
    arrived(stage, steady).await;
    let delays = stage.scene.arrivals().await.delays(&commits);
    let p99_ms = percentile(&delays, 99).as_secs_f64() * 1000.0;
    // Its one transaction commits as it returns.
    backlog(stage.scene.database(), BURST, AGGREGATES, 64);
    let start = Instant::now();
    arrived(stage, steady + usize::try_from(BURST).expect("it fits")).await;
    Figures { throughput: f64::from(BURST) / start.elapsed().as_secs_f64(), p99_ms }
}

async fn arrived(stage: &Stage, count: usize) {
    eventually(Duration::from_secs(60), async || {
        (stage.scene.arrived().await >= count).then_some(())
    })
    .await;
}

fn median(rounds: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[figures.len() / 2]
    };
    Figures { throughput: of(|figures| figures.throughput), p99_ms: of(|figures| figures.p99_ms) }
}
