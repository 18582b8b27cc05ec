//! Unwinds copied stacks on a thread, so the ring's reader never waits.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::native::{RepeatedUnwinder, StackCopy, UnwoundStack};
use crate::sampler::worker::{StopSignal, Worker};
use crate::target::{Process, ThreadRegisters};

/// Bytes in the queue: one second of PyTorch while library tables are read.
const MAX_WAITING: usize = 64 << 20;
const COPY_OVERHEAD: usize = size_of::<NumberedCopy>() + size_of::<UnwoundCopy>();
const MAX_BATCH: usize = 256;
/// Unclaimed results: their events were lost, or recorded earlier.
const MAX_UNCLAIMED: usize = 1 << 16;
/// Above this, the oldest results are dropped even if events may need them.
const MAX_RESULTS: usize = 4 * MAX_UNCLAIMED;

/// Tables of these libraries are read before the first stack: PyTorch's are large, and a job may
/// end soon.
const PREPARED: [&str; 7] =
    ["libtorch", "libc10", "libcuda", "libpython", "python", "libc.so", "libstdc++"];
const PREPARATION_INTERVAL: Duration = Duration::from_millis(250);

struct NumberedCopy {
    number: (u32, u32),
    copy: StackCopy,
}

#[derive(Debug, Clone)]
pub(super) enum NativeOutcome {
    Waiting,
    Lost,
    Unwound(Arc<UnwoundStack>),
}

type UnwoundCopy = ((u32, u32), usize, Arc<UnwoundStack>);

pub(super) struct NativeStacks {
    /// The generation of the probes: each numbers its copies from 0.
    probes: u32,
    results: FxHashMap<u32, Option<Arc<UnwoundStack>>>,
    /// Results before this copy were dropped.
    given_up: Option<u32>,
    pushed: u64,
    unwound: u64,
    waiting: usize,
    // Declared before the worker: dropping this sender ends it.
    copies: Sender<NumberedCopy>,
    done: Receiver<UnwoundCopy>,
    worker: Worker,
}

impl NativeStacks {
    pub(super) fn start(process: Arc<Process>) -> std::io::Result<NativeStacks> {
        let (copies, taken) = channel::<NumberedCopy>();
        let (given, done) = channel();
        let worker =
            Worker::spawn("unwind", move |stop| unwind_all(&process, &taken, &given, stop))?;
        Ok(NativeStacks {
            probes: 0,
            results: FxHashMap::default(),
            given_up: None,
            pushed: 0,
            unwound: 0,
            waiting: 0,
            copies,
            done,
            worker,
        })
    }

    pub(super) fn push(&mut self, number: u32, registers: [u64; 17], stack: &[u8], is_cut: bool) {
        let size = COPY_OVERHEAD + stack.len();
        let registers = ThreadRegisters { thread: 0, values: registers };
        let has_room = self.waiting + size <= MAX_WAITING;
        let sent = has_room && {
            let copy = StackCopy::new(registers, stack.to_vec(), is_cut);
            self.copies.send(NumberedCopy { number: (self.probes, number), copy }).is_ok()
        };
        match sent {
            true => (self.pushed, self.waiting) = (self.pushed + 1, self.waiting + size),
            false => _ = self.results.insert(number, None),
        }
        if self.results.len() > MAX_RESULTS {
            let first = number.wrapping_sub(MAX_UNCLAIMED as u32);
            self.results.retain(|number, _| !is_before(*number, first));
            self.given_up = Some(first);
        } else if self.given_up.is_some_and(|first| number.wrapping_sub(first) > 1 << 30) {
            self.given_up = None;
        }
    }

    pub(super) fn poll(&mut self) {
        for ((probes, number), size, stack) in self.done.try_iter() {
            self.unwound += 1;
            self.waiting = self.waiting.saturating_sub(size);
            if probes == self.probes {
                self.results.insert(number, Some(stack));
            }
        }
    }

    pub(super) fn pushed(&self) -> u64 {
        self.pushed
    }

    pub(super) fn unwound(&self) -> u64 {
        if self.worker.is_finished() { self.pushed } else { self.unwound }
    }

    pub(super) fn outcome(&self, number: u32) -> NativeOutcome {
        match self.results.get(&number) {
            Some(Some(stack)) => NativeOutcome::Unwound(Arc::clone(stack)),
            Some(None) => NativeOutcome::Lost,
            None if self.worker.is_finished() => NativeOutcome::Lost,
            None if self.given_up.is_some_and(|first| is_before(number, first)) => {
                NativeOutcome::Lost
            }
            None => NativeOutcome::Waiting,
        }
    }

    pub(super) fn take(&mut self, number: u32) -> NativeOutcome {
        let outcome = self.outcome(number);
        self.results.remove(&number);
        outcome
    }

