//! Upkeep: partitions ahead of the sequence, retention behind the cursors. What one duty fails at
//! stops neither the others nor delivery.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::worker::{Worker, chain};
use crate::partition::{self, Held, MissingRights, Surplus};
use crate::publish::Publisher;
use crate::session::{Session, SessionError};

/// How often partitions are looked after.
pub(super) const UPKEEP: Duration = Duration::from_secs(5);
/// And how much more rarely by a relay that sleeps.
pub(super) const UPKEEP_ASLEEP: u32 = 6;
/// How often retention is looked after.
const RETENTION: Duration = Duration::from_secs(60);
/// How often a trouble that stays is named again.
const REMINDER: Duration = Duration::from_secs(600);
/// Steps of one kind in a round, at most.
const STEPS: usize = 8;
/// How long a round may delete rows: delivery waits meanwhile.
const DELETING: Duration = Duration::from_millis(200);

/// What lives between two rounds.
#[derive(Debug, Default)]
pub(super) struct Upkeep {
    /// When retention last had nothing left to do.
    retained: Option<Instant>,
    troubles: Troubles,
}

/// When each duty's trouble was last named.
#[derive(Debug, Default)]
struct Troubles(BTreeMap<&'static str, Instant>);

impl Upkeep {
    /// What a look for the metrics returned, if it did not fail; as with any other duty.
    #[cfg(feature = "metrics")]
    pub(super) fn note<T>(
        &mut self,
        duty: &'static str,
        done: Result<T, SessionError>,
    ) -> Result<Option<T>, SessionError> {
        self.troubles.note(duty, done)
    }
}

impl<P: Publisher> Worker<P> {
    /// One round.
    ///
    /// # Errors
    /// Only if the connection can't be used any more.
    pub(super) async fn keep_up(&mut self, session: &mut Session) -> Result<(), SessionError> {
        let retention = self.options.retention;
        let Upkeep { retained, troubles } = &mut self.upkeep;
        let rights = partition::missing_rights(session).await;
        let Some(missing) = troubles.note("looking at its rights", rights)? else { return Ok(()) };
        troubles.name_missing(&missing);
        if missing.allow("keep_partitions_ahead") {
            keep_ahead(session, troubles).await?;
        }
        if missing.allow("drop_retired_partition") {
            let dropped = partition::drop_retired(session).await;
            if let Some(Some(leaf)) = troubles.note("dropping an emptied partition", dropped)? {
                info!(leaf, "dropped a partition");
            }
        }
        if missing.allow("delete_ticks") {
            let deleted = partition::delete(session, Surplus::Ticks, retention).await;
            troubles.note("deleting old ticks", deleted)?;
        }
        if retained.is_none_or(|last| last.elapsed() >= RETENTION) {
            let mut is_done = true;
            if missing.allow("retire_partition") {
                is_done &= retire(session, troubles, retention).await?;
            }
            if is_done && missing.allow("passed_seq") {
                let held = partition::held(session, retention).await;
                if let Some(held) = troubles.note("looking for held partitions", held)? {
                    troubles.name_held(held.as_ref());
                }
            }
            let until = Instant::now() + DELETING;
            if missing.allow("purge_default_partition") {
                let surplus = (Surplus::DefaultPartition, retention);
                is_done &= delete(session, troubles, surplus, until).await?;
            }
            if missing.allow("delete_dedup_keys") {
                let surplus = (Surplus::DedupKeys, retention);
                is_done &= delete(session, troubles, surplus, until).await?;
            }
            if missing.allow("delete_records") {
                let surplus = (Surplus::Records, retention);
                is_done &= delete(session, troubles, surplus, until).await?;
            }
            if let Some(age) = self.options.purge_after
                && missing.allow("purge_events")
            {
                is_done &= delete(session, troubles, (Surplus::Events, age), until).await?;
            }
            // What is left goes in the next round.
            *retained = is_done.then(Instant::now);
        }
        Ok(())
    }
}

async fn keep_ahead(session: &mut Session, troubles: &mut Troubles) -> Result<(), SessionError> {
    let mut made = 0;
    for _ in 0..STEPS {
        let step = partition::keep_ahead(session).await;
        let Some(step) = troubles.note("asking for partitions", step)? else { break };
        made += step.made;
        // Of its own name: that the function answered is no success yet.
        let duty = "making partitions ahead of the sequence";
        match step.problem {
            Some(problem) => troubles.name(duty, &problem),
            None if step.made > 0 => troubles.resolve(duty),
            None => {}
        }
        if !step.again {
            break;
        }
    }
    if made > 0 {
        info!(made, "made partitions");
    }
    Ok(())
}

/// Empties partitions; true if none is left that may go.
async fn retire(
    session: &mut Session,
    troubles: &mut Troubles,
    retention: Duration,
) -> Result<bool, SessionError> {
    for _ in 0..STEPS {
        let retired = partition::retire(session, retention).await;
        match troubles.note("emptying an old partition", retired)? {
            Some(Some(leaf)) => info!(leaf, "emptied a partition: all of it was delivered"),
            Some(None) | None => return Ok(true),
        }
    }
    Ok(false)
}

/// Deletes rows until the time is up; true if none is left.
async fn delete(
    session: &mut Session,
    troubles: &mut Troubles,
    (surplus, age): (Surplus, Duration),
    until: Instant,
) -> Result<bool, SessionError> {
    let duty = match surplus {
        Surplus::Ticks => "deleting old ticks",
        Surplus::DedupKeys => "deleting old dedup keys",
        Surplus::Records => "deleting old records",
        Surplus::DefaultPartition => "deleting old events of the default partition",
        Surplus::Events => "purging old events",
    };
    while Instant::now() < until {
        let deleted = partition::delete(session, surplus, age).await;
        if troubles.note(duty, deleted)?.unwrap_or(0) == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Troubles {
    /// What the duty returned, if it did not fail.
    ///
    /// # Errors
    /// A statement that is still under way: its connection is of no use.
    fn note<T>(
        &mut self,
        duty: &'static str,
        done: Result<T, SessionError>,
    ) -> Result<Option<T>, SessionError> {
        match done {
            Ok(value) => {
                self.resolve(duty);
                Ok(Some(value))
            }
            Err(error @ SessionError::Query(_)) => {
                self.name(duty, &chain(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Once, and again after a while if it stays.
    fn name(&mut self, duty: &'static str, cause: &str) {
        if self.is_news(duty) {
            warn!(duty, cause, "upkeep failed and will be tried again; delivery goes on");
        }
    }

    fn resolve(&mut self, duty: &'static str) {
        self.0.remove(duty);
    }

    fn name_missing(&mut self, missing: &MissingRights) {
        let duty = "rights";
        match missing.remedy() {
            None => self.resolve(duty),
            Some(remedy) if self.is_news(duty) => {
                warn!(
                    remedy,
                    "this role lacks rights for upkeep; delivery goes on, but somebody must make and drop partitions"
                );
            }
            Some(_) => {}
        }
    }

    fn name_held(&mut self, held: Option<&Held>) {
        let duty = "retention";
        match held {
            None => self.resolve(duty),
            Some(Held { leaf, subscription, at }) if self.is_news(duty) => {
                warn!(leaf, subscription, %at, "a partition outlives the retention: this subscription stands here, or a transaction has been open since before it was full");
            }
            Some(_) => {}
        }
    }

    fn is_news(&mut self, duty: &'static str) -> bool {
        let is_news = self.0.get(duty).is_none_or(|last| last.elapsed() >= REMINDER);
        if is_news {
            self.0.insert(duty, Instant::now());
        }
        is_news
    }
}
