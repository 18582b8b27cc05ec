//! Exact events: every block with its allocation site.

mod before_owners;
mod books;
mod callers;
mod comparison;
mod early;
mod executions;
mod extent;
mod fold;
mod keyframe;
mod ledgers;
mod line_levels;
mod live_blocks;
mod native_frames;
mod other_memory;
mod report;
mod site_paths;
mod torch;
mod warning;

pub(crate) use keyframe::SourceTable;
pub use warning::RecordingWarning;

use crate::analysis::folded::MemoryGroup;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::DriverEvent;
use crate::model::{
    AddressSpace, CounterSnapshot, CudaIndex, Event, EventKind, ExactSettings, FreeTracking,
    MemoryKind, Nanos, SiteId, StackId, StackSource, StackTable, ThreadId,
};

pub use books::ByteBalance;
use callers::ThreadRoots;
use early::{EarlyEvents, SynthesizedLevels};
use line_levels::{LevelRange, LineLevels};
use live_blocks::{BlockOwner, NO_SITE, SMALL};
use other_memory::OtherMemory;
use torch::TorchDevice;

use before_owners::BeforeOwners;
pub(crate) use executions::ExecutionTable;
pub(crate) use extent::BlockStatistics;
pub(crate) use ledgers::AccountedBlock;
pub(crate) use line_levels::{ANYTHING, NOTHING, level_index};
pub(crate) use live_blocks::{OWNED, SITES};
pub use report::{LineDoubt, UnknownReason};

const MAX_EARLY_EVENTS: usize = 1 << 16;
/// No memory is larger: 256 TiB.
const MAX_ALLOCATION: u64 = 1 << 48;

/// Events compared with counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterAgreement {
    /// Number of comparisons.
    pub checks: u64,
    /// Comparisons without a difference.
    pub equal: u64,
    /// Allocations in the counters minus those in events, at the last comparison.
    pub allocations: i64,
    /// The same for requested bytes.
    pub requested: i64,
    /// The same for frees; 0 if unknown.
    pub frees: i64,
}

/// Refused allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RefusalTotals {
    /// Number of them.
    pub count: u64,
    /// Largest request, in bytes.
    pub largest: u64,
}

pub(crate) struct SiteUsage {
    pub(crate) site: SiteId,
    pub(crate) at_peak: u64,
    pub(crate) allocated: u64,
    pub(crate) count: u64,
    pub(crate) statistics: BlockStatistics,
}

/// Events by who allocated: PyTorch, or the driver.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventCounts {
    pub allocations: u64,
    pub frees: u64,
    pub driver_allocations: u64,
    pub driver_frees: u64,
}

impl EventCounts {
    fn add(&mut self, change: EventKind) {
        *match change {
            EventKind::Allocated { memory_kind: MemoryKind::Torch(_), .. } => &mut self.allocations,
            EventKind::Allocated { .. } => &mut self.driver_allocations,
            EventKind::Freed { memory_kind: AddressSpace::Torch, .. } => &mut self.frees,
            EventKind::Freed { .. } => &mut self.driver_frees,
            EventKind::Failed { .. } | EventKind::Marked(_) => return,
        } += 1;
    }
}

/// The result of exact events.
#[derive(Debug)]
pub struct ExactProfile {
    exact: ExactSettings,
    min_lifetime: u64,
    torch: BTreeMap<CudaIndex, TorchDevice>,
    /// Device of a block by address: frees do not say it.
    device_of: FxHashMap<u64, CudaIndex>,
    others: BTreeMap<MemoryGroup, OtherMemory>,
    /// `None` unless asked for: hundreds of bytes a stack.
    lines: Option<BTreeMap<CudaIndex, LineLevels>>,
    callers: ThreadRoots,
    /// By site: the thread whose lines its events count for.
    counts_to: Vec<Option<ThreadId>>,
    agreement: BTreeMap<CudaIndex, CounterAgreement>,
    refused: RefusalTotals,
    marks: [u64; 3],
    unknown_frees: u64,
    /// Frees of unknown blocks before the first snapshot, with times in nanoseconds.
    freed_early: FxHashMap<u64, u64>,
    /// No allocator existed when events began.
    starts_empty: bool,
    early: EarlyEvents,
    events: u64,
    counts: EventCounts,
    with_stack: u64,
    last: Nanos,
    /// Records are missing since the last event.
    interrupted: bool,
    before_owners: BeforeOwners,
}

impl ExactProfile {
    pub(crate) fn new(
        exact: ExactSettings,
        min_lifetime: u64,
        gathers_lines: bool,
    ) -> ExactProfile {
        ExactProfile {
            before_owners: BeforeOwners::default(),
            min_lifetime,
            torch: BTreeMap::new(),
            device_of: FxHashMap::default(),
            others: BTreeMap::new(),
            lines: gathers_lines.then(BTreeMap::new),
            callers: ThreadRoots::default(),
            counts_to: Vec::new(),
            agreement: BTreeMap::new(),
            refused: RefusalTotals::default(),
            marks: [0; 3],
            unknown_frees: 0,
            freed_early: FxHashMap::default(),
            starts_empty: exact.starts_empty,
            early: EarlyEvents::default(),
            events: 0,
            counts: EventCounts::default(),
            with_stack: 0,
            last: Nanos(0),
            interrupted: false,
            exact,
        }
    }

