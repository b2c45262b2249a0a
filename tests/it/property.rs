//! Random schedules of transactions, ticks and mishaps against real relays, compared with a small
//! model: what commits arrives, once and in order per aggregate, whatever happens in between.
//!
//! `PROPTEST_CASES` sets how many schedules are tried.

mod broker;
mod model;
mod step;
mod world;

use proptest::test_runner::{Config, TestRunner};

use self::broker::Broker;
use self::world::World;

#[test]
fn any_schedule_ends_with_what_committed_in_order_and_once() {
    check(16, Broker::in_memory);
}

#[test]
fn any_schedule_ends_the_same_in_redis() {
    check(8, Broker::redis);
}

/// Runs schedules; a failure prints the shortest one that was found to fail.
fn check(cases: u32, broker: fn() -> Broker) {
    let cases =
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    // Each schedule takes seconds, and so does each step towards a shorter one.
    let max_shrink_iters = match Config::default().max_shrink_iters {
        u32::MAX => 40,
        wanted => wanted,
    };
    let config = Config { cases, max_shrink_iters, failure_persistence: None, ..Config::default() };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let outcome = TestRunner::new(config).run(&step::schedules(), |steps| {
        runtime.block_on(async {
            let mut world = World::new(broker()).await;
            for step in &steps {
                world.take(step).await;
            }
            world.end().await;
        });
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
