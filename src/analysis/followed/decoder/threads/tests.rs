//! Recordings of two threads with one program, of which is known who allocated.

use super::*;
use crate::model::{
    CounterDelta, FollowedChange, FollowedThread, Frame, Function, Nanos, StackReading, StackTable,
    ThreadWait,
};

/// Nanoseconds from the poll before a delta to the one after it.
const POLL: u64 = 10_000;

/// Two threads that polls see at two lines, one after the other.
struct TwoThreads {
    stacks: StackTable,
    lines: [StackId; 2],
    log: DeltaLog,
    now: u64,
    random: u64,
    /// What each delta allocated where.
    truth: Vec<Vec<(u64, StackId)>>,
}

impl TwoThreads {
    fn new() -> TwoThreads {
        let mut stacks = StackTable::new();
        let function = stacks.function(Function::of_test("answer", 9));
        let lines = [1, 2].map(|line| {
            let frame = stacks.frame(Frame { function, line });
            stacks.stack(None, frame)
        });
        let log = DeltaLog::default();
        TwoThreads { stacks, lines, log, now: 0, random: 1, truth: Vec::new() }
    }

    /// A number below `limit`.
    fn draw(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % limit
    }

    /// A delta, and at which lines the two polls saw the threads.
    fn delta(&mut self, made: &[(u64, StackId)], polls: [[StackId; 2]; 2]) {
        let [before, after] = polls;
        let thread = |number: usize| FollowedThread {
            thread: ThreadId(number as u32),
            before: StackReading::Whole(before[number]),
            after: StackReading::Whole(after[number]),
            held_lock: false,
            wait: ThreadWait::default(),
        };
        let bytes = made.iter().map(|of| of.0 as i64).sum();
        let small = CounterDelta {
            allocations: made.len() as i64,
            allocated_bytes: bytes,
            requested_bytes: bytes,
            ..CounterDelta::default()
        };
        let change = FollowedChange {
            before: Nanos(self.now),
            after: Nanos(self.now + POLL),
            small,
            threads: vec![thread(0), thread(1)],
            ..FollowedChange::empty()
        };
        self.log.add(&change, |_| false, &self.stacks);
        self.now += 2 * POLL;
        self.truth.push(made.to_vec());
    }

    /// Shares of the allocations that are probable, and of these that are right.
    fn judge(&self) -> [f64; 2] {
        let (mut all, mut probable, mut right) = (0.0, 0.0, 0.0);
        for (parts, truth) in decode(&self.log).iter().zip(&self.truth) {
            let mut left = truth.clone();
            all += truth.len() as f64;
            for part in parts {
                let Some(AllocationOrigin::Stack(_, stack)) = part.probable() else { continue };
                probable += 1.0;
                let found = left.iter().position(|of| *of == (part.size as u64, stack));
                if let Some(at) = found {
                    left.swap_remove(at);
                    right += 1.0;
                }
            }
        }
        [probable / all, right / f64::max(probable, 1.0)]
    }
}

/// Each thread answers requests of lengths of its own: a block at the first line, one four times as
/// large at the second.
#[test]
fn sizes_and_places_tell_whose_an_allocation_is() {
    let mut job = TwoThreads::new();
    let mut at = [0; 2];
    let mut length = [64, 96];
    while job.truth.len() < 4_000 {
        let before = at.map(|line| job.lines[line]);
        let mut made = Vec::new();
        let mut seen = before;
        for _ in 0..=u64::from(job.draw(4) == 0) {
            let thread = job.draw(2) as usize;
            let line = at[thread];
            made.push((512 * length[thread] * [1, 4][line], job.lines[line]));
            at[thread] = 1 - line;
            if line == 1 {
                length[thread] = 1 + job.draw(128);
            }
            // The poll may come before it has gone on.
            let has_gone_on = job.draw(2) == 1;
            seen[thread] = job.lines[if has_gone_on { 1 - line } else { line }];
        }
        job.delta(&made, [before, seen]);
    }
    let [probable, right] = job.judge();
    assert!(
        probable > 0.55 && right > 0.97,
        "{probable:.3} are probable, {right:.3} of them right"
    );
}

#[test]
fn what_threads_allocate_alike_is_nobodys() {
    let mut job = TwoThreads::new();
    for _ in 0..4_000 {
        let number = job.draw(2) as usize;
        let line = job.lines[number];
        let polls = [job.lines; 2];
        job.delta(&[(512, line)], polls);
    }
    let [probable, _] = job.judge();
    assert!(probable < 0.02, "{probable:.3} are probable");
}

#[test]
fn a_recording_is_always_decoded_alike() {
    let mut job = TwoThreads::new();
    for nth in 0..600 {
        let (number, size) = (job.draw(2) as usize, 512 * (1 + job.draw(3)));
        let made = [(size, job.lines[number])];
        let after = [job.lines[nth % 2]; 2];
        job.delta(&made, [job.lines, after]);
    }
    let sites = || -> Vec<Vec<_>> {
        let parts = decode(&job.log);
        parts.into_iter().map(|of| of.into_iter().map(|part| part.sites).collect()).collect()
    };
    assert_eq!(sites(), sites());
}
