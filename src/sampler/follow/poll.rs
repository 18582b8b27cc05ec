//! One poll: the counters and the stacks in one system call, and what changed since the poll before.

use rustc_hash::FxHashMap;

use crate::model::{CounterDelta, CudaIndex, FollowedChange};
use crate::python::{PollTarget, PolledStack, StackPoller, ThreadKey};
use crate::target::{AddressRange, Memory, MemoryError};
use crate::torch::{AllocationTotals, CounterPoller, PolledCounters, PoolCounters};

use super::chains::{CodeCopies, FrameChains};

/// Counters that do not fit together in this many polls one after the other are taken as they are.
const MAX_UNFIT: u32 = 2000;
/// Places that cannot be read in one poll, each forgotten before it is read again.
const MAX_FAULTS: u32 = 300;
/// So many polls of the counters alone follow two polls of the stacks, which confirm each other. A counter is cheap to read and changes
/// seldom; a frame that is being executed is written all the time, and every poll that reads it makes the job fetch it back. So a change
/// is seen earlier, and the stacks are read right after it and often enough before.
const COUNTER_POLLS: u32 = 6;
const STACK_POLLS: u32 = 2;
/// So many threads' stacks are copied within some two microseconds.
const FEW_THREADS: usize = 2;
/// Changes kept until they are taken; what happens beyond becomes one change.
const MAX_CHANGES: usize = 1 << 15;

/// What is polled.
#[derive(Default, Clone)]
pub(super) struct PollPlan {
    /// The devices' counters.
    pub(super) counters: Option<CounterPoller>,
    /// The threads.
    pub(super) targets: Vec<PollTarget>,
}

/// A thread's stack at a poll, not yet named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawReading {
    Chain(u32),
    Torn,
    NoFrames,
}

/// A thread at a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct RawThread {
    pub(super) key: ThreadKey,
    pub(super) before: RawReading,
    pub(super) after: RawReading,
    /// Whether the next poll has still to confirm `after`.
    unconfirmed: bool,
}

/// A change, not yet named.
#[derive(Debug, Clone)]
pub(super) struct RawChange {
    pub(super) before: u64,
    pub(super) after: u64,
    pub(super) device: CudaIndex,
    pub(super) small: CounterDelta,
    pub(super) large: CounterDelta,
    pub(super) live: [i64; 2],
    /// What has been allocated and freed in all after it.
    pub(super) totals: AllocationTotals,
    pub(super) threads: Vec<RawThread>,
    /// Who held the allocator's lock at the two polls.
    pub(super) owners: [Option<u32>; 2],
    /// Whether it happened while the stacks before it were copied: they may be of after it. Where they are few, a thread that
    /// was inside the allocator ahead of that has not gone on yet.
    pub(super) was_under_way: bool,
    pub(super) counters_torn: bool,
    pub(super) totals_reset: bool,
}

/// What a poller gathered since it was last asked.
#[derive(Default)]
pub(super) struct RawBatch {
    pub(super) changes: Vec<RawChange>,
    pub(super) chains: FrameChains,
    /// Code objects met for the first time, as they were then.
    pub(super) copies: FxHashMap<u64, Vec<u8>>,
}

/// What the counters of one device were.
struct PolledDevice {
    device: CudaIndex,
    /// The last counters that fitted, and the bytes that tell of changes.
    counters: Option<PolledCounters>,
    changing_part: Vec<u8>,
    owner: Option<u32>,
    unfit: u32,
    /// Whether they changed while the last poll copied the stacks: these are then not of before the change that the next poll sees.
    moved_meanwhile: bool,
}

/// What one poll saw.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PollOutcome {
    /// Counters changed, or are just being changed.
    pub(super) changed: bool,
    /// A thread moved.
    pub(super) moved: bool,
    /// How many changes were seen.
    pub(super) changes: u64,
}

