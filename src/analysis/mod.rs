//! Answers from records: attribution, peak, timeline, per-line bounds, flamegraph folds.
//!
//! Turns `model::Record`s, in the order in which they were recorded, into answers.
//! May import `model`, `std`, the hasher and `thiserror`.
//! Never knows a clock, a file or a process, and never holds memory per sample.
//! Start reading at [`Profile`]; the rule that charges bytes to stacks is told at the top of `attribution/rules.rs`.

mod attribution;
mod autograd;
mod autograd_outputs;
mod counter_samples;
mod device;
mod device_breakdown;
mod exact;
mod exact_lines;
mod findings;
mod fold;
mod fold_limit;
mod follow_replay;
mod followed;
mod fragmentation;
mod free_fit;
mod freed_groups;
mod growth;
mod high_water;
mod iterations;
mod line_diff;
mod lines;
mod live_profile;
mod live_since;
mod modelsize;
mod moment_blocks;
mod oom_message;
mod oom_report;
mod owner_groups;
mod ownership;
mod process_snapshot;
mod profile;
mod saved_tensors;
mod storage_changes;
mod time_range;
mod timeline;
mod totals;
mod trigger;
mod trumpy;
mod usage_history;

pub use attribution::losses::{Loss, LossCounts};
pub use attribution::sample_window::ThreadChoice;
pub use autograd_outputs::results;
pub use counter_samples::{CounterSample, CounterSamples};
pub use device::{AttributedSnapshot, Moment};
pub use device_breakdown::DeviceBreakdown;
pub use exact::{
    ByteBalance, CounterAgreement, ExactProfile, MemoryGroup, RefusalTotals, UnknownReason,
};
pub use findings::{Finding, FindingFacts, GpuFacts, findings};
pub use fold::{
    AllocatedStack, FoldError, FoldOptions, FoldedProfile, FoldedStack, PseudoFrame, StackLabel,
    TimeResolution,
};
pub use fragmentation::{Fragmentation, SegmentSum, SizeClass};
pub use free_fit::{FreeFit, UnusableBlocks, UnusableReason};
pub use growth::{GrowthWatch, LineGrowth, OwnerGrowth, Rise};
pub use high_water::{HighWater, PeakTime};
pub use iterations::allocation_period::{AllocationPeriod, PeriodFinder};
pub use iterations::clock::{IterationClock, MarkerLine};
pub use iterations::iteration::{
    Iteration, IterationEnd, IterationLevels, OwnedInIteration, ParameterBytes,
};
pub use line_diff::{ChangedPlace, ComparedMoment, LineChange, line_changes};
pub use lines::ranking::{LineOrder, LineRanking, RankedLine};
pub use lines::ranks::{RankFunction, RankRow, RankTable, RankValues};
pub use lines::{BoundedValue, LineCell, LineError, LineFunction, LineRow, LineTable};
pub use live_profile::{
    IsLibrary, LiveCounts, LiveLine, LiveProfile, LiveRows, LiveStack, SharedProfile,
};
pub use modelsize::{ModelSize, model_sizes};
pub use moment_blocks::{BlockEvent, DeviceBlocks, MomentBlocks, MomentBlocksBuilder};
pub use oom_message::requested_bytes;
pub use oom_report::{
    AllocatorCache, FreeClass, OomDevice, OomReport, OomReportBuilder, RefusedAllocation,
    ThreadAtOom,
};
pub use owner_groups::{
    GroupSize, OwnerChange, OwnerGroup, OwnerKind, OwnerPattern, owner_changes, owner_groups,
    recorded_owner_groups,
};
pub use ownership::{OwnerPart, OwnerStacks};
pub use process_snapshot::{DeviceSnapshot, OutsideTorch, ProcessSnapshot, ThreadSnapshot};
pub use profile::{Profile, UsagePeak};
pub use saved_tensors::{NodeClass, SavedSummary, saved};
pub use storage_changes::{StorageChange, changes};
pub use time_range::{OomMoment, TimeRange};
pub use timeline::{Timeline, TimelinePoint};
pub use totals::TotalsCounter;
pub use trigger::{TriggerCondition, TriggerWatch, UnknownCondition};
pub use trumpy::{BackwardMemory, LossMemory, losses, memory_for_backward};
pub use usage_history::{PeakUsage, UsageHistory};
