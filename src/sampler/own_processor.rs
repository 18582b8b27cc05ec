//! Moves a thread that polls without sleep to another processor if it shares its own.
//!
//! The kernel lets two threads share one for 10 ms though others are idle: polls are then 0.5 ms
//! apart, and the job's thread there runs at half speed.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::sampler::free_processors::MANY_PROCESSORS;

/// After this delay, the thread may have lost its processor.
const HELD_UP: Duration = Duration::from_micros(150);
/// After this many moves in a row all processors are busy.
const MOST_MOVES: u32 = 8;
const REST: Duration = Duration::from_secs(1);
/// Moves further apart are not in a row.
const APART: Duration = Duration::from_millis(50);

pub(super) struct OwnProcessor {
    allowed: Option<CpuSet>,
    interruptions: i64,
    moves: u32,
    moved: Duration,
}

impl OwnProcessor {
    pub(super) fn new() -> OwnProcessor {
        let are_many = |set: &CpuSet| set.count() as usize >= MANY_PROCESSORS;
        let allowed = sched_getaffinity(None).ok().filter(are_many);
        let interruptions = interruptions();
        OwnProcessor { allowed, interruptions, moves: 0, moved: Duration::ZERO }
    }

    /// The thread needed `took` between two points without sleep.
    pub(super) fn took(&mut self, took: Duration, now: Duration) {
        let Some(allowed) = self.allowed.filter(|_| took >= HELD_UP) else { return };
        let interruptions = interruptions();
        let was_interrupted = interruptions > self.interruptions;
        self.interruptions = interruptions;
        if !was_interrupted || !self.may_move(now) {
            return;
        }
        let mut others = allowed;
        others.unset(sched_getcpu());
        if sched_setaffinity(None, &others).is_ok() {
            let _ = sched_setaffinity(None, &allowed);
        }
    }

    fn may_move(&mut self, now: Duration) -> bool {
        let since = now.saturating_sub(self.moved);
        if since > APART && (self.moves < MOST_MOVES || since > REST) {
            self.moves = 0;
        }
        if self.moves == MOST_MOVES {
            return false;
        }
        self.moves += 1;
        self.moved = now;
        true
    }
}

fn interruptions() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |used| used.involuntary_context_switches())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn useless_moves_pause_for_a_while() {
        let mut own = OwnProcessor { allowed: None, interruptions: 0, moves: 0, moved: ms(0) };
        let moved = (0..100).filter(|n| own.may_move(ms(1000 + n))).count();
        assert_eq!(moved as u32, MOST_MOVES);
        assert!(!own.may_move(ms(1500)), "the processors are all in use");
        assert!(own.may_move(ms(3000)));
        assert!(own.may_move(ms(3100)) && own.moves == 1, "the one before did help");
    }

    #[test]
    fn a_thread_that_moved_may_use_all_its_processors_again() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let mut own = OwnProcessor::new();
            own.allowed = Some(allowed);
            own.interruptions = -1;
            own.took(ms(1), ms(1000));
            assert_eq!(sched_getaffinity(None).unwrap(), allowed);
            assert_eq!(own.moves, 1);
        })
        .join()
        .unwrap();
    }
}
