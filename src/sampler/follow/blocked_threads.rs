//! Detects polls that keep the target's threads from running.
//!
//! Reading memory takes the process's mmap lock. CPython maps memory in each call where a chunk of
//! its frame stack ends (`push_chunk` in Python/pystate.c): polls slowed a loop of such calls to a
//! tenth. Polls rest as a trial, and yield only if threads then sleep less: threads that hand work
//! to each other sleep as often without polls.

use std::time::Duration;

use crate::python::PollTarget;
use crate::target::Process;

const WINDOW: Duration = Duration::from_millis(10);
/// A longer window says nothing about successive polls.
const TOO_LONG: Duration = Duration::from_millis(40);
/// More sleeps a second, over all polled threads, mean that they wait for the lock.
const MOST_SLEEPS: f64 = 5_000.0;
const YIELDS_FOR: Duration = Duration::from_millis(200);
const BELIEVED_FOR: Duration = Duration::from_secs(10);
/// The wait after a negative trial, at first and at most.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_PATIENCE: Duration = Duration::from_secs(64);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Trial {
    #[default]
    None,
    Resting,
    Polling,
}

#[derive(Debug)]
pub(super) struct BlockedThreads {
    since: Duration,
    counts: Vec<(u32, u64)>,
    /// Context switches are cheap to read; if frequent, sleeps are counted instead.
    counts_sleeps: bool,
    until: Duration,
    trial: Trial,
    believed_until: Duration,
    patient_until: Duration,
    patience: Duration,
}

impl Default for BlockedThreads {
    fn default() -> BlockedThreads {
        BlockedThreads {
            since: Duration::ZERO,
            counts: Vec::new(),
            counts_sleeps: false,
            until: Duration::ZERO,
            trial: Trial::None,
            believed_until: Duration::ZERO,
            patient_until: Duration::ZERO,
            patience: PATIENCE,
        }
    }
}

impl BlockedThreads {
    pub(super) fn read_counts<'a>(
        &mut self,
        process: &Process,
        targets: impl Iterator<Item = &'a PollTarget>,
        now: Duration,
    ) {
        let passed = now.saturating_sub(self.since);
        if passed < WINDOW || self.yields(now) {
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
        let rate = count as f64 / passed.as_secs_f64().max(f64::MIN_POSITIVE);
        let is_often = is_known && rate > MOST_SLEEPS;
        match std::mem::take(&mut self.trial) {
            Trial::Resting if is_known && rate <= MOST_SLEEPS / 2.0 => {
                self.trial = Trial::Polling;
                (self.counts, self.since) = (counts, now);
                return;
            }
            Trial::Resting => {
                self.patient_until = now + self.patience;
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
            }
            Trial::Polling if is_often => self.start_yielding(now),
            Trial::None if is_often && self.counts_sleeps && now < self.believed_until => {
                self.start_yielding(now);
            }
            Trial::None if is_often && self.counts_sleeps && now >= self.patient_until => {
                self.trial = Trial::Resting;
                self.until = now + WINDOW;
            }
            Trial::Polling | Trial::None => {}
        }
        let goes_on = if is_known { is_often } else { self.counts_sleeps };
        self.counts = if goes_on == self.counts_sleeps { counts } else { Vec::new() };
        (self.counts_sleeps, self.since) = (goes_on, now);
    }

    fn start_yielding(&mut self, now: Duration) {
        self.until = now + YIELDS_FOR;
        self.believed_until = self.until + BELIEVED_FOR;
        self.patience = PATIENCE;
    }

    pub(super) fn yields(&self, now: Duration) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(blocked: &mut BlockedThreads, counts: &[(u32, u64)], end: u64) -> bool {
        let now = Duration::from_millis(end);
        blocked.count(counts.to_vec(), now.saturating_sub(blocked.since), now);
        blocked.yields(now)
    }

    fn often(blocked: &mut BlockedThreads, end: u64) -> bool {
        assert!(!counted(blocked, &[(7, 0)], end) && !counted(blocked, &[(7, 200)], end + 10));
        assert!(!counted(blocked, &[(7, 0)], end + 20) && blocked.counts_sleeps);
        counted(blocked, &[(7, 100)], end + 30)
    }

    #[test]
    fn threads_that_were_interrupted_did_not_sleep() {
        let mut blocked = BlockedThreads::default();
        assert!(!counted(&mut blocked, &[(7, 1_000)], 10), "what was before is not known");
        assert!(!counted(&mut blocked, &[(7, 1_040)], 20) && !blocked.counts_sleeps);
        assert!(!counted(&mut blocked, &[(7, 1_041), (8, 90_000)], 30), "another thread");
        assert!(!counted(&mut blocked, &[(7, 1_200), (8, 90_000)], 40));
        assert!(blocked.counts_sleeps, "they may have been interrupted");
        assert!(!counted(&mut blocked, &[(7, 300)], 50) && !counted(&mut blocked, &[(7, 310)], 60));
        assert!(!blocked.counts_sleeps, "they were");
    }

    #[test]
    fn polling_yields_if_threads_sleep_less_during_rest_then_retries() {
        let mut blocked = BlockedThreads::default();
        let ms = Duration::from_millis;
        assert!(often(&mut blocked, 70), "it rests");
        assert!(blocked.yields(ms(109)) && !blocked.yields(ms(110)));
        assert!(!counted(&mut blocked, &[(7, 110)], 110), "they sleep no more, and it goes on");
        assert!(counted(&mut blocked, &[(7, 210)], 120), "now they sleep again");
        assert!(blocked.yields(ms(319)) && !blocked.yields(ms(320)));
        assert!(!counted(&mut blocked, &[(7, 9_000)], 320), "polling rested for most of that");
        assert!(counted(&mut blocked, &[(7, 9_100)], 330), "it is known that it is the polls");
        assert!(blocked.yields(ms(529)));
    }

    #[test]
    fn polling_continues_if_threads_sleep_as_often_during_rest() {
        let mut blocked = BlockedThreads::default();
        assert!(often(&mut blocked, 70));
        assert!(!counted(&mut blocked, &[(7, 200)], 110));
        for end in (120..1_100).step_by(10) {
            assert!(!counted(&mut blocked, &[(7, 10 * end)], end), "it is not tried again soon");
        }
        assert!((1_110..1_150).step_by(10).any(|end| counted(&mut blocked, &[(7, 10 * end)], end)));
    }

    #[test]
    fn polling_continues_after_one_window_of_frequent_sleeps() {
        let mut blocked = BlockedThreads::default();
        assert!(often(&mut blocked, 70));
        assert!(
            !counted(&mut blocked, &[(7, 110)], 110) && !counted(&mut blocked, &[(7, 120)], 120)
        );
        assert!(!counted(&mut blocked, &[(7, 130)], 130));
    }
}
