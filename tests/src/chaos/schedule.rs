//! [`Schedule`]: what goes wrong, and when. The same seed gives the same schedule.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

use crate::quick_lease;

/// What goes wrong. A relay is named by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// SIGKILL, and a new process in the end.
    KillRelay(usize),
    /// SIGSTOP, past the lease or not, and SIGCONT.
    FreezeRelay(usize),
    /// One relay's connections to PostgreSQL are closed.
    CutPostgres(usize),
    /// One relay's connections to Redis are closed.
    CutRedis(usize),
    /// Nothing passes between one relay and PostgreSQL.
    SilencePostgres(usize),
    /// Nothing passes between one relay and Redis.
    SilenceRedis(usize),
    /// `pg_ctl stop --mode immediate`, and a start.
    CrashPostgres,
    /// SIGKILL, and a start from what its persistence kept.
    CrashRedis,
    /// SIGSTOP: connections stay open, nothing is answered.
    FreezeRedis,
    /// `CLIENT PAUSE`: it answers nobody, and says so to nobody.
    PauseRedis,
    /// A transaction that emits, and commits in the end.
    HoldTransaction,
    /// The same, prepared for most of its life.
    HoldPrepared,
    /// The sequence jumps to the next partition; older ones are emptied and dropped.
    RollPartition,
}

/// One trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The episode that it is a part of. One begins a pause after the one before has ended.
    pub episode: usize,
    /// When it begins, from the start of the run, unless an earlier episode takes longer than
    /// planned, as the start of a server may.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it is.
    pub trouble: Trouble,
}

/// Everything that goes wrong in a run, in order of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// In order of time.
    pub steps: Vec<Step>,
}

/// What one trouble of an episode happens to.
#[derive(Debug, Clone, Copy)]
enum Target {
    Relay(usize),
    Postgres,
    Redis,
}

impl Schedule {
    /// Episodes of up to three troubles at once, each to another target, until the time is up. One
    /// relay of several is spared in each. What is promised of stalls is promised for one episode, so
    /// the pause after it is as long as everything may take to be as before.
    #[must_use]
    pub fn random(seed: u64, length: Duration, relays: usize) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut steps = Vec::new();
        let mut at = Duration::from_secs(2);
        for episode in 0.. {
            if at >= length {
                break;
            }
            let mut end = at;
            for target in targets(&mut rng, relays) {
                let step = Step::random(&mut rng, episode, at, target);
                end = end.max(step.at + step.lasts);
                steps.push(step);
            }
            steps.extend(beside(&mut rng, episode, at));
            at = end + Self::rest() + millis(&mut rng, 500..2500);
        }
        steps.retain(|step| step.at < length);
        steps.sort_by_key(|step| (step.episode, step.at));
        Self { steps }
    }
}

impl Schedule {
    /// The shortest pause between two episodes.
    pub(super) fn rest() -> Duration {
        2 * quick_lease()
    }
}

/// One to three, different.
fn targets(rng: &mut Rng, relays: usize) -> Vec<Target> {
    let spared = rng.usize(..relays);
    let hurt = (0..relays).filter(|n| relays == 1 || *n != spared);
    let mut targets: Vec<_> = hurt.map(Target::Relay).collect();
    targets.extend([Target::Postgres, Target::Redis]);
    rng.shuffle(&mut targets);
    targets.truncate(rng.usize(1..=3));
    targets
}

/// What holds nobody up, and may overlap with anything.
fn beside(rng: &mut Rng, episode: usize, at: Duration) -> Option<Step> {
    let trouble = match rng.u8(..4) {
        0 => Trouble::HoldTransaction,
        1 => Trouble::HoldPrepared,
        2 => Trouble::RollPartition,
        _ => return None,
    };
    Some(Step { episode, at: at + millis(rng, 0..1000), lasts: millis(rng, 1000..20_000), trouble })
}

impl Step {
    fn random(rng: &mut Rng, episode: usize, at: Duration, target: Target) -> Self {
        let at = at + millis(rng, 0..1000);
        let lease = u64::try_from(quick_lease().as_millis()).expect("a few seconds");
        let (trouble, lasts) = match target {
            Target::Relay(n) => match rng.u8(..10) {
                0..3 => (Trouble::KillRelay(n), 100..lease + 1000),
                3..5 => (Trouble::FreezeRelay(n), lease + 500..lease + 1500),
                5 => (Trouble::FreezeRelay(n), 200..lease),
                6 => (Trouble::CutPostgres(n), 0..1),
                7 => (Trouble::CutRedis(n), 0..1),
                8 => (Trouble::SilencePostgres(n), 500..5000),
                _ => (Trouble::SilenceRedis(n), 500..5000),
            },
            Target::Postgres => (Trouble::CrashPostgres, 0..2000),
            Target::Redis => match rng.u8(..3) {
                0 => (Trouble::CrashRedis, 0..2500),
                1 => (Trouble::FreezeRedis, 300..4000),
                _ => (Trouble::PauseRedis, 300..3000),
            },
        };
        Self { episode, at, lasts: millis(rng, lasts), trouble }
    }
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, lasts, trouble, .. } = self;
        write!(f, "{:8.3} s  {trouble:?}, {} ms", at.as_secs_f64(), lasts.as_millis())
    }
}

impl Trouble {
    /// Whether it may hold events up. The others overlap with later episodes.
    pub(super) fn hurts(self) -> bool {
        !matches!(self, Self::HoldTransaction | Self::HoldPrepared | Self::RollPartition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_schedule_again_and_another_seed_another() {
        let minute = Duration::from_secs(60);
        assert_eq!(Schedule::random(7, minute, 3), Schedule::random(7, minute, 3));
        assert_ne!(Schedule::random(7, minute, 3), Schedule::random(8, minute, 3));
    }

    #[test]
    fn every_trouble_is_on_the_schedule_of_a_long_run() {
        let schedule = Schedule::random(1, Duration::from_secs(3600), 3);
        let kinds: std::collections::HashSet<_> =
            schedule.steps.iter().map(|step| std::mem::discriminant(&step.trouble)).collect();
        assert_eq!(kinds.len(), 13);
    }
}
