//! What exact events tell a report: counts, comparisons, what is sure and what is not.

use rustc_hash::FxHashMap;

use super::fold::fit;
use super::line_levels::{LineLevels, StackPeak};
use super::live_blocks::SITES;
use super::{
    ByteBalance, CounterAgreement, ExactProfile, ExecutionTable, MemoryGroup, RefusalTotals,
    SiteUsage,
};
use crate::analysis::profile::warning::RecordingWarning;
use crate::model::{
    CudaIndex, ExactSettings, FreeTracking, Metric, Nanos, Pool, ProbeBackend, SiteId, StackId,
    StatField, StatKey,
};

impl ExactProfile {
    /// How the events were obtained.
    pub fn exact(&self) -> &ExactSettings {
        &self.exact
    }

    /// Events taken, of every kind.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// How the events of a device compared with its counters.
    pub fn agreement(&self, device: CudaIndex) -> Option<CounterAgreement> {
        self.agreement.get(&device).copied()
    }

    /// Allocations that the driver refused.
    pub fn refused(&self) -> RefusalTotals {
        self.refused
    }

    /// Contexts created, modules and libraries loaded.
    pub fn marks(&self) -> [u64; 3] {
        self.marks
    }

    /// Bytes held at the height and at the end of memory of this kind, besides PyTorch's blocks.
    pub fn other(&self, kind: MemoryGroup) -> Option<(u64, u64)> {
        self.others.get(&kind).map(|other| (other.peak, other.ledger.total))
    }

    /// Whether there are blocks of PyTorch.
    pub fn has_torch(&self) -> bool {
        !self.torch.is_empty()
    }

    /// The device's highest moment and its bytes.
    pub fn peak(&self, device: CudaIndex) -> Option<(Nanos, u64)> {
        self.torch.get(&device)?.peak.map(|peak| (peak.time, peak.bytes))
    }

    /// Greatest peak that the allocator itself counted during the recording, as far as an event showed it.
    pub fn counted_peak(&self, device: CudaIndex) -> Option<u64> {
        Some(self.torch.get(&device)?.counted_peak?.max(0) as u64)
    }

    /// Blocks that the snapshots showed to have been allocated, and to have gone, without an event.
    pub fn without_event(&self, device: CudaIndex) -> (u64, u64) {
        self.torch.get(&device).map_or((0, 0), |torch| (torch.found, torch.gone))
    }

    /// The devices with blocks of PyTorch.
    pub(crate) fn devices(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        self.torch.keys().copied()
    }

    /// What was reached on a device while each stack stood.
    pub(crate) fn line_levels(&self, device: CudaIndex) -> FxHashMap<StackId, StackPeak> {
        self.lines_of(device).map_or_else(FxHashMap::default, LineLevels::by_stack)
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
        self.exact.frees == FreeTracking::Stacks
    }

    /// How the executions of lines on a device ended, and what single ones did.
    pub(crate) fn executions(&self, device: CudaIndex) -> ExecutionTable {
        self.lines_of(device).map_or_else(ExecutionTable::default, LineLevels::ended)
    }

    fn lines_of(&self, device: CudaIndex) -> Option<&LineLevels> {
        self.lines.as_ref()?.get(&device)
    }

    /// Why a statistic of lines does not follow from the events of a device; `None` where it does.
    pub(crate) fn untold(&self, device: CudaIndex, key: StatKey) -> Option<UnknownReason> {
        use Metric::{
            Active, ActiveBytes, AllocatedBytes, Allocation, InactiveSplit, InactiveSplitBytes,
            RequestedBytes, ReservedBytes, Segment,
        };
        let is_level = matches!(key.field, StatField::Peak | StatField::Current);
        // The counters tell these with each event.
        let is_counted = is_level
            && key.pool == Pool::All
            && matches!(key.metric, AllocatedBytes | ReservedBytes | ActiveBytes);
        let had_pending = self.torch.get(&device).is_some_and(|torch| torch.had_pending);
        match (key.metric, key.field) {
            (Segment | InactiveSplit | InactiveSplitBytes, _) => Some(UnknownReason::NotInEvents),
            _ if is_counted && key.field == StatField::Peak => None,
            (ReservedBytes, _) if !is_counted => Some(UnknownReason::NotInEvents),
            (Active | ActiveBytes, field)
                if had_pending && !is_counted && field != StatField::Allocated =>
            {
                Some(UnknownReason::Pending)
            }
            (_, StatField::Freed) if !self.knows_freed() => Some(UnknownReason::FreesWithoutStacks),
            (_, StatField::Current) if self.exact.frees == FreeTracking::Snapshots => {
                Some(UnknownReason::FreesOfMaps)
            }
            (_, StatField::Peak) if self.exact.frees == FreeTracking::Snapshots => {
                Some(UnknownReason::FreesOfMaps)
            }
            (AllocatedBytes, StatField::Allocated) if key.pool == Pool::All => None,
            (
                Allocation | Active | AllocatedBytes | ActiveBytes | RequestedBytes,
                StatField::Allocated,
            ) if self.is_estimated() => Some(UnknownReason::SampledStacks),
            _ => None,
        }
    }

    /// The statistic of blocks that equals one of active blocks: they differ only while freed blocks wait for a stream.
    pub(crate) fn of_blocks(key: StatKey) -> Metric {
        match (key.metric, key.pool, key.field) {
            (Metric::ActiveBytes, Pool::All, StatField::Peak | StatField::Current) => key.metric,
            (Metric::ActiveBytes, ..) => Metric::AllocatedBytes,
            (Metric::Active, ..) => Metric::Allocation,
            (metric, ..) => metric,
        }
    }

