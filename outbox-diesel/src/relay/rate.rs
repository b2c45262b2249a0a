//! How many events a relay delivers per second, over about the last minute.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How far back it looks.
const SPAN: Duration = Duration::from_secs(60);
/// No sooner than so long after the last look is another one kept.
const STEP: Duration = Duration::from_secs(1);

/// What was counted, and when.
#[derive(Debug, Default)]
pub(super) struct Rate(VecDeque<(Instant, u64)>);

impl Rate {
    /// The rate, from what is counted up to now; None on the first look.
    pub(super) fn of(&mut self, counted: u64) -> Option<f64> {
        self.at(Instant::now(), counted)
    }

    fn at(&mut self, now: Instant, counted: u64) -> Option<f64> {
        // The newest of those that are old enough is what the rate is told from.
        while self.0.get(1).is_some_and(|(at, _)| now - *at >= SPAN) {
            self.0.pop_front();
        }
        let rate = self.0.front().map(|(began, before)| {
            let seconds = (now - *began).max(STEP).as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "nobody delivers 2^53 events a minute")]
            let events = counted.saturating_sub(*before) as f64;
            events / seconds
        });
        if self.0.back().is_none_or(|(at, _)| now - *at >= STEP) {
            self.0.push_back((now, counted));
        }
        rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_minute() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        let mut at = |second: u64, counted| rate.at(start + Duration::from_secs(second), counted);
        assert_eq!(at(0, 0), None);
        assert_eq!(at(10, 1000), Some(100.0));
        for second in 11..70 {
            at(second, 1000);
        }
        // What came in the first seconds is out of sight.
        assert_eq!(at(80, 1600), Some(10.0));
        assert_eq!(at(10_000, 1600), Some(0.0));
        assert!(rate.0.len() < 64, "{}", rate.0.len());
    }

    #[test]
    fn many_looks_in_one_second_do_not_make_a_rate_of_nothing() {
        let (start, mut rate) = (Instant::now(), Rate::default());
        rate.at(start, 0);
        assert_eq!(rate.at(start + Duration::from_millis(1), 500), Some(500.0));
        assert_eq!(rate.at(start + Duration::from_secs(2), 500), Some(250.0));
    }
}
