//! What can happen.

use std::time::Duration;

use outbox_tests::Mishap;
use proptest::prelude::*;

pub(crate) const SESSIONS: usize = 4;
pub(crate) const AGGREGATES: usize = 5;
/// One whose events pass a dead one; they die soon.
pub(crate) const SKIPPING: usize = AGGREGATES - 2;
pub(crate) const SKIPPING_TYPE: &str = "account.noted";
/// One whose events wait for none: they arrive once each, in any order.
pub(crate) const UNORDERED: usize = AGGREGATES - 1;
pub(crate) const UNORDERED_TYPE: &str = "account.viewed";
pub(crate) const TOPICS: [&str; 2] = ["a", "b"];
/// Two of one subscription, one of another.
pub(crate) const RELAYS: [&str; 3] = ["default", "default", "copy"];
/// Longer than a lease.
const STALL: Duration = Duration::from_millis(1_300);

/// One step of a schedule. What makes no sense where it comes is passed over.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Begin {
        session: usize,
    },
    Emit {
        session: usize,
        aggregate: usize,
        topic: usize,
    },
    Savepoint {
        session: usize,
    },
    RollBackToSavepoint {
        session: usize,
    },
    Commit {
        session: usize,
    },
    RollBack {
        session: usize,
    },
    Prepare {
        session: usize,
    },
    EndPrepared {
        session: usize,
        commits: bool,
    },
    Tick,
    Mishap {
        relay: usize,
        mishap: Mishap,
    },
    Crash {
        relay: usize,
    },
    /// The database's clock jumps, say: every lease seems over.
    LeasesEnd,
    Reject {
        odd: bool,
    },
    Accept,
    /// An operator has everything that is dead tried again.
    RetryDead,
    /// The relays get some time.
    Wait {
        time: Duration,
    },
    /// All that has committed by now must arrive, whatever else is open.
    Drain,
}

pub(crate) fn schedules() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 60..200)
}

fn step() -> impl Strategy<Value = Step> {
    let session = 0..SESSIONS;
    prop_oneof![
        6 => session.clone().prop_map(|session| Step::Begin { session }),
        50 => (session.clone(), 0..AGGREGATES, 0..TOPICS.len())
            .prop_map(|(session, aggregate, topic)| Step::Emit { session, aggregate, topic }),
        6 => session.clone().prop_map(|session| Step::Savepoint { session }),
        5 => session.clone().prop_map(|session| Step::RollBackToSavepoint { session }),
        28 => session.clone().prop_map(|session| Step::Commit { session }),
        4 => session.clone().prop_map(|session| Step::RollBack { session }),
        5 => session.clone().prop_map(|session| Step::Prepare { session }),
        7 => (session, prop::bool::weighted(0.8))
            .prop_map(|(session, commits)| Step::EndPrepared { session, commits }),
        8 => Just(Step::Tick),
        9 => (0..RELAYS.len(), mishap()).prop_map(|(relay, mishap)| Step::Mishap { relay, mishap }),
        2 => (0..RELAYS.len()).prop_map(|relay| Step::Crash { relay }),
        2 => Just(Step::LeasesEnd),
        6 => any::<bool>().prop_map(|odd| Step::Reject { odd }),
        3 => Just(Step::Accept),
        2 => Just(Step::RetryDead),
        10 => (1..80_u64).prop_map(|ms| Step::Wait { time: Duration::from_millis(ms) }),
        1 => Just(Step::Drain),
    ]
}

fn mishap() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        2 => Just(Mishap::CrashBefore),
        3 => Just(Mishap::CrashAfter),
        1 => Just(Mishap::StallBefore(STALL)),
        1 => Just(Mishap::StallAfter(STALL)),
        3 => Just(Mishap::Away),
        3 => Just(Mishap::LoseAnswer),
        1 => Just(Mishap::Hang),
    ]
}