/// The state of a poller.
pub(super) struct PollState {
    memory: Box<dyn Memory>,
    stacks: StackPoller,
    counters: Option<CounterPoller>,
    devices: Vec<PolledDevice>,
    spans: Vec<AddressRange>,
    now: Vec<u8>,
    before: Vec<u8>,
    /// Whether `before` was read with the spans of now.
    comparable: bool,
    /// The counters alone, as the last poll of these read them.
    counters_now: Vec<u8>,
    /// Polls of the stacks since the last sleep or the last row of polls of the counters alone; and how many of these since then.
    stack_polls: u32,
    counter_polls: u32,
    /// When the poll before the last one began.
    began_before: u64,
    batch: RawBatch,
    copies: CodeCopies,
    /// Changes at the end of the batch whose stacks the next poll may confirm.
    pending: usize,
}

impl PollState {
    pub(super) fn new(memory: Box<dyn Memory>, stacks: StackPoller) -> PollState {
        PollState {
            memory,
            stacks,
            counters: None,
            devices: Vec::new(),
            spans: Vec::new(),
            now: Vec::new(),
            before: Vec::new(),
            comparable: false,
            counters_now: Vec::new(),
            stack_polls: 0,
            counter_polls: 0,
            began_before: 0,
            batch: RawBatch::default(),
            copies: CodeCopies::default(),
            pending: 0,
        }
    }

    /// Sets what is polled from now on.
    pub(super) fn set(&mut self, plan: PollPlan) {
        self.confirm(false);
        self.stacks.set_targets(&plan.targets);
        let mut old = std::mem::take(&mut self.devices);
        self.counters = plan.counters;
        self.devices = self
            .counters
            .iter()
            .flat_map(CounterPoller::devices)
            .map(|device| match old.iter().position(|state| state.device == device) {
                Some(at) => old.swap_remove(at),
                None => PolledDevice {
                    device,
                    counters: None,
                    changing_part: Vec::new(),
                    owner: None,
                    unfit: 0,
                    moved_meanwhile: false,
                },
            })
            .collect();
        self.lay_out();
    }

    /// Whether there is anything to poll.
    pub(super) fn is_idle(&self) -> bool {
        self.devices.is_empty()
    }

    /// What was gathered since the last time; `None` while the stacks of the last change are not confirmed yet.
    pub(super) fn take(&mut self) -> Option<RawBatch> {
        if self.pending > 0 {
            return None;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.copies = std::mem::take(&mut self.copies.new);
        Some(batch)
    }

    /// Whether the next poll is needed for what was seen by the last one.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    fn lay_out(&mut self) {
        self.spans.clear();
        self.spans.extend(self.counters.iter().flat_map(CounterPoller::spans));
        let bytes = self.spans.iter().map(|span| span.len).sum();
        let mut bytes = self.stacks.push(&mut self.spans, bytes);
        // What tells of changes once more: with many threads the stacks take long to copy.
        for span in self.counters.iter().flat_map(CounterPoller::changing_spans) {
            self.spans.push(span);
            bytes += span.len;
        }
        self.now.resize(bytes, 0);
        self.before.resize(bytes, 0);
        self.comparable = false;
    }

    /// Whether this poll reads the counters alone: the stacks were read just before.
    fn takes_counters_alone(&mut self) -> bool {
        if self.pending > 0 || self.stack_polls < STACK_POLLS {
            return false;
        }
        if self.counter_polls == COUNTER_POLLS {
            self.stack_polls = 0;
            return false;
        }
        self.counter_polls += 1;
        true
    }

    /// Polling sleeps: what the stacks are after that is not known.
    pub(super) fn sleeps(&mut self) {
        self.stack_polls = 0;
    }

    /// Reads the counters alone; `false` when they are what they were and nobody is inside the allocator.
    fn counters_move(&mut self) -> Result<bool, MemoryError> {
        let Some(counters) = &self.counters else { return Ok(true) };
        let spans = self.spans.get(..self.devices.len()).unwrap_or_default();
        self.counters_now.resize(spans.iter().map(|span| span.len).sum(), 0);
        match self.memory.read_spans(spans, &mut self.counters_now) {
            Ok(()) => {}
            // The poll of everything finds out what is the matter.
            Err(MemoryError::Fault { .. }) => return Ok(true),
            Err(error) => return Err(error),
        }
        let mut copies = &self.counters_now[..];
        Ok(self.devices.iter().zip(spans).any(|(state, span)| {
            let (copy, rest) = copies.split_at(span.len);
            copies = rest;
            let stands = state.counters.is_some()
                && counters.lock_owner(copy).is_none()
                && counters.changing_part(copy) == Some(&state.changing_part[..]);
            !stands
        }))
    }

