//! When to poll again: at once while something happens, more and more seldom while nothing does, and never beyond the budget.

use std::time::Duration;

/// How long polls follow each other without sleep after the counters changed: the next change is near.
const AFTER_CHANGE: Duration = Duration::from_millis(2);
/// The same after a thread has moved that had stood still.
const AFTER_MOVE: Duration = Duration::from_micros(300);
/// The shortest sleep; waking up costs as much as two or three polls.
const SHORTEST: Duration = Duration::from_micros(10);
/// The longest sleep while the counters have moved not long ago: shorter than the time from a thread's first move to its
/// first allocation as a rule is.
const LONGEST_WHEN_BUSY: Duration = Duration::from_micros(50);
/// The longest sleep of all.
const LONGEST: Duration = Duration::from_millis(5);
/// What may be used beyond the budget at once, and what is saved up at most, as a stretch of time.
const SAVED_UP: Duration = Duration::from_secs(1);
/// How long polling rests after each poll while the target repeats itself.
const PAUSE: Duration = Duration::from_micros(300);
/// How long polling rests after each poll while it gives way.
const GIVE_WAY: Duration = Duration::from_micros(500);
/// How long polling rests when the budget is used up.
const REST: Duration = Duration::from_millis(5);

/// What to do before the next poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextPoll {
    /// Nothing.
    Poll,
    /// Nothing happens: sleep.
    Sleep(Duration),
    /// The target does what it did before: sleep.
    Rest(Duration),
    /// The polls are in the target's way: sleep.
    GiveWay(Duration),
    /// The budget is used up: sleep, although something may happen.
    HoldBack(Duration),
}

/// Keeps the pace of one poller. Times count from any moment.
#[derive(Debug)]
pub(super) struct FollowPace {
    /// Part of one processor that may be used.
    share: f64,
    /// Nanoseconds of a processor that may be used now.
    saved: f64,
    /// When and at what use of the processor that was computed.
    at: Duration,
    used: Duration,
    changed: Duration,
    moved: Duration,
    /// Until when to poll without sleep.
    spin_until: Duration,
    gives_way: bool,
    rests: bool,
}

impl FollowPace {
    /// May use `share` of one processor.
    pub(super) fn new(share: f64, now: Duration, used: Duration) -> FollowPace {
        FollowPace {
            share,
            saved: share * SAVED_UP.as_nanos() as f64,
            at: now,
            used,
            changed: now,
            moved: now,
            spin_until: now + AFTER_CHANGE,
            gives_way: false,
            rests: false,
        }
    }

    /// Takes whether the polls are in the target's way (`blocked_threads.rs`).
    pub(super) fn set_gives_way(&mut self, gives_way: bool) {
        self.gives_way = gives_way;
    }

    /// Takes whether the target does what it did before (`repetition.rs`).
    pub(super) fn set_rests(&mut self, rests: bool) {
        self.rests = rests;
    }

    /// From now on it may use `share` of one processor.
    pub(super) fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    /// Takes what the last poll saw: whether counters changed, or else whether a thread moved.
    pub(super) fn saw(&mut self, now: Duration, changed: bool, moved: bool) {
        if changed {
            self.changed = now;
            self.spin_until = self.spin_until.max(now + AFTER_CHANGE);
        }
        if moved || changed {
            let stood = now.saturating_sub(self.moved);
            self.moved = now;
            // A thread that moves all the time without allocating is worth polling only while there is plenty left.
            if stood > AFTER_MOVE / 3 || self.saved > 0.5 * self.most() {
                self.spin_until = self.spin_until.max(now + AFTER_MOVE);
            }
        }
    }

    /// Whether the use of the processor is to be told before [`Self::next`].
    pub(super) fn wants_use(&self, now: Duration) -> bool {
        now >= self.spin_until || now.saturating_sub(self.at) > REST / 10
    }

    /// Takes the time of a processor used since it exists.
    pub(super) fn take_use(&mut self, now: Duration, used: Duration) {
        let passed = now.saturating_sub(self.at).as_nanos() as f64;
        let spent = used.saturating_sub(self.used).as_nanos() as f64;
        self.saved = (self.saved + passed * self.share - spent).min(self.most());
        (self.at, self.used) = (now, used);
    }

    /// What to do before the next poll.
    pub(super) fn next(&self, now: Duration) -> NextPoll {
        if self.saved <= 0.0 {
            return NextPoll::HoldBack(REST);
        }
        if self.gives_way {
            return NextPoll::GiveWay(GIVE_WAY);
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
    fn polls_follow_each_other_after_a_change_and_back_off_when_nothing_happens() {
        let mut pace = FollowPace::new(0.5, us(0), us(0));
        assert_eq!(pace.next(us(1)), NextPoll::Poll);
        assert_eq!(pace.next(us(2_100)), NextPoll::Sleep(us(21)));
        assert_eq!(pace.next(us(900_000)), NextPoll::Sleep(us(50)));
        assert_eq!(pace.next(us(20_000_000)), NextPoll::Sleep(us(500)));
        assert_eq!(pace.next(us(999_000_000)), NextPoll::Sleep(LONGEST));
        pace.saw(us(999_000_000), false, true);
        assert_eq!(pace.next(us(999_000_200)), NextPoll::Poll, "a thread moved");
        pace.saw(us(999_000_300), true, true);
        assert_eq!(pace.next(us(999_002_200)), NextPoll::Poll, "memory was allocated");
    }

    /// Whatever happens, over any long time no more is used than the budget allows.
    #[test]
    fn the_budget_is_kept_and_the_rest_of_the_time_slept() {
        let (mut now, mut used) = (us(0), us(0));
        let mut pace = FollowPace::new(0.25, now, used);
        let mut held_back = 0;
        while now < Duration::from_secs(10) {
            pace.saw(now, true, true);
            if pace.wants_use(now) {
                pace.take_use(now, used);
            }
            match pace.next(now) {
                NextPoll::Poll => (now, used) = (now + us(2), used + us(2)),
                NextPoll::Sleep(time) | NextPoll::Rest(time) | NextPoll::GiveWay(time) => {
                    now += time;
                }
                NextPoll::HoldBack(time) => {
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
