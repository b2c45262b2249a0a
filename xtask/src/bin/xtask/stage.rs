//! Stages: named steps whose time is printed.

use std::time::Instant;

/// Runs one stage and prints how long it took.
pub(crate) fn run<T>(name: &str, stage: impl FnOnce() -> T) -> T {
    eprintln!("── {name}");
    let start = Instant::now();
    let outcome = stage();
    eprintln!("── {name}: {:.1} s", start.elapsed().as_secs_f64());
    outcome
}
