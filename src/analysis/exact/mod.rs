//! Answers from exact events: every block known by the place that allocated it.

mod callers;
mod fold;
mod inherit;
mod ledger;
mod line_levels;
mod torch;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::model::events::Mark;
use crate::model::{
    AllocatorCounters, Arena, BlockMap, Change, CudaIndex, Event, Exact, FreedArena, Frees, Levels,
    Metric, Nanos, Pool, Reconciled, SiteId, StackId, StackSource, StackTable, StatField, StatKey,
    ThreadId,
};

use callers::Callers;
use ledger::{Ledger, NO_SITE, Owner, SITES, SMALL};
use line_levels::{LineLevels, Reached};
use torch::TorchDevice;

/// The most frees of unknown blocks remembered before the first map.
const MOST_EARLY: usize = 1 << 16;

/// What kind of memory a report is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryKind {
    /// Blocks of PyTorch's caching allocator on the device.
    Torch,
    /// What was obtained from the driver with `cuMemAlloc*`, of all devices.
    Driver,
    /// What was obtained from the driver with `cuMemCreate`, of all devices.
    Physical,
    /// `cuMemAllocManaged`.
    Managed,
    /// Page-locked host memory.
    Pinned,
}

/// How the events compared with the allocator's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Comparisons.
    pub checks: u64,
    /// Those in which all counts were equal.
    pub equal: u64,
    /// Allocations that the counters have and no event told, at the last comparison; negative the other way.
    pub allocations: i64,
    /// The same of bytes asked for.
    pub requested: i64,
}

/// Refused allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refused {
    /// How many.
    pub count: u64,
    /// The largest, in bytes.
    pub largest: u64,
}

/// What a site held and allocated.
pub(crate) struct Held {
    pub(crate) site: SiteId,
    /// Bytes held at the height.
    pub(crate) at_height: u64,
    /// Bytes allocated in all.
    pub(crate) allocated: u64,
    /// Allocations in all.
    pub(crate) count: u64,
}

/// Memory outside PyTorch's device blocks, by kind.
#[derive(Debug, Default)]
struct Other {
    ledger: Ledger,
    height: u64,
    height_at: Nanos,
}

/// Everything known from exact events so far.
#[derive(Debug)]
pub struct ExactProfile {
    exact: Exact,
    least_life: u64,
    torch: BTreeMap<CudaIndex, TorchDevice>,
    /// Which device a block of PyTorch is on, by its address: frees do not tell.
    device_of: FxHashMap<u64, CudaIndex>,
    others: BTreeMap<MemoryKind, Other>,
    lines: BTreeMap<CudaIndex, LineLevels>,
    callers: Callers,
    /// By site, whose lines its events count to.
    counts_to: Vec<Option<ThreadId>>,
    agreement: BTreeMap<CudaIndex, Agreement>,
    refused: Refused,
    marks: [u64; 3],
    unknown_frees: u64,
    /// Frees of unknown blocks before the first map, with their times in nanoseconds.
    freed_early: FxHashMap<u64, u64>,
    events: u64,
    with_stack: u64,
    last: Nanos,
    /// Whether records are missing since the last event.
    interrupted: bool,
}

impl ExactProfile {
    /// A profile that counts only blocks that live for `least_life` nanoseconds.
    pub(crate) fn new(exact: Exact, least_life: u64) -> ExactProfile {
        ExactProfile {
            exact,
            least_life,
            torch: BTreeMap::new(),
            device_of: FxHashMap::default(),
            others: BTreeMap::new(),
            lines: BTreeMap::new(),
            callers: Callers::default(),
            counts_to: Vec::new(),
            agreement: BTreeMap::new(),
            refused: Refused::default(),
            marks: [0; 3],
            unknown_frees: 0,
            freed_early: FxHashMap::default(),
            events: 0,
            with_stack: 0,
            last: Nanos(0),
            interrupted: false,
        }
    }

