//! Chaos, in small: `cargo xtask chaos` runs the same for longer.

use std::time::Duration;

use outbox_tests::chaos::{outage, storm};

const RELAY: &str = env!("CARGO_BIN_EXE_relay");

/// Random, unless `OUTBOX_SEED` says otherwise.
fn seed() -> u64 {
    let seed = std::env::var("OUTBOX_SEED").ok().and_then(|seed| seed.parse().ok());
    seed.unwrap_or_else(|| fastrand::u64(..1_000_000))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_in_which_everything_goes_wrong_loses_repeats_and_reorders_nothing() {
    let seed = seed();
    let mut report = storm(RELAY, Duration::from_secs(60), 3, seed).await;
    // The other tests run beside this one and take most of the processor.
    report.limit *= 2;
    println!("OUTBOX_SEED={seed}: {}: {report}", report.json());
    assert!(report.is_clean(), "OUTBOX_SEED={seed}: {}: {report}", report.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_under_load_burns_no_attempt_and_drains_in_seconds() {
    let seed = seed();
    let outage = outage(RELAY, Duration::from_secs(20), 2, seed).await;
    let mut report = outage.report;
    report.limit *= 2;
    assert!(report.is_clean(), "OUTBOX_SEED={seed}: {}: {report}", report.json());
    assert_eq!(outage.parked, 0, "OUTBOX_SEED={seed}");
}
