//! Pauses after failures.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// Doubling pauses with jitter, from 50 ms up to 2 s.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    const BASE: Duration = Duration::from_millis(50);
    /// The longest pause.
    pub(super) const CAP: Duration = Duration::from_secs(2);

    /// The next pause: between half and all of the doubled one.
    pub(super) fn next(&mut self) -> Duration {
        let pause = Self::BASE.saturating_mul(1 << self.failures.min(16)).min(Self::CAP);
        self.failures = self.failures.saturating_add(1);
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// After a success the next failure starts small again.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Whether a failure is worth a line in the log: the first ones, then about one a minute.
    pub(super) fn is_news(&self) -> bool {
        self.failures <= 3 || self.failures.is_multiple_of(40)
    }
}

/// Waits that long, or until cancelled.
pub(super) async fn pause_for(pause: Duration, cancelled: &CancellationToken) {
    tokio::select! {
        () = cancelled.cancelled() => {}
        () = tokio::time::sleep(pause) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_start_small_again() {
        let mut backoff = Backoff::default();
        assert!(backoff.next() <= Backoff::BASE);
        for _ in 0..100 {
            backoff.next();
        }
        assert!(backoff.next() >= Backoff::CAP / 2 && backoff.next() <= Backoff::CAP);
        backoff.reset();
        assert!(backoff.next() <= Backoff::BASE);
    }
}
