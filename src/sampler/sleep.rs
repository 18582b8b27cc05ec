//! A sleep that can end early.

use std::time::{Duration, Instant};

const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Sleeps for `time`, or until `is_over`, asked at once and every 20 ms. Returns whether it slept
/// to the end.
pub fn sleep_unless(time: Duration, mut is_over: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_over() {
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(CHECK_INTERVAL));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_on_time_or_on_request() {
        assert!(sleep_unless(Duration::from_millis(1), || false));
        assert!(!sleep_unless(Duration::ZERO, || true));
        let mut asked = 0;
        let is_over = || {
            asked += 1;
            asked == 3
        };
        assert!(!sleep_unless(Duration::from_secs(3600), is_over));
    }
}
