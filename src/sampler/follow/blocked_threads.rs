//! Detects whether polls keep the target's threads from running, so that polling must yield.
//!
//! Reading a process's memory takes its mmap lock, and a thread that maps memory sleeps until the
//! lock is free. CPython maps and unmaps a chunk of its frame stack in each call where a chunk ends
//! (`push_chunk` in Python/pystate.c): polls one after another slowed a loop of such calls to a
//! tenth. Polls seldom wait themselves, but the kernel counts how often a thread goes to sleep. Few
//! jobs sleep that often by themselves, such as threads that hand work to each other; they go on
//! doing so while polls rest. So polling rests for a moment as a trial. It yields only if threads
//! sleep less during the rest and as often as before after it.

use std::time::Duration;

use crate::python::PollTarget;
use crate::target::Process;

/// The length of a counting window.
const WINDOW: Duration = Duration::from_millis(10);
/// A longer window says nothing about polls one after another.
const TOO_LONG: Duration = Duration::from_millis(40);
/// Sleeps a second of all polled threads that only waiting for the lock explains.
const MOST_SLEEPS: f64 = 5_000.0;
/// How long polling yields before the next trial.
const YIELDS_FOR: Duration = Duration::from_millis(200);
/// How long a positive trial is believed.
const BELIEVED_FOR: Duration = Duration::from_secs(10);
/// After a negative trial, the wait before the next one: at first, and at most.
const PATIENCE: Duration = Duration::from_secs(1);
const MOST_PATIENCE: Duration = Duration::from_secs(64);

/// The state of the trial.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Trial {
    #[default]
    None,
    /// Polls rest.
    Resting,
    /// Polls run again.
    Polling,
}

/// Counts how often the polled threads sleep.
#[derive(Debug)]
pub(super) struct BlockedThreads {
    since: Duration,
    /// The count of each thread, by its id.
    counts: Vec<(u32, u64)>,
    /// The number of context switches is cheap to read. If it is high, sleeps are counted instead.
    counts_sleeps: bool,
    until: Duration,
    trial: Trial,
    /// Until when polls are believed to be the cause.
    believed_until: Duration,
    /// When the next trial may start, and the wait after it.
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
    /// Reads the threads' counts if a window has ended.
    pub(super) fn look<'a>(
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
        // The other figure needs a base of its own.
        let goes_on = if is_known { is_often } else { self.counts_sleeps };
        self.counts = if goes_on == self.counts_sleeps { counts } else { Vec::new() };
        (self.counts_sleeps, self.since) = (goes_on, now);
    }

    /// The polls are the cause.
    fn start_yielding(&mut self, now: Duration) {
        self.until = now + YIELDS_FOR;
        self.believed_until = self.until + BELIEVED_FOR;
        self.patience = PATIENCE;
    }

    /// Whether polling rests after each poll.
    pub(super) fn yields(&self, now: Duration) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts for a window that ends at `end`.
    fn counted(blocked: &mut BlockedThreads, counts: &[(u32, u64)], end: u64) -> bool {
        let now = Duration::from_millis(end);
        blocked.count(counts.to_vec(), now.saturating_sub(blocked.since), now);
        blocked.yields(now)
    }

    /// Threads that sleep all the time, in two windows.
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

    /// The threads hand work to each other.
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
    fn a_moment_in_which_threads_slept_often_is_no_reason() {
        let mut blocked = BlockedThreads::default();
        assert!(often(&mut blocked, 70));
        assert!(
            !counted(&mut blocked, &[(7, 110)], 110) && !counted(&mut blocked, &[(7, 120)], 120)
        );
        assert!(!counted(&mut blocked, &[(7, 130)], 130));
    }
}