    /// Polls once; `clock` tells the time in nanoseconds.
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
                    let devices = self.devices.len();
                    let is_stack = (devices..self.spans.len() - devices).contains(&index);
                    if is_stack {
                        self.stacks.fault(index);
                    } else {
                        // The allocator is gone; another plan follows soon.
                        self.counters = None;
                        self.devices.clear();
                    }
                }
                Err(error) => return Err(error),
            }
            self.lay_out();
            began = clock();
        }
        let ended = clock();
        self.comparable = true;
        let outcome = self.compare(ended);
        self.began_before = began;
        if self.stacks.trim() {
            self.lay_out();
        }
        Ok(outcome)
    }

    /// Finds what changed since the poll before.
    fn compare(&mut self, ended: u64) -> PollOutcome {
        self.confirm(true);
        let moved = (0..self.stacks.len()).any(|number| self.stacks.moved(number));
        let mut outcome = PollOutcome { changed: false, moved, changes: 0 };
        let Some(counters) = self.counters.take() else { return outcome };
        let mut devices = std::mem::take(&mut self.devices);
        let mut from = 0;
        let again: usize = counters.changing_spans().map(|span| span.len).sum();
        let mut again = self.now.len().saturating_sub(again);
        let threads = self.stacks.len();
        let spans = counters.spans().zip(counters.changing_spans());
        for (state, (span, changing)) in devices.iter_mut().zip(spans) {
            let copy = self.now.get(from..from + span.len).unwrap_or_default();
            from += span.len;
            let part = counters.changing_part(copy).unwrap_or_default();
            let later = self.now.get(again..again + changing.len).unwrap_or_default();
            again += changing.len;
            let moved_before = std::mem::replace(&mut state.moved_meanwhile, later != part);
            let owner = counters.lock_owner(copy);
            let owners = [std::mem::replace(&mut state.owner, owner), owner];
            // Somebody is inside the allocator: a change is near.
            outcome.changed |= owner.is_some();
            if state.counters.is_some() && part == state.changing_part {
                continue;
            }
            outcome.changed = true;
            let Some(new) = counters.decode(copy) else { continue };
            let was_unfit = state.unfit > 0;
            state.unfit += 1;
            let is_half = state.counters.is_some_and(|old| is_half_counted(&old, &new));
            if (!new.fit || is_half) && state.unfit < MAX_UNFIT {
                // A change is under way: it is complete before all stacks are copied.
                state.moved_meanwhile = true;
                continue;
            }
            state.unfit = 0;
            state.changing_part.clear();
            state.changing_part.extend_from_slice(part);
            let Some(old) = state.counters.replace(new) else { continue };
            let device = state.device;
            outcome.changes += 1;
            let [small, large] = [delta(&old.small, &new.small), delta(&old.large, &new.large)];
            // A poll that found the counters half changed has the stack of the last block alone, where there are others ahead of it.
            let misses_first = was_unfit && blocks(&small) + blocks(&large) != 1;
            self.change(RawChange {
                before: self.began_before,
                after: ended,
                totals_reset: was_reset(&old.small, &new.small)
                    || was_reset(&old.large, &new.large),
                small,
                large,
                device,
                live: [new.small.live, new.large.live],
                totals: new.totals(),
                threads: Vec::new(),
                owners,
                was_under_way: misses_first
                    || moved_before && stacks_may_be_later(owners[0], threads),
                counters_torn: !new.fit || is_half,
            });
        }
        self.counters = Some(counters);
        self.devices = devices;
        outcome
    }

    /// Keeps a change with the stacks of the last two polls.
    fn change(&mut self, mut change: RawChange) {
        if self.batch.changes.len() >= MAX_CHANGES || self.batch.chains.is_full() {
            return self.join(change);
        }
        let keys: Vec<ThreadKey> =
            self.stacks.targets().take(FollowedChange::MAX_THREADS).map(PollTarget::key).collect();
        for (number, key) in keys.into_iter().enumerate() {
            let (before, _) = self.reading(number, false);
            let (after, unconfirmed) = self.reading(number, true);
            change.threads.push(RawThread { key, before, after, unconfirmed });
        }
        self.pending += 1;
        self.batch.changes.push(change);
    }

    /// Adds a change to the last one, because there is no room for more.
    fn join(&mut self, change: RawChange) {
        let last = self.batch.changes.iter_mut().rev().find(|kept| kept.device == change.device);
        let Some(last) = last else { return };
        last.after = change.after;
        last.live = change.live;
        last.totals = change.totals;
        add(&mut last.small, &change.small);
        add(&mut last.large, &change.large);
        last.totals_reset |= change.totals_reset;
        last.counters_torn |= change.counters_torn;
        for thread in &mut last.threads {
            (thread.after, thread.unconfirmed) = (RawReading::Torn, false);
        }
    }

    /// The stack of a thread at the last poll, or at the one before, and whether the next poll has to confirm it.
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

    /// The stacks of changes seen by the poll before: this one confirms those that it found again.
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

