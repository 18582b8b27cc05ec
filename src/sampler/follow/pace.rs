//! When to poll again, within the budget.

use std::time::Duration;

/// Polls do not sleep after a delta: the next one is near.
const AFTER_CHANGE: Duration = Duration::from_millis(2);
/// The same after an idle thread has moved.
const AFTER_MOVE: Duration = Duration::from_micros(300);
/// Waking costs as much as two or three polls.
const SHORTEST: Duration = Duration::from_micros(10);
/// While counters move; usually shorter than from a thread's first move to its first
/// allocation.
const LONGEST_WHEN_BUSY: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);
/// The largest budget saved up, as a stretch of time.
const SAVED_UP: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(300);
const YIELD_PAUSE: Duration = Duration::from_micros(500);
const REST: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextPoll {
    Poll,
    Sleep(Duration),
    Rest(Duration),
    Yield(Duration),
    Throttle(Duration),
}

#[derive(Debug)]
pub(super) struct FollowPace {
    share: f64,
    /// Nanoseconds of a processor that may be used now.
    saved: f64,
    at: Duration,
    used: Duration,
    changed: Duration,
    moved: Duration,
    spin_until: Duration,
    yields: bool,
    rests: bool,
}

impl FollowPace {
    pub(super) fn new(share: f64, now: Duration, used: Duration) -> FollowPace {
        FollowPace {
            share,
            saved: share * SAVED_UP.as_nanos() as f64,
            at: now,
            used,
            changed: now,
            moved: now,
            spin_until: now + AFTER_CHANGE,
            yields: false,
            rests: false,
        }
    }

    pub(super) fn set_yields(&mut self, yields: bool) {
        self.yields = yields;
    }

    pub(super) fn set_rests(&mut self, rests: bool) {
        self.rests = rests;
    }

    pub(super) fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    pub(super) fn observe(&mut self, now: Duration, changed: bool, moved: bool) {
        if changed {
            self.changed = now;
            self.spin_until = self.spin_until.max(now + AFTER_CHANGE);
        }
        if moved || changed {
            let idle = now.saturating_sub(self.moved);
            self.moved = now;
            // A thread that moves without allocating is worth polling only on a large budget.
            if idle > AFTER_MOVE / 3 || self.saved > 0.5 * self.most() {
                self.spin_until = self.spin_until.max(now + AFTER_MOVE);
            }
        }
    }

    pub(super) fn wants_use(&self, now: Duration) -> bool {
        now >= self.spin_until || now.saturating_sub(self.at) > REST / 10
    }

    pub(super) fn take_use(&mut self, now: Duration, used: Duration) {
        let passed = now.saturating_sub(self.at).as_nanos() as f64;
        let spent = used.saturating_sub(self.used).as_nanos() as f64;
        self.saved = (self.saved + passed * self.share - spent).min(self.most());
        (self.at, self.used) = (now, used);
    }

    pub(super) fn next(&self, now: Duration) -> NextPoll {
        if self.saved <= 0.0 {
            return NextPoll::Throttle(REST);
        }
        if self.yields {
            return NextPoll::Yield(YIELD_PAUSE);
        }
        if now < self.spin_until {
            return if self.rests { NextPoll::Rest(PAUSE) } else { NextPoll::Poll };
        }
        let quiet = now.saturating_sub(self.changed.max(self.moved));
        let longest = (now.saturating_sub(self.changed) / 40_000).clamp(LONGEST_WHEN_BUSY, LONGEST);
        NextPoll::Sleep((quiet / 100).clamp(SHORTEST, longest))
    }

    fn most(&self) -> f64 {
        self.share * SAVED_UP.as_nanos() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn polls_spin_after_a_change_and_back_off_when_idle() {
        let mut pace = FollowPace::new(0.5, us(0), us(0));
        assert_eq!(pace.next(us(1)), NextPoll::Poll);
        assert_eq!(pace.next(us(2_100)), NextPoll::Sleep(us(21)));
        assert_eq!(pace.next(us(900_000)), NextPoll::Sleep(us(50)));
        assert_eq!(pace.next(us(20_000_000)), NextPoll::Sleep(us(500)));
        assert_eq!(pace.next(us(999_000_000)), NextPoll::Sleep(LONGEST));
        pace.observe(us(999_000_000), false, true);
        assert_eq!(pace.next(us(999_000_200)), NextPoll::Poll, "a thread moved");
        pace.observe(us(999_000_300), true, true);
        assert_eq!(pace.next(us(999_002_200)), NextPoll::Poll, "memory was allocated");
    }

    #[test]
    fn polls_keep_the_budget_and_sleep_otherwise() {
        let (mut now, mut used) = (us(0), us(0));
        let mut pace = FollowPace::new(0.25, now, used);
        let mut held_back = 0;
        while now < Duration::from_secs(10) {
            pace.observe(now, true, true);
            if pace.wants_use(now) {
                pace.take_use(now, used);
            }
            match pace.next(now) {
                NextPoll::Poll => (now, used) = (now + us(2), used + us(2)),
                NextPoll::Sleep(time) | NextPoll::Rest(time) | NextPoll::Yield(time) => {
                    now += time;
                }
                NextPoll::Throttle(time) => {
                    held_back += 1;
                    now += time;
                }
            }
        }
        assert!(held_back > 0);
        let most = Duration::from_millis((10_000 + 1_000) / 4 + 20);
        assert!(used <= most && used > Duration::from_millis(2_400), "{used:?}");
    }
}
