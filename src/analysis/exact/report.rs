//! What reports ask of exact events.

use rustc_hash::FxHashMap;

use super::fold::fit;
use super::line_levels::{LineLevels, StackPeak};
use super::live_blocks::{OWNED, SITES};
use super::{
    ByteBalance, CounterAgreement, EventCounts, ExactProfile, ExecutionTable, MemoryGroup,
    RefusalTotals, SiteUsage,
};
use crate::analysis::exact::warning::RecordingWarning;
use crate::model::{
    CudaIndex, ExactSettings, FreeTracking, Metric, Nanos, Pool, ProbeBackend, SiteId, StackId,
    StatField, StatKey,
};

impl ExactProfile {
    /// The recording's settings.
    pub fn exact(&self) -> &ExactSettings {
        &self.exact
    }

    /// Number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Allocations and frees in the events.
    pub fn counts(&self) -> EventCounts {
        self.counts
    }

    /// Comparison with a device's counters.
    pub fn agreement(&self, device: CudaIndex) -> Option<CounterAgreement> {
        self.agreement.get(&device).copied()
    }

    /// Refused allocations.
    pub fn refused(&self) -> RefusalTotals {
        self.refused
    }

    /// Contexts created, modules and libraries loaded.
    pub fn marks(&self) -> [u64; 3] {
        self.marks
    }

    /// Bytes at the peak and at the end, without PyTorch's blocks.
    pub fn other(&self, kind: MemoryGroup) -> Option<(u64, u64)> {
        self.others.get(&kind).map(|other| (other.peak, other.ledger.total))
    }

    /// PyTorch blocks exist.
    pub fn has_torch(&self) -> bool {
        !self.torch.is_empty()
    }

    /// Time and bytes.
    pub fn peak(&self, device: CudaIndex) -> Option<(Nanos, u64)> {
        self.torch.get(&device)?.peak.map(|peak| (peak.time, peak.bytes))
    }

    /// The site of the allocation that reached the peak.
    pub(crate) fn peak_site(&self, device: CudaIndex) -> Option<SiteId> {
        let account = self.torch.get(&device)?.peak?.account?;
        (SITES..OWNED).contains(&account).then(|| SiteId((account - SITES) as u32))
    }

    /// Greatest peak of the counter in events.
    pub fn counted_peak(&self, device: CudaIndex) -> Option<u64> {
        Some(self.torch.get(&device)?.counted_peak?.max(0) as u64)
    }

    /// Blocks allocated, and freed, without an event.
    pub fn without_event(&self, device: CudaIndex) -> (u64, u64) {
        self.torch.get(&device).map_or((0, 0), |torch| (torch.found, torch.gone))
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = CudaIndex> + '_ {
        self.torch.keys().copied()
    }

    pub(crate) fn line_levels(&self, device: CudaIndex) -> FxHashMap<StackId, StackPeak> {
        self.lines_of(device).map_or_else(FxHashMap::default, LineLevels::by_stack)
    }

    /// Number of allocations with a stack.
    pub fn with_stack(&self) -> u64 {
        self.with_stack
    }

    /// Bytes of stacks are estimated from a sample.
    pub fn is_estimated(&self) -> bool {
        self.exact.stacks_every > 0
    }

    pub(crate) fn knows_freed(&self) -> bool {
        self.exact.frees == FreeTracking::Stacks
    }

    pub(crate) fn executions(&self, device: CudaIndex) -> ExecutionTable {
        self.lines_of(device).map_or_else(ExecutionTable::default, LineLevels::ended)
    }

    fn lines_of(&self, device: CudaIndex) -> Option<&LineLevels> {
        self.lines.as_ref()?.get(&device)
    }

    pub(crate) fn unknown_reason(&self, device: CudaIndex, key: StatKey) -> Option<UnknownReason> {
        use Metric::{
            Active, ActiveBytes, AllocatedBytes, Allocation, InactiveSplit, InactiveSplitBytes,
            RequestedBytes, ReservedBytes, Segment,
        };
        let is_level = matches!(key.field, StatField::Peak | StatField::Current);
        // Every event has these counters.
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

    /// Active blocks differ from allocated ones only while freed blocks wait for a stream.
    pub(crate) fn of_blocks(key: StatKey) -> Metric {
        match (key.metric, key.pool, key.field) {
            (Metric::ActiveBytes, Pool::All, StatField::Peak | StatField::Current) => key.metric,
            (Metric::ActiveBytes, ..) => Metric::AllocatedBytes,
            (Metric::Active, ..) => Metric::Allocation,
            (metric, ..) => metric,
        }
    }

    /// Freed blocks waited for other streams, so active bytes fall later than recorded.
    pub(crate) fn had_pending(&self, device: CudaIndex) -> bool {
        self.torch.get(&device).is_some_and(|torch| torch.had_pending)
    }

    pub(crate) fn has_corrected(&self, device: CudaIndex) -> bool {
        self.torch.get(&device).is_some_and(|torch| torch.has_corrected)
    }

    pub(crate) fn greatest_reserved(&self, device: CudaIndex) -> Option<(Nanos, i64)> {
        self.torch.get(&device)?.greatest_reserved
    }

    /// Comparison of bytes with the counters, if possible.
    pub fn balance(&self, device: CudaIndex) -> Option<ByteBalance> {
        self.torch.get(&device)?.balance()
    }

    /// Without BPF, events get the last sampled stack.
    pub fn stacks_are_guessed(&self) -> bool {
        self.exact.backend == ProbeBackend::PerfSamples
    }

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
            // After one good snapshot, events tell all that follows.
            if torn > 0 && (torch.snapshots == 0 || torch.frees_from_snapshots) {
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

/// Why line values may be wrong. `render` has the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineDoubt {
    /// Number of lost events.
    LostEvents(u64),
    /// Without BPF, stacks are the last ones sampled.
    GuessedStacks,
    /// Events differ from the counters.
    CountersDiffer,
    /// Bytes differ from the counters.
    BytesDiffer,
    /// Blocks without an event.
    WithoutEvent,
    /// Early sizes were never confirmed by counters.
    NotCompared,
}

/// Why a statistic of a line is unknown. `render` has the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnknownReason {
    /// Events do not determine it.
    NotInEvents,
    /// Frees have no stacks.
    FreesWithoutStacks,
    /// Frees have no events.
    FreesOfMaps,
    /// Freed blocks waited for other streams, and their end has no event.
    Pending,
    /// Only a sample has stacks.
    SampledStacks,
    /// No event in the line.
    NotSeen,
}
