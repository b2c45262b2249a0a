//! Whose fault is it that a call brought no answer: an event's, or nobody's?
//!
//! Fewer and fewer events are sent at once until one of them fails alone. It is parked, so that the
//! others can pass it, and that costs it nothing yet: a broker that is merely away looks the same.
//! An attempt is counted only where the event fails alone again, and what was sent right before and
//! right after it was answered.

use std::collections::HashMap;

use crate::retry::Failure;

/// How many times fewer events are sent after a call without an answer: a thousand, thirty-one, one.
const NARROWER: usize = 32;

/// Sends fewer events at once until the one at fault is found.
#[derive(Debug)]
pub(super) struct Search {
    width: usize,
    /// How many of the events ahead hide the one at fault.
    region: usize,
}

impl Default for Search {
    fn default() -> Self {
        Self { width: usize::MAX, region: 0 }
    }
}

impl Search {
    /// How many events to send at once.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// There was no answer for so many events.
    pub(super) fn narrow(&mut self, sent: usize) {
        self.region = sent;
        self.width = (sent / NARROWER).max(1);
    }

    /// So many events got an answer, or were put aside.
    pub(super) fn pass(&mut self, events: usize) {
        if self.region > events {
            self.region -= events;
        } else {
            self.region = 0;
            self.width = self.width.saturating_mul(2);
        }
    }
}

/// What speaks for and against the event that failed last.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The last call was answered.
    answered: bool,
    /// What to write if the next call is answered too.
    suspect: Option<Failure>,
    /// How often each has failed alone in a row, while the broker seemed to be there.
    strikes: HashMap<i64, u32>,
}

impl Evidence {
    /// The broker answered: who failed between two answers has made an attempt.
    pub(super) fn answer(&mut self) -> Option<Failure> {
        self.answered = true;
        self.suspect.take()
    }

    /// The broker is away, or it can't be told which event failed.
    pub(super) fn silence(&mut self) {
        self.answered = false;
        self.suspect = None;
    }

    /// One event failed alone. True if the call before was answered: then it may be its fault.
    pub(super) fn suspect(&mut self, failure: Failure) -> bool {
        let answered = std::mem::take(&mut self.answered);
        self.suspect = None;
        if answered {
            let strikes = self.strikes.entry(failure.seq).or_default();
            *strikes += 1;
            if *strikes > 1 {
                self.suspect = Some(failure);
            }
        }
        answered
    }

    /// The event got an answer.
    pub(super) fn acquit(&mut self, seq: i64) {
        if !self.strikes.is_empty() {
            self.strikes.remove(&seq);
        }
    }

    /// Nothing of that counts any more.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(seq: i64) -> Failure {
        Failure { seq, seen: 0, attempts: 1, pause: None, error: None, holds: true, alone: false }
    }

    #[test]
    fn the_event_at_fault_is_found_in_three_calls_without_an_answer() {
        for fault in 0..1000 {
            let (mut search, mut at, mut silent) = (Search::default(), 0, 0);
            loop {
                let width = search.width().min(1000 - at);
                if !(at..at + width).contains(&fault) {
                    search.pass(width);
                    at += width;
                    continue;
                }
                silent += 1;
                if width == 1 {
                    break;
                }
                search.narrow(width);
            }
            assert_eq!(at, fault);
            assert!(silent <= 3, "{silent} calls for event {fault}");
        }
    }

    #[test]
    fn an_outage_is_no_attempt_of_any_event() {
        let mut evidence = Evidence::default();
        assert!(evidence.answer().is_none());
        // It hits one event after another, alone, and one of them twice.
        assert!(evidence.suspect(failure(1)));
        for seq in [2, 3, 1, 1] {
            assert!(!evidence.suspect(failure(seq)));
        }
        assert!(evidence.answer().is_none(), "the last one before the broker came back");
        // A blip hits one event between two answers.
        assert!(evidence.suspect(failure(4)));
        assert!(evidence.answer().is_none());
        evidence.acquit(4);
        assert!(evidence.suspect(failure(4)));
        assert!(evidence.answer().is_none());
    }

    #[test]
    fn an_event_that_fails_again_while_others_pass_it_has_made_an_attempt() {
        let mut evidence = Evidence::default();
        for round in 0..3 {
            evidence.answer();
            evidence.suspect(failure(1));
            assert_eq!(evidence.answer().is_some(), round > 0);
        }
        evidence.suspect(failure(1));
        evidence.silence();
        assert!(evidence.answer().is_none(), "the broker went away meanwhile");
    }
}
