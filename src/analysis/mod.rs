//! Turns `model::Record`s in recorded order into answers: attribution, peak, timeline, lines,
//! folds.
//!
//! May import `model`, `ownership`, `std`, the hasher and `thiserror`. Never knows a clock, a file
//! or a process, and never holds memory per sample. Start reading at [`Profile`];
//! `attribution/rules.rs` has the attribution rule.

mod attribution;
mod autograd;
mod blocks;
mod exact;
mod findings;
pub mod flame;
mod folded;
mod followed;
mod iterations;
pub mod lines;
mod live;
mod oom;
mod owners;
pub mod peak;
mod profile;
pub mod report;
mod statements;

pub use attribution::attributed_snapshot::{AttributedSnapshot, Moment};
pub use attribution::evidence::Evidence;
pub use attribution::losses::{Loss, LossCounts};
pub use attribution::sample_window::ThreadChoice;
pub use autograd::autograd_outputs::results;
pub use autograd::modelsize::{ModelSize, model_sizes};
pub use autograd::saved_tensors::{NodeClass, SavedSummary, saved};
pub use autograd::trumpy::{BackwardMemory, LossMemory, losses, memory_for_backward};
pub use blocks::fragmentation::{Fragmentation, FreeBlocks, SegmentSum, SizeClass};
pub use blocks::free_fit::{FreeFit, UnusableBlocks, UnusableReason};
pub use blocks::idle_streams::IdleStreams;
pub use blocks::moment_blocks::{BlockEvent, BlocksBuilder, DeviceBlocks, MomentBlocks};
pub use blocks::private_pools::{PrivatePool, private_pools};
pub use blocks::stream_blocks::StreamMemory;
pub use exact::warning::RecordingWarning;
pub use exact::{
    ByteBalance, CounterAgreement, ExactProfile, LineDoubt, RefusalTotals, UnknownReason,
};
pub use findings::{
    CacheFacts, Finding, FindingFacts, GpuFacts, HoldingCycle, ReservedIn, findings,
};
pub use flame::time_range::{OomMoment, TimeRange};
pub use folded::time_resolution::TimeResolution;
pub use folded::{
    AllocatedStack, FoldError, FoldOptions, FoldedProfile, FoldedStack, MemoryGroup, PseudoFrame,
    StackLabel,
};
pub use iterations::allocation_period::{AllocationPeriod, PeriodFinder};
pub use iterations::clock::{IterationClock, MarkerLine};
pub use iterations::iteration::{
    Iteration, IterationEnd, IterationLevels, IterationOwners, ParameterBytes,
};
pub use lines::group_diff::{function_changes, ownership_changes, stack_changes};
pub use lines::line_diff::{ChangedPlace, ComparedMoment, MemoryChange, StackStep, line_changes};
pub use lines::ranking::{LineOrder, LineRanking, RankedLine};
pub use lines::ranks::{RankFunction, RankRow, RankTable, RankValues};
pub use lines::{BoundedValue, LineCell, LineError, LineFunction, LineRow, LineTable};
pub use live::device_breakdown::DeviceBreakdown;
pub use live::live_profile::{
    IsLibrary, LiveCounts, LiveLine, LiveProfile, LiveRows, LiveStack, SharedProfile,
};
pub use live::observed_device::{FailureCount, ObservedDevice};
pub use live::odd_rank::{OddRank, RankHolding, odd_rank};
pub use live::process_snapshot::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
pub use live::reserved_growth::ReservedGrowth;
pub use live::sleep_shares::{SleepState, TagShare};
pub use live::usage_history::{PeakUsage, UsageHistory};
pub use oom::oom_message::{free_on_device, requested_bytes};
pub use oom::oom_report::{
    AllocatorCache, FreeClass, OomBuilder, OomDevice, OomReport, OomThread, RefusedAllocation,
};
pub use oom::trigger::{TriggerCondition, TriggerWatch, UnknownCondition};
pub use owners::growth::{GrowthRise, GrowthWatch, LineGrowth, OwnerGrowth};
pub use owners::owner_groups::{
    GroupSize, NO_TENSOR, OwnerChange, OwnerGroup, OwnerKind, OwnerPattern, in_no_tensor,
    owner_changes, owner_groups, recorded_owner_groups,
};
pub use owners::ownership::{OwnerPart, OwnerStacks};
pub use owners::storage_changes::{StorageChange, changes};
pub use peak::{HighestLevel, KnownMoment};
pub use profile::counter_samples::{CounterSample, CounterSamples};
pub use profile::high_water::{HighWater, PeakTime};
pub use profile::memory::ProfileLimit;
pub use profile::timeline::{Timeline, TimelinePoint};
pub use profile::totals::TotalsCounter;
pub use profile::{Profile, UsagePeak};
