//! The outage: a broker that is away for long, while events keep coming.

use std::time::{Duration, Instant};

use super::report::Report;
use super::stage::Stage;
use crate::quick_lease;

/// How many events commit in a second of an outage.
pub const OUTAGE_RATE: u32 = 500;

/// A service's. Of few aggregates whose events alternate between topics, each next one waits for the
/// answer about the last: with 40 of them and three topics, ten minutes' worth takes 16 s.
const AGGREGATES: i64 = 1_000;

/// How long everything that has waited may take after the broker's return.
const DRAINED_WITHIN: Duration = Duration::from_secs(10);

/// What an outage came to.
#[derive(Debug)]
pub struct Outage {
    /// As of any run. The stall is the outage, and what it took to drain.
    pub report: Report,
    /// From the broker's return until what had waited was there.
    pub drained: Duration,
    /// Events that were put aside, dead or not, at any time that was looked at.
    pub parked: i64,
}

impl Outage {
    /// Whether all is as promised.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.report.is_clean() && self.parked == 0 && self.drained <= DRAINED_WITHIN
    }
}

/// Redis stops under [`OUTAGE_RATE`] events a second, and comes back after so long. The program is
/// this package's `relay`.
///
/// # Panics
/// If a server can't be started, killed or started again.
pub async fn outage(program: &str, length: Duration, relays: usize, seed: u64) -> Outage {
    eprintln!("seed {seed}, {relays} relays, Redis is away for {} s", length.as_secs());
    let stage = Stage::quick(program, relays).await;
    let writers = stage.scene.writers().seed(seed).count(8).per_second(OUTAGE_RATE);
    let writing = writers.aggregates(AGGREGATES).start().await;
    stage.scene.under_way().await;
    stage.with_redis(|redis| redis.stop().expect("it is ours")).await;
    let parked = "SELECT count(*) FROM outbox.parked";
    let away = Instant::now();
    let mut most_parked = 0;
    while away.elapsed() < length {
        tokio::time::sleep(Duration::from_millis(500)).await;
        most_parked = most_parked.max(stage.scene.database().value(parked));
    }
    stage.with_redis(|redis| redis.restart().expect("it starts again")).await;
    stage.note_outage(away);
    let back = Instant::now();
    // Each transaction of these writers is one event.
    let behind = usize::try_from(writing.committed()).expect("a count");
    while stage.scene.arrived().await < behind && back.elapsed() < 6 * DRAINED_WITHIN {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let drained = back.elapsed();
    most_parked = most_parked.max(stage.scene.database().value(parked));
    let commits = writing.stop().await;
    let mut report = stage.end(&commits).await;
    report.limit += DRAINED_WITHIN.saturating_sub(2 * quick_lease());
    report.remarks.push(format!("{behind} events: drained {drained:?} after its return"));
    Outage { report, drained, parked: most_parked }
}