    /// The threads' positions are unknown now.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = true;
        self.freed_early.clear();
        // The events of later allocators are incomplete.
        (self.starts_empty, self.early) = (false, EarlyEvents::default());
        self.lines.iter_mut().flat_map(BTreeMap::values_mut).for_each(LineLevels::interrupt);
    }

    pub(crate) fn memory(&self) -> u64 {
        let torch: u64 = self.torch.values().map(TorchDevice::memory).sum();
        let others: u64 = self.others.values().map(|other| other.ledger.memory()).sum();
        let of = self.device_of.len() * 32 + self.freed_early.len() * 32 + self.counts_to.len() * 8;
        torch + others + self.line_memory() + of as u64
    }

    pub(crate) fn line_memory(&self) -> u64 {
        self.lines.iter().flat_map(BTreeMap::values).map(LineLevels::memory).sum()
    }

    /// In steps of some nanoseconds.
    pub(crate) fn work(&self) -> u64 {
        self.lines.iter().flat_map(BTreeMap::values).map(LineLevels::work).sum::<u64>()
            + self.callers.steps
    }

    /// Probes were placed again.
    pub(crate) fn on_settings(&mut self, exact: ExactSettings) {
        // Probes placed before the allocator existed saw all its events.
        self.starts_empty |= exact.starts_empty;
        self.exact = exact;
    }

    pub(crate) fn allocated_now(&self, device: CudaIndex) -> Option<i64> {
        self.torch.get(&device)?.allocated_now()
    }

    /// Returns the device of a freed PyTorch block.
    pub(crate) fn on_event(&mut self, event: &Event, table: &StackTable) -> Option<CudaIndex> {
        self.last = self.last.max(event.time);
        self.interrupted = false;
        self.events += 1;
        self.counts.add(event.change);
        if let EventKind::Allocated { size, block, .. } = event.change
            && size.max(block.unwrap_or(0)) > MAX_ALLOCATION
        {
            // Damaged, and sums would overflow.
            self.interrupted = true;
            return None;
        }
        let is_known = |index| self.torch.contains_key(&index);
        if self.starts_empty && self.early.holds(event, is_known) {
            if self.early.add(*event) {
                self.settle_early(table);
            }
            return None;
        }
        self.apply(event, None, table)
    }

    /// `synthesized`: levels for an event without them.
    fn apply(
        &mut self,
        event: &Event,
        synthesized: Option<SynthesizedLevels>,
        table: &StackTable,
    ) -> Option<CudaIndex> {
        match event.change {
            EventKind::Allocated { memory_kind: MemoryKind::Torch(index), .. } => {
                self.allocate_in_torch(index, event, synthesized, table);
            }
            EventKind::Allocated { .. } => self.allocate_elsewhere(event, table),
            EventKind::Freed { memory_kind: AddressSpace::Torch, address, .. } => {
                return self.free_in_torch(address, event, table);
            }
            EventKind::Freed { memory_kind, address, .. } => {
                self.free_elsewhere(memory_kind, address, event.time);
            }
            EventKind::Failed { size, .. } => {
                self.refused.count += 1;
                self.refused.largest = self.refused.largest.max(size);
            }
            EventKind::Marked(mark) => {
                self.marks[match mark {
                    DriverEvent::ContextCreated => 0,
                    DriverEvent::ModuleLoaded => 1,
                    DriverEvent::LibraryLoaded => 2,
                }] += 1;
            }
        }
        None
    }

    fn allocate_in_torch(
        &mut self,
        index: CudaIndex,
        event: &Event,
        synthesized: Option<SynthesizedLevels>,
        table: &StackTable,
    ) {
        let EventKind::Allocated { address, size, levels, block, .. } = event.change else {
            return;
        };
        let owner = self.owner(event.site, size, table);
        let who = self.who(event.site, table);
        let levels = synthesized.map_or(levels, |known| known.levels);
        let device = self.device(index);
        let extent = device.allocate(event.time, address, (size, block), levels, owner);
        let held = device.held();
        let span = match (synthesized, levels) {
            (Some(known), _) => {
                let mut span = known.span;
                span.set_held(held);
                span
            }
            (None, Some(levels)) => span(levels, held),
            (None, None) => LevelRange::UNKNOWN,
        };
        self.device_of.insert(address, index);
        self.correct_lines(index);
        if let Some(lines) = self.lines(index)
            && (levels.is_some() || synthesized.is_some())
        {
            lines.allocated(who, extent, span, table);
        }
    }

    /// Returns the block's device, if the block is known.
    fn free_in_torch(
        &mut self,
        address: u64,
        event: &Event,
        table: &StackTable,
    ) -> Option<CudaIndex> {
        // Only frees with stacks count for lines.
        let who = event.site.and_then(|_| self.who(event.site, table));
        let by_stack = who.and_then(|(_, stack)| stack);
        let index = self.device_of.remove(&address);
        let freed = index.and_then(|index| {
            Some((index, self.device(index).free(event.time, address, by_stack)?))
        });
        let Some((index, block)) = freed else {
            self.free_unknown(event.time, address);
            return None;
        };
        if let Some(lines) = self.lines(index) {
            lines.freed(who, block.extent(), table);
        }
        Some(index)
    }

    fn device(&mut self, index: CudaIndex) -> &mut TorchDevice {
        let (min_lifetime, from_snapshots) =
            (self.min_lifetime, self.exact.frees == FreeTracking::Snapshots);
        let (starts_empty, lines) = (self.starts_empty, &mut self.lines);
        self.torch.entry(index).or_insert_with(|| match starts_empty {
            true => {
                let device = TorchDevice::from_zero(min_lifetime, from_snapshots);
                if let Some(lines) = lines {
                    let span = span(CounterSnapshot::default(), device.held());
                    lines.entry(index).or_default().on_counters(span);
                }
                device
            }
            false => TorchDevice::new(min_lifetime, from_snapshots),
        })
    }

    fn lines(&mut self, index: CudaIndex) -> Option<&mut LineLevels> {
        Some(self.lines.as_mut()?.entry(index).or_default())
    }

    pub(crate) fn gathers_lines(&self) -> bool {
        self.lines.is_some()
    }

    fn owner(&mut self, site: Option<SiteId>, size: u64, table: &StackTable) -> BlockOwner {
        let Some(id) = site else { return BlockOwner::sole(NO_SITE) };
        let account = SITES + id.0 as usize;
        let taken = table.get_site(id).is_some_and(|s| s.source != StackSource::NotTaken);
        self.with_stack += u64::from(taken);
        let every = self.exact.stacks_every;
        if every == 0 {
            return BlockOwner::sole(account);
        }
        if taken {
            // Probability that one of its bytes was sampled.
            let chance = -(-(size as f64) / every as f64).exp_m1();
            return BlockOwner { account, stands_for: 1.0 / chance.max(1e-12) };
        }
        let small = size < self.exact.stacks_from;
        if small { BlockOwner::sole(SMALL) } else { BlockOwner { account, stands_for: 0.0 } }
    }

    fn free_unknown(&mut self, time: Nanos, address: u64) {
        self.torch.values_mut().for_each(TorchDevice::lose_track);
        if !self.torch.is_empty() && self.torch.values().all(|torch| torch.last_snapshot.is_some())
        {
            self.unknown_frees += 1;
            return;
        }
        // Before the first snapshot, it is probably older than the recording.
        if self.freed_early.len() < MAX_EARLY_EVENTS {
            self.freed_early.insert(address, time.0);
        }
    }

    fn who(
        &mut self,
        site: Option<SiteId>,
        table: &StackTable,
    ) -> Option<(ThreadId, Option<StackId>)> {
        let id = site.filter(|_| self.gathers_lines())?;
        let thread = self.counts_to(id, table)?;
        Some((thread, table.get_site(id).and_then(|site| site.stack)))
    }

    /// The thread whose lines count these events.
    fn counts_to(&mut self, id: SiteId, table: &StackTable) -> Option<ThreadId> {
        let index = id.0 as usize;
        if let Some(Some(known)) = self.counts_to.get(index) {
            return Some(*known);
        }
        let site = table.get_site(id)?;
        let thread = match (site.source, site.stack) {
            (StackSource::Backward, Some(stack)) => {
                // Not cached: its thread may appear later.
                return Some(self.callers.thread(stack, table).unwrap_or(site.thread));
            }
            (StackSource::Borrowed, Some(_)) => {
                table.threads().find(|(_, t)| t.main).map_or(site.thread, |(id, _)| id)
            }
            (_, Some(stack)) => {
                self.callers.observe(site.thread, stack, table);
                site.thread
            }
            (_, None) => site.thread,
        };
        if index >= self.counts_to.len() {
            self.counts_to.resize(index + 1, None);
        }
        self.counts_to[index] = Some(thread);
        Some(thread)
    }
}

fn kind_of(memory_kind: MemoryKind) -> Option<MemoryGroup> {
    match memory_kind {
        MemoryKind::Torch(_) => Some(MemoryGroup::Torch),
        MemoryKind::Driver(_) => Some(MemoryGroup::Driver),
        MemoryKind::Physical(_) => Some(MemoryGroup::Physical),
        MemoryKind::Managed => Some(MemoryGroup::Managed),
        MemoryKind::PinnedHost => Some(MemoryGroup::Pinned),
        MemoryKind::Mapping => None,
    }
}

fn span(levels: CounterSnapshot, held: Option<&BlockStatistics>) -> LevelRange {
    LevelRange::exactly([levels.allocated, levels.reserved, levels.active], held)
}
