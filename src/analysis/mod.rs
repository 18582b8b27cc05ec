//! Answers from records: attribution, peak, timeline, per-line bounds, flamegraph folds.
//!
//! Turns `model::Record`s, in the order in which they were recorded, into answers.
//! May import `model`, `std`, the hasher and `thiserror`.
//! Never knows a clock, a file or a process, and never holds memory per sample.
//! Start reading at [`Profile`]; the rule that charges bytes to stacks is told at the top of `births.rs`.

mod autograd;
mod attribution;
mod storage_changes;
mod block_attribution;
mod device;
mod exact;
mod exact_lines;
mod fold;
mod fragmentation;
mod high_water;
mod ownership;
mod iteration;
mod iteration_backward;
mod iteration_clock;
mod iteration_level;
mod iteration_peak;
mod iterations;
mod counter_intervals;
mod line_bounds;
mod lines;
mod live_profile;
mod process_snapshot;
mod losses;
mod modelsize;
mod allocation_period;
mod profile;
mod rank_lines;
mod usage_history;
mod autograd_outputs;
mod saved_tensors;
mod device_breakdown;
mod statements;
mod totals;
mod sample_window;
mod timeline;
mod trigger;
mod trumpy;
mod oom_report;
mod oom_message;

pub use storage_changes::{StorageChange, changes};
pub use device::{Moment, AttributedSnapshot};
pub use exact::{CounterAgreement, ByteBalance, ExactProfile, MemoryGroup, RefusalTotals, UnknownReason};
pub use fold::{FoldError, FoldOptions, FoldedProfile, FoldedStack, StackLabel, PseudoFrame, TimeResolution};
pub use fragmentation::{Fragmentation, SegmentSum, SizeClass};
pub use high_water::{HighWater, PeakTime};
pub use ownership::{OwnerPart, OwnerStacks};
pub use iteration::{OwnedInIteration, Iteration, IterationEnd, IterationLevels, ParameterBytes};
pub use iteration_clock::{IterationClock, MarkerLine};
pub use lines::{BoundedValue, LineCell, LineError, LineFunction, LineRow, LineTable};
pub use live_profile::{IsLibrary, LiveProfile, LiveCounts, LiveLine, LiveRows, LiveStack};
pub use process_snapshot::{ProcessSnapshot, DeviceSnapshot, ThreadSnapshot, OutsideTorch};
pub use losses::{Loss, LossCounts};
pub use modelsize::{ModelSize, model_sizes};
pub use allocation_period::{AllocationPeriod, PeriodFinder};
pub use profile::{Profile, UsagePeak};
pub use rank_lines::{RankFunction, RankRow, RankTable, RankValues};
pub use usage_history::{PeakUsage, UsageHistory};
pub use autograd_outputs::results;
pub use saved_tensors::{NodeClass, SavedSummary, saved};
pub use device_breakdown::DeviceBreakdown;
pub use totals::TotalsCounter;
pub use sample_window::ThreadChoice;
pub use timeline::{Timeline, TimelinePoint};
pub use trigger::{TriggerCondition, UnknownCondition, TriggerWatch};
pub use trumpy::{BackwardMemory, LossMemory, losses, memory_for_backward};
pub use oom_report::{RefusedAllocation, AllocatorCache, FreeClass, ThreadAtOom, OomReport, OomDevice, OomReportBuilder};
pub use oom_message::requested_bytes;