/// Whether the stacks of `threads` threads, copied after the counters and while these changed, may be of after the change: `owner` was inside
/// the allocator when the counters were copied.
fn stacks_may_be_later(owner: Option<u32>, threads: usize) -> bool {
    owner.is_none() || threads > FEW_THREADS
}

/// How many blocks were allocated or freed.
fn blocks(delta: &CounterDelta) -> i64 {
    delta.allocations.saturating_add(delta.frees)
}

fn delta(old: &PoolCounters, new: &PoolCounters) -> CounterDelta {
    // After a reset the totals count from 0 again.
    let since = |old: i64, new: i64| if new < old { new } else { new - old };
    CounterDelta {
        allocations: since(old.allocations, new.allocations),
        frees: since(old.frees, new.frees),
        allocated_bytes: since(old.allocated_bytes, new.allocated_bytes),
        freed_bytes: since(old.freed_bytes, new.freed_bytes),
        requested_bytes: since(old.requested_bytes, new.requested_bytes),
        freed_requested_bytes: since(old.freed_requested_bytes, new.freed_requested_bytes),
    }
}

fn was_reset(old: &PoolCounters, new: &PoolCounters) -> bool {
    new.allocations < old.allocations
        || new.frees < old.frees
        || new.allocated_bytes < old.allocated_bytes
        || new.freed_bytes < old.freed_bytes
}

/// Whether some counters are those after a change and others still those before it: the allocator counts blocks first, then their bytes, then
/// the bytes asked for, and a copy is not made at one instant either.
fn is_half_counted(old: &PolledCounters, new: &PolledCounters) -> bool {
    [(&old.small, &new.small), (&old.large, &new.large)].into_iter().any(|(old, new)| {
        let delta = delta(old, new);
        let differ = |count: i64, bytes: i64| (count > 0) != (bytes > 0);
        differ(delta.allocations, delta.allocated_bytes)
            || differ(delta.frees, delta.freed_bytes)
            // Not so what was asked for by blocks freed: while another stream may use them, that stays.
            || differ(delta.allocations, delta.requested_bytes)
    })
}

fn add(sum: &mut CounterDelta, more: &CounterDelta) {
    sum.allocations += more.allocations;
    sum.frees += more.frees;
    sum.allocated_bytes += more.allocated_bytes;
    sum.freed_bytes += more.freed_bytes;
    sum.requested_bytes += more.requested_bytes;
    sum.freed_requested_bytes += more.freed_requested_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_copied_while_the_counters_changed_are_trusted_only_for_a_thread_caught_inside_the_allocator()
     {
        assert!(!stacks_may_be_later(Some(7), 1));
        assert!(!stacks_may_be_later(Some(7), FEW_THREADS));
        assert!(stacks_may_be_later(Some(7), FEW_THREADS + 1), "they take long to copy");
        assert!(stacks_may_be_later(None, 1), "it came and went meanwhile");
    }
}
