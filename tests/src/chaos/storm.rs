//! The storm: everything that can go wrong, under load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::report::Report;
use super::schedule::Schedule;
use super::stage::Stage;

/// Writers of every kind and this many relays, for so long, through the schedule of the seed, which
/// is printed first. The program is this package's `relay`.
///
/// # Panics
/// If a server can't be started, killed or started again.
pub async fn storm(program: &str, length: Duration, relays: usize, seed: u64) -> Report {
    let schedule = Schedule::random(seed, length, relays);
    eprintln!("seed {seed}, {relays} relays, {} s:\n{schedule}", length.as_secs());
    let stage = Arc::new(Stage::durable(program, relays).await);
    for (number, host) in stage.hosts.iter().enumerate() {
        match (number, host.clock_offset()) {
            (0, _) => {}
            (_, Some(offset)) => eprintln!("the clock of relay {number} is off by {offset} s"),
            (_, None) => eprintln!("SKIPPED: no libfaketime, the clock of relay {number} is right"),
        }
    }
    let writing = stage.scene.writers().seed(seed).start().await;
    let start = Instant::now();
    let (mut hurting, mut beside) = (JoinSet::new(), JoinSet::new());
    let (mut episode, mut late) = (0, Duration::ZERO);
    for step in schedule.steps {
        if step.episode != episode {
            episode = step.episode;
            all_ended(&mut hurting, seed).await;
            late = late.max((start.elapsed() + Schedule::rest()).saturating_sub(step.at));
        }
        if step.at + late > length {
            break;
        }
        tokio::time::sleep_until((start + step.at + late).into()).await;
        eprintln!("{:8.3} s: {step}", start.elapsed().as_secs_f64());
        let tasks = if step.trouble.hurts() { &mut hurting } else { &mut beside };
        let stage = Arc::clone(&stage);
        tasks.spawn(async move { stage.suffer(step).await });
    }
    tokio::time::sleep_until((start + length).into()).await;
    all_ended(&mut hurting, seed).await;
    all_ended(&mut beside, seed).await;
    let commits = writing.stop().await;
    stage.end(&commits).await
}

async fn all_ended(troubles: &mut JoinSet<()>, seed: u64) {
    while let Some(ended) = troubles.join_next().await {
        ended.unwrap_or_else(|panic| panic!("seed {seed}: {panic}"));
    }
}