    /// Whether freed blocks waited for other streams, so that active bytes may have gone down later than told.
    pub(crate) fn had_pending(&self, device: CudaIndex) -> bool {
        self.torch.get(&device).is_some_and(|torch| torch.had_pending)
    }

    /// Whether the size of a block was set right after it had been told.
    pub(crate) fn has_corrected(&self, device: CudaIndex) -> bool {
        self.torch.get(&device).is_some_and(|torch| torch.has_corrected)
    }

    /// Greatest reserved bytes that events of a device told of, and when.
    pub(crate) fn top_reserved(&self, device: CudaIndex) -> Option<(Nanos, i64)> {
        self.torch.get(&device)?.top_reserved
    }

    /// What comparing the bytes of all sites with the allocator's counters came to; `None` where that was not possible.
    pub fn balance(&self, device: CudaIndex) -> Option<ByteBalance> {
        self.torch.get(&device)?.balance()
    }

    /// Whether the stacks are those that sampling saw last: where the kernel allows no BPF, events come without.
    pub fn stacks_are_guessed(&self) -> bool {
        self.exact.backend == ProbeBackend::PerfSamples
    }

    /// Why no figure of a device's lines is sure; `None` where nothing speaks against them.
    pub(crate) fn doubt(&self, device: CudaIndex) -> Option<LineDoubt> {
        if self.stacks_are_guessed() {
            return Some(LineDoubt::GuessedStacks);
        }
        let agreement = self.agreement(device).unwrap_or_default();
        if (agreement.allocations, agreement.requested, agreement.frees) != (0, 0, 0) {
            return Some(LineDoubt::CountersDiffer);
        }
        let torch = self.torch.get(&device)?;
        if torch.balance().is_some_and(|balance| !balance.is_even()) {
            return Some(LineDoubt::BytesDiffer);
        }
        if torch.excess.max(torch.excess_at_peak()) > 0 || torch.found + torch.gone > 0 {
            return Some(LineDoubt::WithoutEvent);
        }
        torch.has_unconfirmed.then_some(LineDoubt::NotCompared)
    }

    /// What each site held at the device's height and allocated in all.
    pub(crate) fn by_site(&self, device: CudaIndex) -> Vec<SiteUsage> {
        let Some(torch) = self.torch.get(&device) else { return Vec::new() };
        let mut at_peak = self.bytes(&torch.ledger.at_peak(self.last.0));
        fit(&mut at_peak, torch.peak.map_or(u64::MAX, |peak| peak.bytes));
        let allocated = self.bytes(&torch.ledger.allocated());
        let counts =
            torch.ledger.accounts().iter().map(|account| (account.count, account.statistics));
        at_peak
            .into_iter()
            .zip(allocated)
            .zip(counts)
            .enumerate()
            .skip(SITES)
            .map(|(index, ((at_peak, allocated), (count, statistics)))| SiteUsage {
                site: SiteId((index - SITES) as u32),
                at_peak,
                allocated,
                count,
                statistics,
            })
            .collect()
    }

    /// Warnings for the head of a report.
    pub(crate) fn warnings(&self) -> Vec<RecordingWarning> {
        let mut all = Vec::new();
        for (&device, torch) in &self.torch {
            let (allocated, freed) = (torch.found, torch.gone);
            if allocated + freed > 0 {
                all.push(RecordingWarning::WithoutEvent { device, allocated, freed });
            }
            let bytes = torch.excess.max(torch.excess_at_peak());
            if bytes > 0 {
                all.push(RecordingWarning::Excess { device, bytes });
            }
            if let Some(balance) = torch.balance().filter(|balance| !balance.is_even()) {
                all.push(RecordingWarning::Unbalanced { device, balance });
            }
            if torch.has_unconfirmed && torch.balance().is_none() {
                all.push(RecordingWarning::NotCompared { device });
            }
            let torn = torch.snapshots_degraded;
            if torn > 0 {
                let all_read = torn + torch.snapshots;
                all.push(RecordingWarning::TornSnapshots { device, torn, all: all_read });
            }
        }
        if self.unknown_frees > 0 {
            all.push(RecordingWarning::UnknownFrees(self.unknown_frees));
        }
        for (&device, agreement) in &self.agreement {
            if agreement.equal < agreement.checks {
                all.push(RecordingWarning::CountersDiffer {
                    device,
                    differing: agreement.checks - agreement.equal,
                    checks: agreement.checks,
                    allocations: agreement.allocations,
                    bytes: agreement.requested,
                });
            }
        }
        all
    }
}

/// Why no figure of a line is sure. The text is that of `render`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineDoubt {
    /// So many events were lost.
    LostEvents(u64),
    /// The kernel allowed no BPF: stacks are those that sampling saw last.
    GuessedStacks,
    /// The events differ from the allocator's counters.
    CountersDiffer,
    /// The bytes of blocks differ from the allocator's counters.
    BytesDiffer,
    /// Some blocks came or went without an event.
    WithoutEvent,
    /// The first blocks came without counters, and were not compared with them later.
    NotCompared,
}

/// Why a statistic of a line is not told. The text is that of `render`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnknownReason {
    /// It does not follow from allocations and frees.
    NotInEvents,
    /// Frees were recorded without their stacks.
    FreesWithoutStacks,
    /// Frees were not recorded one by one.
    FreesOfMaps,
    /// Freed blocks waited for other streams: when they ceased to be active no event tells.
    Pending,
    /// Only some allocations have a stack.
    SampledStacks,
    /// Nothing was seen while the line was executed, if it was.
    NotSeen,
}
