//! Who does what and when: a paced part, then as fast as it goes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::shop::{Ending, Purchase};

/// Orders that the writers change, over and over.
const ORDERS: u64 = 200;
/// The most events of one transaction.
const LARGEST: u64 = 4;

/// Shared by all writers: clones are the same schedule.
#[derive(Clone)]
pub(crate) struct Schedule {
    paced: u64,
    pace: u64,
    next: Arc<Mutex<Next>>,
}

struct Next {
    number: u64,
    planned: u64,
    left: u64,
    started: Option<Instant>,
}

/// A purchase and its time.
pub(crate) struct Task {
    pub(crate) purchase: Purchase,
    /// None: at once.
    pub(crate) due: Option<Instant>,
}

impl Schedule {
    pub(crate) fn new(events: u64, paced: u64, pace: u64) -> Self {
        let next = Next { number: 0, planned: 0, left: events, started: None };
        Self { paced, pace, next: Arc::new(Mutex::new(next)) }
    }

    /// The next purchase, until all events have been committed.
    pub(crate) fn next(&self) -> Option<Task> {
        let mut next = self.next.lock().expect("no holder panics");
        if next.left == 0 {
            return None;
        }
        next.number += 1;
        let number = next.number;
        let events = (1 + number % LARGEST).min(next.left);
        let ending = match number % 10 {
            4 => Ending::Declined,
            2 | 7 => Ending::VoucherRefused,
            _ => Ending::Paid,
        };
        let started = *next.started.get_or_insert_with(Instant::now);
        let due = (next.planned < self.paced)
            .then(|| started + Duration::from_micros(next.planned * 1_000_000 / self.pace));
        // What rolls back does not count.
        if ending != Ending::Declined {
            next.planned += events;
            next.left -= events;
        }
        // Two purchases in a row, hence two writers at once, want the same order.
        let order = 1 + number / 2 % ORDERS;
        let purchase =
            Purchase { order: order.cast_signed(), events: events.cast_signed(), ending };
        Some(Task { purchase, due })
    }
}
