//! Names polled data, and lists the candidate threads of deltas.

use rustc_hash::{FxHashMap, FxHashSet};

use super::poll::{PollPlan, RawBatch, RawChange, RawReading};
use crate::model::{
    CudaIndex, FollowTotals, FollowedChange, FollowedThread, Nanos, StackId, StackReading,
    StackTable, ThreadActivity, ThreadId, ThreadSample, ThreadWait,
};
use crate::python::{ChainFrame, ChainNamer, NamedChain, PollTarget, ThreadKey};
use crate::target::MemoryError;
use crate::torch::AllocationTotals;

/// Samples for which a thread is polled after it was last active.
const KEPT_SAMPLES: u32 = 200;

pub(super) type TotaledChange = (FollowedChange, AllocationTotals);

type PlannedPolls = (Vec<(ThreadKey, Option<u32>)>, Vec<CudaIndex>);

pub(super) struct Assembler {
    namer: ChainNamer,
    targets: Vec<PollTarget>,
    polled: FxHashMap<ThreadKey, u32>,
    /// Stacks of the last sample.
    stood: FxHashMap<ThreadId, StackId>,
    /// Threads seen with the allocator's lock, by kernel id.
    allocating: FxHashSet<u32>,
    devices: FxHashSet<CudaIndex>,
    planned: PlannedPolls,
    /// A thread started, or became active, since the last batch.
    newcomers: bool,
    single_changes: u64,
    steady_changes: u64,
    changes: u64,
}

impl Assembler {
    pub(super) fn new(namer: ChainNamer) -> Assembler {
        Assembler {
            namer,
            targets: Vec::new(),
            polled: FxHashMap::default(),
            stood: FxHashMap::default(),
            allocating: FxHashSet::default(),
            devices: FxHashSet::default(),
            planned: Default::default(),
            newcomers: false,
            single_changes: 0,
            steady_changes: 0,
            changes: 0,
        }
    }

    pub(super) fn forget_numbers(&mut self) {
        self.namer.forget_numbers();
    }

    pub(super) fn uses(&mut self, device: CudaIndex) {
        self.devices.insert(device);
    }

    pub(super) fn only_device(&self) -> Option<CudaIndex> {
        let mut devices = self.devices.iter();
        devices.next().filter(|_| devices.next().is_none()).copied()
    }

    pub(super) fn has(&self, device: CudaIndex) -> bool {
        self.devices.contains(&device)
    }

    pub(super) fn plan(
        &mut self,
        targets: Vec<PollTarget>,
        sample: &[ThreadSample],
    ) -> Option<PollPlan> {
        let before: FxHashSet<ThreadKey> = self.targets.iter().map(PollTarget::key).collect();
        let activity = |thread: ThreadId| {
            sample.iter().find(|seen| seen.thread == thread).map(|seen| seen.activity)
        };
        let moved = self.moved(sample);
        self.polled.retain(|key, _| targets.iter().any(|target| target.key() == *key));
        for target in &targets {
            let key = target.key();
            // A thread without frames may run C++ code of PyTorch. One that waits at each sample,
            // but elsewhere, works in between.
            let works = activity(target.thread) != Some(ThreadActivity::Idle)
                || moved.contains(&target.thread)
                || target.os_id.is_some_and(|id| self.allocating.contains(&(id as u32)));
            if works {
                let known = self.polled.insert(key, KEPT_SAMPLES).is_some();
                self.newcomers |= !known && !before.is_empty();
            } else if let Some(left) = self.polled.get_mut(&key) {
                *left -= 1;
                if *left == 0 {
                    self.polled.remove(&key);
                }
            }
        }
        self.targets = targets;
        let mut polled: Vec<PollTarget> =
            self.targets.iter().filter(|t| self.polled.contains_key(&t.key())).copied().collect();
        let rank = |target: &PollTarget| {
            let allocates = target.os_id.is_some_and(|id| self.allocating.contains(&(id as u32)));
            let left = self.polled.get(&target.key()).copied().unwrap_or(0);
            (!allocates, std::cmp::Reverse(left), target.thread)
        };
        polled.sort_by_key(rank);
        polled.truncate(FollowedChange::MAX_THREADS);
        polled.sort_by_key(|target| target.thread);
        let keys = polled.iter().map(|target| (target.key(), target.id_here)).collect();
        let mut devices: Vec<CudaIndex> = self.devices.iter().copied().collect();
        devices.sort_unstable();
        let planned = (keys, devices);
        if planned == self.planned {
            return None;
        }
        self.planned = planned;
        Some(PollPlan { targets: polled, ..PollPlan::default() })
    }

