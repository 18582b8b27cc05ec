//! From what a poller gathered to records: names, and which threads can have made each change.

use rustc_hash::{FxHashMap, FxHashSet};

use super::poll::{PollPlan, RawBatch, RawChange, RawReading};
use super::sleepers::SleepStates;
use crate::model::{
    CudaIndex, FollowTotals, FollowedChange, FollowedThread, Nanos, StackReading, StackTable,
    ThreadActivity, ThreadId, ThreadSample,
};
use crate::python::{ChainFrame, ChainNamer, NamedChain, PollTarget, ThreadKey};
use crate::target::{MemoryError, Process};
use crate::torch::AllocationTotals;

/// A thread is polled for this many samples after it was last seen doing anything.
const STAYS_FOR: u32 = 200;

/// A change, and what the allocator has allocated and freed in all after it.
pub(super) type TotaledChange = (FollowedChange, AllocationTotals);

/// Names what a poller gathered, and decides what is polled.
pub(super) struct Assembler {
    namer: ChainNamer,
    targets: Vec<PollTarget>,
    /// Threads polled, and for how many more samples.
    polled: FxHashMap<ThreadKey, u32>,
    /// Threads that were seen with the allocator's lock, as the target's kernel numbers them.
    allocating: FxHashSet<u32>,
    devices: FxHashSet<CudaIndex>,
    planned: (Vec<ThreadKey>, Vec<CudaIndex>),
    /// Whether a thread began, or began to do something, since the last changes were taken.
    newcomers: bool,
    sleepers: SleepStates,
    single_changes: u64,
    steady_changes: u64,
    changes: u64,
}

impl Assembler {
    /// One that has seen nothing.
    pub(super) fn new(namer: ChainNamer) -> Assembler {
        Assembler {
            namer,
            targets: Vec::new(),
            polled: FxHashMap::default(),
            allocating: FxHashSet::default(),
            devices: FxHashSet::default(),
            planned: Default::default(),
            newcomers: false,
            sleepers: SleepStates::default(),
            single_changes: 0,
            steady_changes: 0,
            changes: 0,
        }
    }

    /// Forgets the numbers it was given.
    pub(super) fn forget_numbers(&mut self) {
        self.namer.forget_numbers();
    }

    /// This device's allocator is in use.
    pub(super) fn uses(&mut self, device: CudaIndex) {
        self.devices.insert(device);
    }

    /// The device whose allocator is in use, if it is one.
    pub(super) fn only_device(&self) -> Option<CudaIndex> {
        let mut devices = self.devices.iter();
        devices.next().filter(|_| devices.next().is_none()).copied()
    }

    /// Whether it is known that this device's allocator is in use.
    pub(super) fn has(&self, device: CudaIndex) -> bool {
        self.devices.contains(&device)
    }

    /// Takes a sample of all threads. Returns what is to be polled from now on, if that is not what is polled already.
    pub(super) fn plan(
        &mut self,
        targets: Vec<PollTarget>,
        sample: &[ThreadSample],
    ) -> Option<PollPlan> {
        let before: FxHashSet<ThreadKey> = self.targets.iter().map(PollTarget::key).collect();
        let activity = |thread: ThreadId| {
            sample.iter().find(|seen| seen.thread == thread).map(|seen| seen.activity)
        };
        self.polled.retain(|key, _| targets.iter().any(|target| target.key() == *key));
        for target in &targets {
            let key = target.key();
            // One without frames may run C++ code of PyTorch.
            let works = activity(target.thread) != Some(ThreadActivity::Idle)
                || target.os_id.is_some_and(|id| self.allocating.contains(&(id as u32)));
            if works {
                let known = self.polled.insert(key, STAYS_FOR).is_some();
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
        // Those that are known to allocate first, then those that did something last.
        let rank = |target: &PollTarget| {
            let allocates = target.os_id.is_some_and(|id| self.allocating.contains(&(id as u32)));
            let left = self.polled.get(&target.key()).copied().unwrap_or(0);
            (!allocates, std::cmp::Reverse(left), target.thread)
        };
        polled.sort_by_key(rank);
        polled.truncate(FollowedChange::MAX_THREADS);
        polled.sort_by_key(|target| target.thread);
        let keys: Vec<ThreadKey> = polled.iter().map(PollTarget::key).collect();
        let mut devices: Vec<CudaIndex> = self.devices.iter().copied().collect();
        devices.sort_unstable();
        let planned = (keys, devices);
        if planned == self.planned {
            return None;
        }
        self.planned = planned;
        Some(PollPlan { counters: None, targets: polled })
    }

    /// What is planned was lost: the next call of [`Self::plan`] gives it again.
    pub(super) fn plan_anew(&mut self) {
        self.planned = Default::default();
    }

    /// Names what was gathered.
    pub(super) fn changes(
        &mut self,
        batches: Vec<RawBatch>,
        process: &Process,
        table: &mut StackTable,
    ) -> Result<Vec<TotaledChange>, MemoryError> {
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        for id in batches.iter().flat_map(|b| &b.changes).flat_map(|c| c.counters.owners).flatten()
        {
            self.allocating.insert(id);
        }
        match self.planned.0.len() {
            0 | 1 => self.sleepers.clear(),
            _ => {
                let polled = |target: &&PollTarget| self.planned.0.contains(&target.key());
                let targets: Vec<PollTarget> =
                    self.targets.iter().filter(polled).copied().collect();
                self.sleepers.look(process, &targets);
            }
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
        let mut waiting = Vec::new();
        let mut threads = Vec::new();
        for thread in &raw.threads {
            let target = self.targets.iter().find(|target| target.key() == thread.key);
            let Some(target) = target else {
                // It has ended since.
                continue;
            };
            let os_id = target.os_id.map(|id| id as u32);
            let held_lock = os_id.is_some_and(|id| owners.contains(&id));
            owners.retain(|&owner| Some(owner) != os_id);
            let (before, waits_before) = reading(thread.before, named);
            let (after, waits_after) = reading(thread.after, named);
            let entry = FollowedThread { thread: target.thread, before, after, held_lock };
            let waits = waits_before && waits_after || self.sleepers.slept(thread.key);
            if waits && !held_lock { waiting.push(entry) } else { threads.push(entry) }
        }
        // For C++ code without Python frames a thread may be waiting in Python.
        if threads.is_empty() || threads.iter().any(|t| is_empty(t.before) || is_empty(t.after)) {
            threads.append(&mut waiting);
        }
        let gone = raw.threads.len() - threads.len() - waiting.len();
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

    /// Adds what it knows to the sums over what a poller did.
    pub(super) fn complete(&self, totals: FollowTotals) -> FollowTotals {
        FollowTotals {
            changes: self.changes,
            single_changes: self.single_changes,
            steady_changes: self.steady_changes,
            ..totals
        }
    }
}

fn is_empty(reading: StackReading) -> bool {
    reading == StackReading::NoFrames
}

/// What a reading is once named, and whether it is a place known to wait.
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
