//! One poll: copies counters and stacks in one system call.

use std::sync::Arc;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::model::{FollowedChange, ThreadWait};
use crate::python::{PollTarget, PolledStack, StackPoller, ThreadKey};
use crate::target::{AddressRange, Memory, MemoryError};
use crate::torch::CounterPoller;

use super::PollSignals;
use super::chains::{CodeCopies, FrameChains};
use super::counter_watch::{CopyMoment, CounterChange, CounterWatch, StackCopies};
use super::repetition::Repetition;
use super::thread_waits::ThreadWaits;

/// Unreadable addresses in one poll; each is forgotten before it is read again.
const MAX_FAULTS: u32 = 300;
/// Polls of the counters after each poll of the stacks, or after two if the first was not confirmed
/// at once. Counters are cheap to read; each read of a running frame makes the job fetch it back.
const COUNTER_POLLS: u32 = 6;
const STACK_POLLS: u32 = 2;
const MAX_CHANGES: usize = 1 << 15;

#[derive(Default, Clone)]
pub(super) struct PollPlan {
    pub(super) counters: Option<CounterPoller>,
    pub(super) targets: Vec<PollTarget>,
    /// Locks that a thread takes in the middle of its work.
    pub(super) working_locks: Vec<AddressRange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawReading {
    Chain(u32),
    Torn,
    NoFrames,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct RawThread {
    pub(super) key: ThreadKey,
    pub(super) before: RawReading,
    pub(super) after: RawReading,
    unconfirmed: bool,
    pub(super) wait: ThreadWait,
}

#[derive(Debug, Clone)]
pub(super) struct RawChange {
    /// When the poll with the stacks before it started, and that with those after it ended.
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) counters: CounterChange,
    pub(super) threads: Vec<RawThread>,
}

#[derive(Default)]
pub(super) struct RawBatch {
    pub(super) changes: Vec<RawChange>,
    pub(super) chains: FrameChains,
    pub(super) copies: FxHashMap<u64, Vec<u8>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PollOutcome {
    pub(super) changed: bool,
    pub(super) moved: bool,
}

pub(super) struct PollState {
    memory: Box<dyn Memory>,
    stacks: StackPoller,
    waits: ThreadWaits,
    watch: CounterWatch,
    changed: Vec<CounterChange>,
    spans: Vec<AddressRange>,
    now: Vec<u8>,
    before: Vec<u8>,
    /// `before` was read with the current spans.
    comparable: bool,
    counters_now: Vec<u8>,
    again: Vec<AddressRange>,
    again_copy: Vec<u8>,
    /// Polls of the stacks since the last sleep or counter poll, and counter polls since then.
    stack_polls: u32,
    counter_polls: u32,
    began_before: u64,
    batch: RawBatch,
    copies: CodeCopies,
    /// Deltas at the batch's end whose stacks the next poll may confirm.
    pending: usize,
    repetition: Repetition,
}

impl PollState {
    pub(super) fn new(
        memory: Box<dyn Memory>,
        stacks: StackPoller,
        waits: ThreadWaits,
        signals: Arc<PollSignals>,
    ) -> PollState {
        PollState {
            memory,
            stacks,
            waits,
            watch: CounterWatch::new(signals),
            changed: Vec::new(),
            spans: Vec::new(),
            now: Vec::new(),
            before: Vec::new(),
            comparable: false,
            counters_now: Vec::new(),
            again: Vec::new(),
            again_copy: Vec::new(),
            stack_polls: 0,
            counter_polls: 0,
            began_before: 0,
            batch: RawBatch::default(),
            copies: CodeCopies::default(),
            pending: 0,
            repetition: Repetition::new(),
        }
    }