    /// Call it while no events are pending.
    pub(super) fn forget_unclaimed(&mut self) {
        if self.results.len() > MAX_UNCLAIMED {
            self.results.clear();
        }
    }

    pub(super) fn restart_numbers(&mut self) {
        self.probes += 1;
        self.given_up = None;
        self.results.clear();
    }
}

/// Numbers wrap.
fn is_before(number: u32, first: u32) -> bool {
    number.wrapping_sub(first) > u32::MAX / 2
}

fn unwind_all(
    process: &Process,
    copies: &Receiver<NumberedCopy>,
    unwound: &Sender<UnwoundCopy>,
    stop: &StopSignal,
) {
    let memory = process.memory();
    let mut unwinder = RepeatedUnwinder::new(process, &memory);
    let is_wanted = |file: &str| PREPARED.iter().any(|begin| file.starts_with(begin));
    unwinder.prepare(is_wanted);
    loop {
        let first = match copies.recv_timeout(PREPARATION_INTERVAL) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                unwinder.prepare(is_wanted);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Thousands of copies may be left at the end.
        if stop.is_set() {
            return;
        }
        let batch: Vec<NumberedCopy> =
            std::iter::once(first).chain(copies.try_iter().take(MAX_BATCH - 1)).collect();
        let (numbers, stacks): (Vec<_>, Vec<_>) =
            batch.into_iter().map(|it| (it.number, it.copy)).unzip();
        for ((number, copy), stack) in
            numbers.into_iter().zip(&stacks).zip(unwinder.unwind(&stacks))
        {
            if unwound.send((number, COPY_OVERHEAD + copy.size(), stack)).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn start() -> NativeStacks {
        NativeStacks::start(Arc::new(Process::open(std::process::id()).unwrap())).unwrap()
    }

    fn wait(stacks: &mut NativeStacks) {
        let until = Instant::now() + Duration::from_secs(60);
        while stacks.unwound() < stacks.pushed() {
            assert!(Instant::now() < until, "it was never unwound");
            std::thread::yield_now();
            stacks.poll();
        }
    }

    #[test]
    fn only_a_copy_without_room_is_lost() {
        let mut stacks = start();
        stacks.push(1, [0; 17], &[0; 64], false);
        stacks.push(2, [0; 17], &vec![0; MAX_WAITING + 1], false);
        assert!(matches!(stacks.outcome(2), NativeOutcome::Lost));
        assert!(!matches!(stacks.outcome(1), NativeOutcome::Lost));
        wait(&mut stacks);
        assert_eq!(stacks.waiting, 0);
        match stacks.take(1) {
            NativeOutcome::Unwound(stack) => assert!(stack.incomplete.is_some()),
            other => panic!("{other:?}"),
        }
        assert!(matches!(stacks.outcome(1), NativeOutcome::Waiting), "it is forgotten");
    }

    #[test]
    fn copies_without_bytes_take_room_too() {
        let mut stacks = start();
        let room = MAX_WAITING / COPY_OVERHEAD;
        stacks.waiting = (room - 1) * COPY_OVERHEAD;
        stacks.push(1, [0; 17], &[], false);
        stacks.push(2, [0; 17], &[], false);
        assert!(!matches!(stacks.outcome(1), NativeOutcome::Lost));
        assert!(matches!(stacks.outcome(2), NativeOutcome::Lost));
    }

    #[test]
    fn unclaimed_results_are_dropped_while_others_arrive() {
        let mut stacks = start();
        stacks.waiting = MAX_WAITING; // None finds room, so each is a result at once.
        let first = u32::MAX - 1000;
        let last = first.wrapping_add(MAX_RESULTS as u32);
        for number in 0..=MAX_RESULTS as u32 {
            stacks.push(first.wrapping_add(number), [0; 17], &[], false);
        }
        assert_eq!(stacks.results.len(), MAX_UNCLAIMED + 1);
        assert!(matches!(stacks.take(last), NativeOutcome::Lost));
        assert!(matches!(stacks.outcome(first), NativeOutcome::Lost));
        assert!(matches!(stacks.outcome(last + 1), NativeOutcome::Waiting));
    }

    #[test]
    fn copies_of_old_probes_are_dropped() {
        let mut stacks = start();
        stacks.push(1, [0; 17], &[0; 64], false);
        stacks.restart_numbers();
        wait(&mut stacks);
        assert!(matches!(stacks.outcome(1), NativeOutcome::Waiting));
        stacks.push(1, [0; 17], &[0; 64], false);
        wait(&mut stacks);
        assert!(matches!(stacks.outcome(1), NativeOutcome::Unwound(_)));
    }
}