    /// Threads that have another stack than in the last sample.
    fn moved(&mut self, sample: &[ThreadSample]) -> FxHashSet<ThreadId> {
        let stood: FxHashMap<ThreadId, StackId> =
            sample.iter().map(|seen| (seen.thread, seen.stack)).collect();
        let before = std::mem::replace(&mut self.stood, stood);
        let is_elsewhere = |(thread, stack): (&ThreadId, &StackId)| {
            before.get(thread).is_some_and(|before| before != stack).then_some(*thread)
        };
        self.stood.iter().filter_map(is_elsewhere).collect()
    }

    pub(super) fn replan(&mut self) {
        self.planned = Default::default();
    }

    pub(super) fn changes(
        &mut self,
        batches: Vec<RawBatch>,
        table: &mut StackTable,
    ) -> Result<Vec<TotaledChange>, MemoryError> {
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        for id in batches.iter().flat_map(|b| &b.changes).flat_map(|c| c.counters.owners).flatten()
        {
            self.allocating.insert(id);
        }
        let mut changes = Vec::new();
        for batch in batches {
            let chains: Vec<&[ChainFrame]> = batch.chains.list.iter().map(|c| &**c).collect();
            let named = self.namer.name(&chains, &batch.copies, table)?;
            changes.extend(
                batch
                    .changes
                    .into_iter()
                    .map(|raw| (raw.counters.totals, self.change(raw, &named)))
                    .map(|(totals, change)| (change, totals)),
            );
        }
        self.newcomers = false;
        Ok(changes)
    }

    fn change(&mut self, raw: RawChange, named: &[Option<NamedChain>]) -> FollowedChange {
        let counters = &raw.counters;
        let mut owners: Vec<u32> = counters.owners.into_iter().flatten().collect();
        let mut threads = Vec::new();
        for thread in &raw.threads {
            let target = self.targets.iter().find(|target| target.key() == thread.key);
            let Some(target) = target else {
                continue;
            };
            let os_id = target.os_id.map(|id| id as u32);
            let held_lock = os_id.is_some_and(|id| owners.contains(&id));
            owners.retain(|&owner| Some(owner) != os_id);
            let before = reading(thread.before, named);
            let after = reading(thread.after, named);
            threads.push(listed(target.thread, [before, after], held_lock, thread.wait));
        }
        let gone = raw.threads.len() - threads.len();
        let change = FollowedChange {
            before: Nanos(raw.before),
            after: Nanos(raw.after),
            device: counters.device,
            small: counters.small,
            large: counters.large,
            live: counters.live,
            threads,
            others_possible: self.newcomers
                || !owners.is_empty()
                || gone > 0
                || counters.was_under_way,
            counters_torn: counters.counters_torn,
            totals_reset: counters.totals_reset,
            addresses: None,
        };
        self.changes += 1;
        self.single_changes += u64::from(change.is_single());
        let steady = |t: &FollowedThread| t.before == t.after && t.before.stack().is_some();
        self.steady_changes +=
            u64::from(!change.threads.is_empty() && change.threads.iter().all(steady));
        change
    }

    pub(super) fn complete(&self, totals: FollowTotals) -> FollowTotals {
        FollowTotals {
            changes: self.changes,
            single_changes: self.single_changes,
            steady_changes: self.steady_changes,
            ..totals
        }
    }
}

fn listed(
    thread: ThreadId,
    readings: [(StackReading, bool); 2],
    held_lock: bool,
    wait: ThreadWait,
) -> FollowedThread {
    let [(mut before, waits_before), (mut after, waits_after)] = readings;
    let [before_by_kernel, after_by_kernel] = wait.sides();
    let mut sides =
        ThreadWait::from([waits_before || before_by_kernel, waits_after || after_by_kernel]);
    if wait == ThreadWait::Throughout {
        // A thread that did not run has not moved.
        match (before, after) {
            (StackReading::Torn, StackReading::Whole(_)) => before = after,
            (StackReading::Whole(_), StackReading::Torn) => after = before,
            _ => {}
        }
        if before == after && before.stack().is_some() {
            sides = ThreadWait::Throughout;
        }
    }
    FollowedThread { thread, before, after, held_lock, wait: sides }
}

fn reading(raw: RawReading, named: &[Option<NamedChain>]) -> (StackReading, bool) {
    match raw {
        RawReading::NoFrames => (StackReading::NoFrames, false),
        RawReading::Torn => (StackReading::Torn, false),
        RawReading::Chain(number) => match named.get(number as usize).copied().flatten() {
            Some(chain) => (StackReading::Whole(chain.stack), chain.waits),
            None => (StackReading::Torn, false),
        },
    }
}