    pub(super) fn set(&mut self, plan: PollPlan) {
        self.confirm(false);
        self.stacks.set_targets(&plan.targets);
        self.waits.set(&plan.targets, plan.working_locks);
        self.watch.set(plan.counters);
        self.lay_out();
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = &PollTarget> {
        self.stacks.targets()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.watch.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<RawBatch> {
        if self.pending > 0 {
            return None;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.copies = std::mem::take(&mut self.copies.new);
        Some(batch)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0 || !self.changed.is_empty()
    }

    fn lay_out(&mut self) {
        self.spans.clear();
        self.spans.extend(self.watch.spans());
        let counters = self.spans.iter().map(|span| span.len).sum();
        let stacks = self.stacks.push(&mut self.spans, counters);
        self.spans.extend(self.watch.spans());
        self.now.resize(stacks + counters, 0);
        self.before.resize(stacks + counters, 0);
        self.comparable = false;
    }

    fn takes_counters_alone(&mut self) -> bool {
        // A delta after the last stacks needs the next ones soon.
        if self.pending > 0 || !self.changed.is_empty() || self.stack_polls < STACK_POLLS {
            return false;
        }
        if self.counter_polls == COUNTER_POLLS {
            self.stack_polls = 0;
            return false;
        }
        self.counter_polls += 1;
        true
    }

    pub(super) fn rests(&mut self, now: Duration) -> bool {
        self.repetition.rests(now)
    }

    pub(super) fn sleeps(&mut self, clock: &impl Fn() -> u64) {
        self.waits.pause(clock);
        self.stack_polls = 0;
    }

    /// Whether a counter changed or a thread is inside the allocator.
    fn counters_move(&mut self) -> Result<bool, MemoryError> {
        let spans = self.spans.get(..self.watch.spans().count()).unwrap_or_default();
        self.counters_now.resize(spans.iter().map(|span| span.len).sum(), 0);
        match self.memory.read_spans(spans, &mut self.counters_now) {
            Ok(()) => {}
            // The full poll finds the cause.
            Err(MemoryError::Fault { .. }) => return Ok(true),
            Err(error) => return Err(error),
        }
        Ok(self.watch.see(&self.counters_now, CopyMoment::CountersOnly, &mut self.changed))
    }

    /// `clock` gives nanoseconds.
    pub(super) fn poll(&mut self, clock: &impl Fn() -> u64) -> Result<PollOutcome, MemoryError> {
        if self.takes_counters_alone() && !self.counters_move()? {
            return Ok(PollOutcome::default());
        }
        self.stack_polls += 1;
        self.counter_polls = 0;
        let mut began = clock();
        let mut faults = 0;
        loop {
            std::mem::swap(&mut self.now, &mut self.before);
            match self.memory.read_spans(&self.spans, &mut self.now) {
                Ok(()) => {
                    let before = self.comparable.then_some(&self.before[..]);
                    if !self.stacks.examine(&self.now, before) {
                        break;
                    }
                }
                Err(MemoryError::Fault { index, .. }) if faults < MAX_FAULTS => {
                    faults += 1;
                    let counters = self.watch.spans().count();
                    let is_stack = (counters..self.spans.len() - counters).contains(&index);
                    if is_stack {
                        self.stacks.fault(index);
                    } else {
                        self.watch.set(None);
                    }
                }
                Err(error) => return Err(error),
            }
            self.lay_out();
            began = clock();
        }
        let ended = clock();
        self.comparable = true;
        let counters_again = self.read_again()?;
        let mut outcome = self.compare(began, ended, clock);
        let copies = self.again_copy.get(counters_again..).unwrap_or_default();
        outcome.changed |= self.watch.see(copies, CopyMoment::CountersOnly, &mut self.changed);
        if outcome.changed {
            // These stacks are from before the deltas since they were copied.
            self.waits.check(clock);
        }
        self.began_before = began;
        if self.stacks.trim() {
            self.lay_out();
        }
        Ok(outcome)
    }

    /// Copies moved threads' innermost frames again: what is equal was true at one moment. Returns
    /// where the second copy of the counters starts.
    fn read_again(&mut self) -> Result<usize, MemoryError> {
        self.again.clear();
        let mut frames = self.stacks.push_again(&mut self.again);
        if frames > 0 {
            self.again.extend(self.watch.spans());
            self.again_copy.resize(self.again.iter().map(|span| span.len).sum(), 0);
            match self.memory.read_spans(&self.again, &mut self.again_copy) {
                Ok(()) => self.stacks.confirm(&self.again_copy),
                // If a frame is gone, the next poll has to confirm.
                Err(MemoryError::Fault { .. }) => frames = self.again_copy.len(),
                Err(error) => return Err(error),
            }
        } else {
            self.again_copy.clear();
        }
        if self.stacks.is_confirmed() {
            self.stack_polls = STACK_POLLS;
        }
        Ok(frames)
    }

    fn compare(&mut self, began: u64, ended: u64, clock: &impl Fn() -> u64) -> PollOutcome {
        self.confirm(true);
        let stacks = &self.stacks;
        self.waits.polled(began, ended, |key| stacks.moved_by_key(key));
        let threads = self.stacks.len();
        let moved = (0..threads).any(|number| self.stacks.moved(number));
        let stacks = StackCopies { threads, took: ended.saturating_sub(began) };
        let len = self.watch.spans().map(|span| span.len).sum();
        let copies = self.now.get(..len).unwrap_or_default();
        let ahead = self.watch.see(copies, CopyMoment::BeforeStacks(stacks), &mut self.changed);
        let changes = std::mem::take(&mut self.changed);
        let mut outcome = PollOutcome { changed: ahead, moved };
        outcome.changed |= !changes.is_empty();
        if outcome.changed {
            self.waits.check(clock);
        }
        for counters in changes {
            let (before, threads) = (self.began_before, Vec::new());
            self.change(RawChange { before, after: ended, counters, threads });
        }
        let copies = self.now.get(self.now.len().saturating_sub(len)..).unwrap_or_default();
        // The next poll has the stacks after this delta.
        outcome.changed |=
            self.watch.see(copies, CopyMoment::AfterStacks(stacks), &mut self.changed);
        outcome
    }

    fn change(&mut self, mut change: RawChange) {
        let CounterChange { device, live, .. } = change.counters;
        self.repetition.observe(device.0, live, change.counters.blocks());
        if self.batch.changes.len() >= MAX_CHANGES || self.batch.chains.is_full() {
            return self.join(change);
        }
        let keys: Vec<ThreadKey> =
            self.stacks.targets().take(FollowedChange::MAX_THREADS).map(PollTarget::key).collect();
        for (number, key) in keys.into_iter().enumerate() {
            let (before, _) = self.reading(number, false);
            let (after, unconfirmed) = self.reading(number, true);
            let wait = self.waits.wait(key, change.before);
            change.threads.push(RawThread { key, before, after, unconfirmed, wait });
        }
        if self.pending > 0 || change.threads.iter().any(|thread| thread.unconfirmed) {
            self.pending += 1;
        }
        self.batch.changes.push(change);
    }

    /// Merges deltas: there is no more room.
    fn join(&mut self, change: RawChange) {
        let device = change.counters.device;
        let last = self.batch.changes.iter_mut().rev().find(|kept| kept.counters.device == device);
        let Some(last) = last else { return };
        last.after = change.after;
        last.counters.join(&change.counters);
        for thread in &mut last.threads {
            (thread.after, thread.unconfirmed) = (RawReading::Torn, false);
            thread.wait = ThreadWait::from([thread.wait.sides()[0], false]);
        }
    }

    fn reading(&mut self, number: usize, last: bool) -> (RawReading, bool) {
        let PollState { stacks, batch, copies, memory, .. } = self;
        let chain = match if last { stacks.now(number) } else { stacks.before(number) } {
            PolledStack::NoFrames => return (RawReading::NoFrames, false),
            PolledStack::Torn => return (RawReading::Torn, false),
            PolledStack::Unconfirmed(_) if !last => return (RawReading::Torn, false),
            PolledStack::Unconfirmed(frames) => (batch.chains.number(frames), true),
            PolledStack::Frames(frames) => (batch.chains.number(frames), false),
        };
        let frames = &batch.chains.list[chain.0 as usize];
        copies.meet(frames, stacks, &**memory);
        (RawReading::Chain(chain.0), chain.1)
    }

    fn confirm(&mut self, polled: bool) {
        if self.pending == 0 {
            return;
        }
        let from = self.batch.changes.len() - self.pending;
        self.pending = 0;
        let stacks = &mut self.stacks;
        for change in &mut self.batch.changes[from..] {
            for (number, thread) in change.threads.iter_mut().enumerate() {
                if std::mem::take(&mut thread.unconfirmed)
                    && !(polled && matches!(stacks.before(number), PolledStack::Frames(_)))
                {
                    thread.after = RawReading::Torn;
                }
            }
        }
    }
}