    /// Records are missing: who stood where is not known any more.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = true;
        self.freed_early.clear();
        self.lines.values_mut().for_each(LineLevels::interrupt);
    }

    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> u64 {
        let torch: u64 = self.torch.values().map(TorchDevice::memory).sum();
        let others: u64 = self.others.values().map(|other| other.ledger.memory()).sum();
        let lines: u64 = self.lines.values().map(LineLevels::memory).sum();
        let of = self.device_of.len() * 32 + self.freed_early.len() * 32 + self.counts_to.len() * 8;
        torch + others + lines + of as u64
    }

    /// Probes were placed once more.
    pub(crate) fn placed_again(&mut self, exact: Exact) {
        self.exact = exact;
    }

    /// `allocated_bytes` of a device, by the events so far.
    pub(crate) fn allocated_now(&self, device: CudaIndex) -> Option<i64> {
        self.torch.get(&device)?.allocated_now()
    }

    /// Takes an event; where a known block of PyTorch is freed, says on which device.
    pub(crate) fn take(&mut self, event: &Event, table: &StackTable) -> Option<CudaIndex> {
        self.last = self.last.max(event.time);
        self.interrupted = false;
        self.events += 1;
        let time = event.time;
        match event.change {
            Change::Allocated { arena: Arena::Torch(index), address, size, levels } => {
                let owner = self.owner(event.site, size, table);
                self.device(index).allocate(time, address, size, levels, owner);
                self.device_of.insert(address, index);
                if let Some(levels) = levels {
                    let who = self.who(event.site, table);
                    self.lines.entry(index).or_default().allocated(who, levels, table);
                }
            }
            Change::Freed { arena: FreedArena::Torch, address, .. } => {
                let index = self.device_of.remove(&address);
                let freed =
                    index.and_then(|index| Some((index, self.device(index).free(time, address)?)));
                let Some((index, block)) = freed else {
                    self.free_unknown(time, address);
                    return None;
                };
                // Only frees with stacks say anything of lines.
                if event.site.is_some() {
                    let who = self.who(event.site, table);
                    self.lines.entry(index).or_default().freed(who, block.size, table);
                }
                return Some(index);
            }
            Change::Allocated { arena, address, size, .. } => {
                let kind = kind_of(arena)?;
                let owner = self.owner(event.site, size, table);
                let least_life = self.least_life;
                let other = self.others.entry(kind).or_insert_with(|| Other {
                    ledger: Ledger::new(least_life),
                    ..Other::default()
                });
                other.ledger.allocate(address, size, owner, time.0);
                if other.ledger.total > other.height {
                    (other.height, other.height_at) = (other.ledger.total, time);
                    other.ledger.reach(time.0);
                }
            }
            Change::Freed { arena, address, .. } => {
                let kinds: &[MemoryKind] = match arena {
                    FreedArena::Driver => &[MemoryKind::Driver, MemoryKind::Managed],
                    FreedArena::Physical => &[MemoryKind::Physical],
                    FreedArena::PinnedHost => &[MemoryKind::Pinned],
                    FreedArena::Mapping | FreedArena::Torch => return None,
                };
                // One that is not known was allocated before the recording.
                for kind in kinds {
                    if let Some(other) = self.others.get_mut(kind)
                        && other.ledger.free(address, time.0).is_some()
                    {
                        break;
                    }
                }
            }
            Change::Failed { size, .. } => {
                self.refused.count += 1;
                self.refused.largest = self.refused.largest.max(size);
            }
            Change::Marked(mark) => {
                self.marks[match mark {
                    Mark::ContextCreated => 0,
                    Mark::ModuleLoaded => 1,
                    Mark::LibraryLoaded => 2,
                }] += 1;
            }
        }
        None
    }

    fn device(&mut self, index: CudaIndex) -> &mut TorchDevice {
        let (least_life, from_maps) = (self.least_life, self.exact.frees == Frees::Maps);
        self.torch.entry(index).or_insert_with(|| TorchDevice::new(least_life, from_maps))
    }

    /// Whom an allocation of `size` bytes belongs to, and for how many of its like it stands.
    fn owner(&mut self, site: Option<SiteId>, size: u64, table: &StackTable) -> Owner {
        let Some(id) = site else { return Owner::just(NO_SITE) };
        let account = SITES + id.0 as usize;
        let taken = table.get_site(id).is_some_and(|s| s.source != StackSource::NotTaken);
        self.with_stack += u64::from(taken);
        let every = self.exact.stacks_every;
        if every == 0 {
            return Owner::just(account);
        }
        if taken {
            // The chance that one of its bytes was drawn.
            let chance = -(-(size as f64) / every as f64).exp_m1();
            return Owner { account, stands_for: 1.0 / chance.max(1e-12) };
        }
        let small = size < self.exact.stacks_from;
        if small { Owner::just(SMALL) } else { Owner { account, stands_for: 0.0 } }
    }

    /// A free of a block that neither an event nor a map told of.
    fn free_unknown(&mut self, time: Nanos, address: u64) {
        if !self.torch.is_empty() && self.torch.values().all(|torch| torch.last_map.is_some()) {
            self.unknown_frees += 1;
            return;
        }
        // Before the first map it is most likely a block from before the recording.
        if self.freed_early.len() < MOST_EARLY {
            self.freed_early.insert(address, time.0);
        }
    }

    /// The counters, read by themselves.
    pub(crate) fn take_counters(&mut self, index: CudaIndex, counters: &AllocatorCounters) {
        let levels = Levels {
            allocated: counters.allocated(),
            peak: counters.max_allocated(),
            reserved: counters.reserved(),
            active: counters.stat(Metric::ActiveBytes, Pool::All).current,
        };
        self.device(index).begin(levels);
        self.lines.entry(index).or_default().saw(levels);
    }

    /// The thread and the stack that an event counts to.
    fn who(
        &mut self,
        site: Option<SiteId>,
        table: &StackTable,
    ) -> Option<(ThreadId, Option<StackId>)> {
        let id = site?;
        let thread = self.counts_to(id, table)?;
        Some((thread, table.get_site(id).and_then(|site| site.stack)))
    }

    /// The thread to whose lines the events of a site count: the one whose stack it is.
    fn counts_to(&mut self, id: SiteId, table: &StackTable) -> Option<ThreadId> {
        let index = id.0 as usize;
        if let Some(Some(known)) = self.counts_to.get(index) {
            return Some(*known);
        }
        let site = table.get_site(id)?;
        let thread = match (site.source, site.stack) {
            (StackSource::Backward, Some(stack)) => {
                // Not remembered: its thread may show itself later.
                return Some(self.callers.of(stack, table).unwrap_or(site.thread));
            }
            (StackSource::Borrowed, Some(_)) => {
                table.threads().find(|(_, t)| t.main).map_or(site.thread, |(id, _)| id)
            }
            (_, Some(stack)) => {
                self.callers.saw(site.thread, stack, table);
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

    pub(crate) fn take_map(&mut self, map: &BlockMap) {
        self.last = self.last.max(map.time);
        if self.interrupted {
            // It says what lived at the end of a gap, which the inheritance says too, and with the makers.
            return;
        }
        let device = map.device;
        let freed_early = std::mem::take(&mut self.freed_early);
        self.device(device).take_map(map, &freed_early);
        if self.torch.values().any(|torch| torch.last_map.is_none()) {
            self.freed_early = freed_early;
        }
        for (_, block) in map.blocks() {
            if let Some(torch) = self.torch.get(&device)
                && torch.ledger.live.contains_key(&block.address)
            {
                self.device_of.insert(block.address, device);
            }
        }
    }

    pub(crate) fn take_reconciled(&mut self, reconciled: &Reconciled) {
        let agreement = self.agreement.entry(reconciled.device).or_default();
        agreement.checks += 1;
        agreement.allocations = reconciled.allocations;
        agreement.requested = reconciled.requested;
        let frees_equal = reconciled.frees.is_none_or(|frees| frees == 0);
        let equal = reconciled.allocations == 0 && reconciled.requested == 0 && frees_equal;
        agreement.equal += u64::from(equal);
    }

    /// How the events were obtained.
    pub fn exact(&self) -> &Exact {
        &self.exact
    }

    /// Events taken, of every kind.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How the events of a device compared with its counters.
    pub fn agreement(&self, device: CudaIndex) -> Option<Agreement> {
        self.agreement.get(&device).copied()
    }

    /// Allocations that the driver refused.
    pub fn refused(&self) -> Refused {
        self.refused
    }

    /// Contexts created, modules and libraries loaded.
    pub fn marks(&self) -> [u64; 3] {
        self.marks
    }

    /// Bytes held at the height and at the end of memory of this kind, besides PyTorch's blocks.
    pub fn other(&self, kind: MemoryKind) -> Option<(u64, u64)> {
        self.others.get(&kind).map(|other| (other.height, other.ledger.total))
    }

    /// Whether there are blocks of PyTorch.
    pub fn has_torch(&self) -> bool {
        !self.torch.is_empty()
    }

    /// The device's highest moment and its bytes.
    pub fn height(&self, device: CudaIndex) -> Option<(Nanos, u64)> {
        self.torch.get(&device)?.height.map(|height| (height.time, height.bytes))
    }

    /// Greatest peak that the allocator itself counted during the recording, as far as an event showed it.
    pub fn counted_peak(&self, device: CudaIndex) -> Option<u64> {
        Some(self.torch.get(&device)?.counted_peak?.max(0) as u64)
    }

    /// Blocks that the block maps showed to have been allocated, and to have gone, without an event.
    pub fn without_event(&self, device: CudaIndex) -> (u64, u64) {
        self.torch.get(&device).map_or((0, 0), |torch| (torch.found, torch.gone))
    }

    /// The devices with blocks of PyTorch.
    pub(crate) fn devices(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        self.torch.keys().copied()
    }

    /// What was reached on a device while each stack stood, by stack number.
    pub(crate) fn line_levels(&self, device: CudaIndex) -> Vec<Reached> {
        self.lines.get(&device).map_or_else(Vec::new, LineLevels::by_stack)
    }

    /// Allocations with a stack.
    pub fn with_stack(&self) -> u64 {
        self.with_stack
    }

    /// Whether the bytes of stacks are estimated from a sample of the allocations.
    pub fn is_estimated(&self) -> bool {
        self.exact.stacks_every > 0
    }

    /// Whether the stacks of frees are known.
    pub(crate) fn knows_freed(&self) -> bool {
        self.exact.frees == Frees::Stacks
    }

    /// Whether this statistic of lines follows from the events.
    pub(crate) fn tells(&self, key: StatKey) -> bool {
        use Metric::{ActiveBytes, AllocatedBytes, Allocation, ReservedBytes};
        let told = match (key.metric, key.field) {
            (AllocatedBytes | ReservedBytes | ActiveBytes, StatField::Peak) => true,
            (AllocatedBytes, StatField::Allocated) => true,
            (Allocation, StatField::Allocated) => !self.is_estimated(),
            (AllocatedBytes, StatField::Freed) => self.knows_freed(),
            _ => false,
        };
        told && key.pool == Pool::All
    }

    /// What each site held at the device's height and allocated in all.
    pub(crate) fn by_site(&self, device: CudaIndex) -> Vec<Held> {
        let Some(torch) = self.torch.get(&device) else { return Vec::new() };
        let at_height = self.bytes(&torch.ledger.at_height(self.last.0));
        let allocated = self.bytes(&torch.ledger.allocated());
        let counts = torch.ledger.accounts().iter().map(|account| account.count);
        at_height
            .into_iter()
            .zip(allocated)
            .zip(counts)
            .enumerate()
            .skip(SITES)
            .map(|(index, ((at_height, allocated), count))| Held {
                site: SiteId((index - SITES) as u32),
                at_height,
                allocated,
                count,
            })
            .collect()
    }

    /// Warnings for the head of a report.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (index, device) in &self.torch {
            let (found, gone) = (device.found, device.gone);
            if found + gone > 0 {
                all.push(format!(
                    "GPU {}: {found} blocks were allocated and {gone} freed without an event (seen in block maps)",
                    index.0
                ));
            }
            let excess = device.excess.max(device.excess_at_height());
            if excess > 0 {
                all.push(format!(
                    "GPU {}: known blocks exceed what the allocator counts by up to {excess} bytes: \
                     frees were not seen",
                    index.0
                ));
            }
            if device.maps_degraded > 0 {
                all.push(format!(
                    "GPU {}: {} of {} block maps were read while the job changed them",
                    index.0,
                    device.maps_degraded,
                    device.maps_degraded + device.maps
                ));
            }
        }
        if self.unknown_frees > 0 {
            all.push(format!(
                "{} blocks were freed whose allocation was not seen",
                self.unknown_frees
            ));
        }
        for (index, agreement) in &self.agreement {
            if agreement.equal < agreement.checks {
                all.push(format!(
                    "GPU {}: in {} of {} comparisons the allocator's counters differed from the events, last by {} allocations and {} bytes",
                    index.0,
                    agreement.checks - agreement.equal,
                    agreement.checks,
                    agreement.allocations,
                    agreement.requested
                ));
            }
        }
        all
    }
}

fn kind_of(arena: Arena) -> Option<MemoryKind> {
    match arena {
        Arena::Torch(_) => Some(MemoryKind::Torch),
        Arena::Driver(_) => Some(MemoryKind::Driver),
        Arena::Physical(_) => Some(MemoryKind::Physical),
        Arena::Managed => Some(MemoryKind::Managed),
        Arena::PinnedHost => Some(MemoryKind::Pinned),
        Arena::Mapping => None,
    }
}
