//! The demo's own books: what was committed, and what arrived.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use uuid::Uuid;

/// Clones are the same books.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Books>>);

#[derive(Default)]
struct Books {
    committed: HashMap<Uuid, Commit>,
    seen: Vec<Seen>,
    handled: usize,
}

struct Commit {
    at: Instant,
    paced: bool,
}

struct Seen {
    event: Uuid,
    order: i64,
    revision: i64,
    at: Instant,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.0.lock().expect("no holder panics")
    }

    /// These were committed just now.
    pub(crate) fn commit(&self, events: Vec<Uuid>, paced: bool) {
        let at = Instant::now();
        self.books().committed.extend(events.into_iter().map(|id| (id, Commit { at, paced })));
    }

    /// This is in the stream.
    pub(crate) fn see(&self, event: Uuid, order: i64, revision: i64, at: Instant) {
        self.books().seen.push(Seen { event, order, revision, at });
    }

    /// The consumer group has handled so many more.
    pub(crate) fn handle(&self, events: usize) {
        self.books().handled += events;
    }

    pub(crate) fn counts(&self) -> Counts {
        let books = self.books();
        Counts {
            committed: books.committed.len(),
            published: books.seen.len(),
            handled: books.handled,
        }
    }

    /// Compares the two sides.
    pub(crate) fn report(&self) -> Report {
        let books = self.books();
        let arrived: HashSet<Uuid> = books.seen.iter().map(|seen| seen.event).collect();
        let mut newest: HashMap<i64, i64> = HashMap::new();
        let mut reordered = 0;
        for seen in &books.seen {
            let newest = newest.entry(seen.order).or_default();
            reordered += usize::from(seen.revision < *newest);
            *newest = seen.revision.max(*newest);
        }
        let mut latencies: Vec<Duration> = books
            .seen
            .iter()
            .filter_map(|seen| {
                let commit = books.committed.get(&seen.event).filter(|commit| commit.paced)?;
                // Zero where the event was read before the writer heard of its commit.
                Some(seen.at.saturating_duration_since(commit.at))
            })
            .collect();
        latencies.sort_unstable();
        Report {
            emitted: books.committed.len(),
            published: books.seen.len(),
            handled: books.handled,
            lost: books.committed.keys().filter(|id| !arrived.contains(id)).count(),
            duplicated: books.seen.len() - arrived.len(),
            reordered,
            phantoms: arrived.iter().filter(|id| !books.committed.contains_key(id)).count(),
            latencies,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) committed: usize,
    pub(crate) published: usize,
    pub(crate) handled: usize,
}

pub(crate) struct Report {
    emitted: usize,
    published: usize,
    handled: usize,
    lost: usize,
    duplicated: usize,
    reordered: usize,
    /// Published, but never committed.
    phantoms: usize,
    /// Of the paced part, ascending.
    latencies: Vec<Duration>,
}

impl Report {
    /// Everything that was to be emitted was, and arrived once and in order.
    pub(crate) fn is_perfect(&self, events: usize) -> bool {
        let faults = self.lost + self.duplicated + self.reordered + self.phantoms;
        let counts = [self.emitted, self.published, self.handled];
        faults == 0 && counts == [events; 3]
    }

    /// What the numbers of the last line mean.
    pub(crate) fn explanation(&self) -> String {
        format!(
            "rolled back and published nevertheless: {}\n\
             latency: from the return of the commit to the return of the XREAD, over the {} events \
             of the paced part",
            self.phantoms,
            self.latencies.len()
        )
    }

    fn percentile(&self, percent: usize) -> f64 {
        let nth = (self.latencies.len() * percent).div_ceil(100).saturating_sub(1);
        self.latencies.get(nth).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "demo: emitted {}, published {}, handled {}, lost {}, duplicated {}, reordered {}, \
             p50 {:.1} ms, p99 {:.1} ms",
            self.emitted,
            self.published,
            self.handled,
            self.lost,
            self.duplicated,
            self.reordered,
            self.percentile(50),
            self.percentile(99),
        )
    }
}
