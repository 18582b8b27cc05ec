//! Which polled threads wait, according to the kernel. Asked at a delta, or before polls pause.
//!
//! The answer takes 0.3 µs, or 2 µs for a thread that has begun to wait.

use std::sync::Arc;

use crate::model::ThreadWait;
use crate::python::{PollTarget, ThreadKey};
use crate::target::{AddressRange, KernelWait, Process, ThreadTurns, ThreadWatch};

/// A running thread is checked again after these nanoseconds, or once polls have paused.
const RUNS_FOR: u64 = 10_000;
/// A longer gap (nanoseconds) between polls of the stacks is a pause.
const PAUSE: u64 = 30_000;

pub(super) struct ThreadWaits {
    process: Arc<Process>,
    working: Vec<AddressRange>,
    threads: Vec<WatchedThread>,
    polled: u64,
    checked: bool,
}

struct WatchedThread {
    key: ThreadKey,
    id: Option<u32>,
    watch: Option<ThreadWatch>,
    off: Option<OffProcessor>,
    /// It waited at the last poll of the stacks, and at the one before.
    now: bool,
    before: bool,
    checked_again: u64,
}

#[derive(Clone, Copy)]
struct OffProcessor {
    since: u64,
    turns: ThreadTurns,
    /// For something other than its own work.
    waits: bool,
}

impl ThreadWaits {
    pub(super) fn new(process: Arc<Process>) -> ThreadWaits {
        let (working, threads) = (Vec::new(), Vec::new());
        ThreadWaits { process, working, threads, polled: 0, checked: false }
    }

    /// `working` locks do not count as waiting.
    pub(super) fn set(&mut self, targets: &[PollTarget], working: Vec<AddressRange>) {
        self.working = working;
        let mut old = std::mem::take(&mut self.threads);
        for target in targets {
            let key = target.key();
            let known =
                old.iter().position(|thread| thread.key == key && thread.id == target.id_here);
            let watch = |id| ThreadWatch::open(&self.process, id);
            self.threads.push(match known {
                Some(at) => old.swap_remove(at),
                None => WatchedThread {
                    key,
                    id: target.id_here,
                    watch: target.id_here.and_then(watch),
                    off: None,
                    now: false,
                    before: false,
                    checked_again: 0,
                },
            });
        }
    }

    pub(super) fn polled(&mut self, began: u64, ended: u64, moved: impl Fn(ThreadKey) -> bool) {
        let paused = began.saturating_sub(self.polled) > PAUSE;
        self.polled = ended;
        self.checked = false;
        for thread in &mut self.threads {
            thread.before = thread.now;
            if paused {
                thread.checked_again = 0;
            }
            if moved(thread.key) {
                (thread.off, thread.now) = (None, false);
            }
        }
    }

    pub(super) fn check(&mut self, clock: &impl Fn() -> u64) {
        if !std::mem::replace(&mut self.checked, true) {
            for thread in &mut self.threads {
                thread.check(&self.working, clock);
            }
        }
    }

    /// Polls pause: the last one has the stacks from before.
    pub(super) fn pause(&mut self, clock: &impl Fn() -> u64) {
        for thread in &mut self.threads {
            thread.checked_again = 0;
        }
        self.checked = false;
        self.check(clock);
    }

    /// At the last two polls; the first one started at `before`.
    pub(super) fn wait(&self, key: ThreadKey, before: u64) -> ThreadWait {
        let Some(thread) = self.threads.iter().find(|thread| thread.key == key) else {
            return ThreadWait::Unknown;
        };
        match thread.off {
            Some(off) if self.checked && off.since <= before => ThreadWait::Throughout,
            _ => ThreadWait::from([thread.before, thread.now]),
        }
    }
}

impl WatchedThread {
    fn check(&mut self, working: &[AddressRange], clock: &impl Fn() -> u64) {
        let Some(watch) = &self.watch else { return };
        if let Some(off) = self.off
            && watch.turns() == Some(off.turns)
        {
            self.now = off.waits;
            return;
        }
        (self.off, self.now) = (None, false);
        if clock() < self.checked_again {
            return;
        }
        self.off = off_processor(watch, working, clock);
        match self.off {
            Some(off) => self.now = off.waits,
            None => self.checked_again = clock() + RUNS_FOR,
        }
    }
}

fn off_processor(
    watch: &ThreadWatch,
    working: &[AddressRange],
    clock: &impl Fn() -> u64,
) -> Option<OffProcessor> {
    let is_off = |wait: &KernelWait| *wait != KernelWait::Working;
    watch.wait().filter(is_off)?;
    // Read before the check: if equal later, the thread has not run in between.
    let turns = watch.turns()?;
    let wait = watch.wait().filter(is_off)?;
    Some(OffProcessor { since: clock(), turns, waits: wait.is_idle(working) })
}
