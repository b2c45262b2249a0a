//! The model: which versions of which aggregate have committed.

use std::collections::HashSet;

use super::step::{AGGREGATES, SESSIONS, SKIPPING, UNORDERED};

#[derive(Debug, Clone, Default)]
pub(crate) enum Session {
    #[default]
    Idle,
    Open {
        changed: Vec<usize>,
        savepoint: Option<usize>,
    },
    Prepared {
        changed: Vec<usize>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) sessions: [Session; SESSIONS],
    /// How many versions of each aggregate have committed.
    pub(crate) committed: [i64; AGGREGATES],
    /// Who holds the aggregate's lock. Not given back by a savepoint, to be on the safe side.
    locks: [Option<usize>; AGGREGATES],
}

impl Model {
    /// Changes an aggregate and returns its version, unless the session would have to wait.
    pub(crate) fn change(&mut self, session: usize, aggregate: usize) -> Option<i64> {
        let Session::Open { changed, .. } = &mut self.sessions[session] else { return None };
        if self.locks[aggregate].is_some_and(|holder| holder != session) {
            return None;
        }
        self.locks[aggregate] = Some(session);
        changed.push(aggregate);
        let own = changed.iter().filter(|changed| **changed == aggregate).count();
        Some(self.committed[aggregate] + i64::try_from(own).expect("few"))
    }

    /// Sets a savepoint; false if there is one, or no transaction.
    pub(crate) fn savepoint(&mut self, session: usize) -> bool {
        match &mut self.sessions[session] {
            Session::Open { changed, savepoint: savepoint @ None } => {
                *savepoint = Some(changed.len());
                true
            }
            _ => false,
        }
    }

    /// Takes back what was changed since the savepoint; false if there is none.
    pub(crate) fn roll_back_to_savepoint(&mut self, session: usize) -> bool {
        let Session::Open { changed, savepoint } = &mut self.sessions[session] else {
            return false;
        };
        savepoint.take().map(|kept| changed.truncate(kept)).is_some()
    }

    /// Ends what the session has done, and gives its locks back.
    pub(crate) fn end(&mut self, session: usize, commits: bool) {
        let (Session::Open { changed, .. } | Session::Prepared { changed }) =
            std::mem::take(&mut self.sessions[session])
        else {
            return;
        };
        if commits {
            for aggregate in changed {
                self.committed[aggregate] += 1;
            }
        }
        for lock in &mut self.locks {
            *lock = lock.filter(|holder| *holder != session);
        }
    }

    /// Prepares the session's transaction; false if it has none.
    pub(crate) fn prepare(&mut self, session: usize) -> bool {
        let state = std::mem::take(&mut self.sessions[session]);
        let is_open = matches!(state, Session::Open { .. });
        self.sessions[session] = match state {
            Session::Open { changed, .. } => Session::Prepared { changed },
            other => other,
        };
        is_open
    }

    pub(crate) fn is_idle(&self, session: usize) -> bool {
        matches!(self.sessions[session], Session::Idle)
    }

    pub(crate) fn is_open(&self, session: usize) -> bool {
        matches!(self.sessions[session], Session::Open { .. })
    }

    pub(crate) fn is_prepared(&self, session: usize) -> bool {
        matches!(self.sessions[session], Session::Prepared { .. })
    }

    /// What a consumer may have seen of an aggregate: its first versions, in order; any of them,
    /// once, where they are unordered or pass dead ones.
    pub(crate) fn fault(&self, aggregate: usize, arrived: &[i64]) -> Option<String> {
        let committed = self.committed[aggregate];
        let is_too_long = i64::try_from(arrived.len()).ok()? > committed;
        let is_prefix = if aggregate == SKIPPING || aggregate == UNORDERED {
            let known: HashSet<i64> = arrived
                .iter()
                .copied()
                .filter(|version| (1..=committed).contains(version))
                .collect();
            known.len() == arrived.len()
        } else {
            arrived.iter().copied().eq(1..=i64::try_from(arrived.len()).ok()?)
        };
        (!is_prefix || is_too_long).then(|| {
            format!(
                "aggregate {aggregate}: versions up to {committed} committed, {arrived:?} arrived"
            )
        })
    }

    /// Versions that came before an earlier one had: those earlier ones.
    pub(crate) fn overtaken(arrived: &[i64]) -> Vec<i64> {
        let mut newest = 0;
        let mut overtaken = Vec::new();
        for (nth, version) in arrived.iter().enumerate() {
            // It came later than it should, or has not come yet.
            overtaken.extend((newest + 1..*version).filter(|v| !arrived[..nth].contains(v)));
            newest = newest.max(*version);
        }
        overtaken
    }

    pub(crate) fn has_all(&self, aggregate: usize, arrived: &[i64]) -> bool {
        i64::try_from(arrived.len()) == Ok(self.committed[aggregate])
    }
}
