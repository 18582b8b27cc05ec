//! Turns `model::Record`s in recorded order into answers: attribution, peak, timeline, lines,
//! folds.
//!
//! May import `model`, `ownership`, `std`, the hasher and `thiserror`. Never knows a clock, a file
//! or a process, and never holds memory per sample. Start reading at [`Profile`];
//! `attribution/rules.rs` has the attribution rule.

mod attribution;
mod autograd;
mod blocks;
mod dry_run;
mod exact;
mod findings;
pub mod flame;
mod folded;
mod followed;
mod iterations;
pub mod lines;
mod live;
pub mod modules;
mod oom;
mod owners;
pub mod peak;
mod peak_phase;
mod phases;
mod profile;
pub mod report;
mod statements;
pub mod what_if;

pub use attribution::{AttributedSnapshot, Evidence, Loss, LossCounts, Moment, ThreadChoice};
pub use autograd::{
    BackwardMemory, LossMemory, ModelSize, NodeClass, SavedSummary, losses, memory_for_backward,
    model_sizes, results, saved,
};
pub use blocks::{
    BlockEvent, BlocksBuilder, CacheReason, DeviceBlocks, Fragmentation, FreeBlocks, FreeFit,
    IdleStreams, MomentBlocks, PrivatePool, SegmentSum, SizeClass, StreamMemory, UnusableBlocks,
    UnusableReason, cache_reasons, private_pools, users_label,
};
pub use dry_run::{RunFacts, RunHolder, RunInstant, RunMoment, RunOwner, run_moment};
pub use exact::{
    ByteBalance, CounterAgreement, EventCounts, ExactProfile, LineDoubt, RecordingWarning,
    RefusalTotals, UnknownReason,
};
pub use findings::{
    CacheFacts, Finding, FindingCommand, FindingFacts, GpuFacts, KINDS, LastingCopies,
    LastingGradients, findings, growth_rate,
};
pub use flame::TimeRange;
pub use folded::{
    AllocatedStack, EvidenceBytes, FoldError, FoldOptions, FoldedProfile, FoldedStack, MemoryGroup,
    PseudoFrame, StackLabel, TimeResolution,
};
pub use iterations::{
    AllocationPeriod, Iteration, IterationClock, IterationEnd, IterationLevels, IterationOwners,
    MarkerLine, ParameterBytes, PeriodFinder,
};
pub use lines::{
    BoundedValue, ChangedPlace, ComparedMoment, LineCell, LineError, LineFunction, LineOrder,
    LineRanking, LineRow, LineTable, MemoryChange, RankFunction, RankRow, RankTable, RankValues,
    RankedLine, StackStep, function_changes, line_changes, ownership_changes, stack_changes,
};
pub use live::{
    DeviceBreakdown, DeviceSnapshot, FailureCount, HostUse, IsLibrary, LiveCounts, LiveLine,
    LiveProfile, LiveRows, LiveStack, ObservedDevice, OddRank, OutsideTorch, PageLocked, PeakUsage,
    ProcessSnapshot, RankHolding, ReservedGrowth, SharedProfile, SleepState, TagShare,
    ThreadSnapshot, TimeToFull, UsageHistory, odd_rank,
};
pub use oom::{
    AllocatorCache, FreeClass, OomBuilder, OomDevice, OomMoment, OomReport, OomThread,
    RefusedAllocation, TriggerCondition, TriggerWatch, UnknownCondition, free_on_device,
    requested_bytes,
};
pub use owners::{
    GroupSize, GrowthRise, GrowthWatch, LineGrowth, NO_TENSOR, OwnerChange, OwnerFrees, OwnerGroup,
    OwnerGrowth, OwnerKind, OwnerPart, OwnerPattern, OwnerStacks, StorageChange, changes,
    cpp_label, in_no_tensor, owner_changes, owner_groups, raw_group_label, recorded_owner_groups,
};
pub use peak::{HighestLevel, KnownMoment};
pub use peak_phase::{PeakPhase, peak_phase};
pub use phases::RunPhase;
pub use profile::{
    CounterSample, CounterSamples, FirstReading, HighWater, PeakTime, Profile, ProfileLimit,
    Timeline, TimelinePoint, TotalsCounter, UsagePeak,
};
