//! [`eventually`]: waits for what another task, process or server will do.

use std::time::{Duration, Instant};

/// Asks again and again until the answer is `Some`, and returns what is in it.
///
/// # Panics
/// After `timeout`, naming the caller's line.
#[track_caller]
pub fn eventually<T>(
    timeout: Duration,
    mut question: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(answer) = question().await {
                return answer;
            }
            assert!(Instant::now() < deadline, "{caller}: not even after {timeout:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
