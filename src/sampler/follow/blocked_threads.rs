//! Whether the polls keep the target's threads from running: then polling has to give way.
//!
//! To read the memory of a process takes the lock of its mappings, and whoever changes these meanwhile sleeps until it is free. CPython
//! maps and unmaps a piece of its stack of frames in each call where one ends there (`push_chunk` in Python/pystate.c): beside polls one after the
//! other, a loop of such calls kept a tenth of its speed. The polls themselves seldom wait; but the kernel counts how often a thread goes
//! to sleep. A job does not do so often by itself.

use std::time::Duration;

use crate::python::PollTarget;
use crate::target::Process;

/// How long is counted.
const WINDOW: Duration = Duration::from_millis(10);
/// What is counted over a longer time says nothing of polls one after the other.
const TOO_LONG: Duration = Duration::from_millis(40);
/// In a second all polled threads do not sleep so often, but where they wait for the lock.
const MOST_SLEEPS: f64 = 5_000.0;
/// How long polling gives way before it tries anew.
const GIVES_WAY_FOR: Duration = Duration::from_millis(200);

/// How often the polled threads go to sleep.
#[derive(Debug, Default)]
pub(super) struct BlockedThreads {
    since: Duration,
    /// What is counted of each thread, by its id.
    counts: Vec<(u32, u64)>,
    /// How often they are given a processor is quickly read; where that is often, how often they slept.
    counts_sleeps: bool,
    until: Duration,
}

impl BlockedThreads {
    /// Looks at the threads, if it is time to.
    pub(super) fn look<'a>(
        &mut self,
        process: &Process,
        targets: impl Iterator<Item = &'a PollTarget>,
        now: Duration,
    ) {
        let passed = now.saturating_sub(self.since);
        if passed < WINDOW || self.gives_way(now) {
            return;
        }
        let of_target = |target: &PollTarget| {
            let id = target.id_here?;
            let count = match self.counts_sleeps {
                true => process.thread_sleeps(id),
                false => process.thread_turns(id),
            };
            Some((id, count?))
        };
        let counts = targets.filter_map(of_target).collect();
        self.count(counts, passed, now);
    }

    fn count(&mut self, counts: Vec<(u32, u64)>, passed: Duration, now: Duration) {
        let since_last = |(id, count): &(u32, u64)| {
            let last = self.counts.iter().find(|(of, _)| of == id);
            last.map_or(0, |(_, last)| count.saturating_sub(*last))
        };
        let count: u64 = counts.iter().map(since_last).sum();
        let is_known = passed <= TOO_LONG && !self.counts.is_empty();
        let is_often = is_known && count as f64 > MOST_SLEEPS * passed.as_secs_f64();
        if is_often && self.counts_sleeps {
            self.until = now + GIVES_WAY_FOR;
        }
        // The other figure has to be counted from its own beginning.
        let goes_on = if is_known { is_often } else { self.counts_sleeps };
        self.counts = if goes_on == self.counts_sleeps { counts } else { Vec::new() };
        (self.counts_sleeps, self.since) = (goes_on, now);
    }

    /// Whether polling is to rest after each poll.
    pub(super) fn gives_way(&self, now: Duration) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts for a window that ends then.
    fn counted(blocked: &mut BlockedThreads, counts: &[(u32, u64)], end: u64) -> bool {
        let now = Duration::from_millis(end);
        blocked.count(counts.to_vec(), now.saturating_sub(blocked.since), now);
        blocked.gives_way(now)
    }

    #[test]
    fn polling_gives_way_where_threads_sleep_all_the_time_and_tries_anew_later() {
        let mut blocked = BlockedThreads::default();
        assert!(!counted(&mut blocked, &[(7, 1_000)], 10), "what was before is not known");
        assert!(!counted(&mut blocked, &[(7, 1_040)], 20) && !blocked.counts_sleeps);
        assert!(!counted(&mut blocked, &[(7, 1_041), (8, 90_000)], 30), "another thread");
        assert!(!counted(&mut blocked, &[(7, 1_200), (8, 90_000)], 40));
        assert!(blocked.counts_sleeps, "they may have been interrupted");
        assert!(!counted(&mut blocked, &[(7, 300)], 50) && !counted(&mut blocked, &[(7, 310)], 60));
        assert!(!blocked.counts_sleeps, "they were");
        for (turns, end) in [(2_000, 70), (2_200, 80)] {
            assert!(!counted(&mut blocked, &[(7, turns)], end));
        }
        assert!(!counted(&mut blocked, &[(7, 400)], 90));
        assert!(counted(&mut blocked, &[(7, 500)], 100));
        let ms = Duration::from_millis;
        assert!(blocked.gives_way(ms(299)) && !blocked.gives_way(ms(300)));
        assert!(!counted(&mut blocked, &[(7, 9_000)], 300), "polling rested for most of that");
    }
}
