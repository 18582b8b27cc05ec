//! Answers from records: attribution, peak, timeline, per-line bounds, flamegraph folds.
//!
//! Turns `model::Record`s, in the order in which they were recorded, into answers.
//! May import `model`, `std`, the hasher and `thiserror`.
//! Never knows a clock, a file or a process, and never holds memory per sample.
//! Start reading at [`Profile`]; the rule that charges bytes to stacks is told at the top of `births.rs`.

mod autograd;
mod births;
mod changes;
mod charge;
mod device;
mod exact;
mod exact_lines;
mod fold;
mod fragmentation;
mod high_water;
mod holders;
mod iteration;
mod iteration_backward;
mod iteration_clock;
mod iteration_level;
mod iteration_peak;
mod iterations;
mod ledger;
mod line_bounds;
mod lines;
mod live;
mod look;
mod losses;
mod modelsize;
mod period;
mod profile;
mod rank_lines;
mod recent;
mod results;
mod saved;
mod shares;
mod statements;
mod tally;
mod tick;
mod timeline;
mod trigger;
mod trumpy;
mod verdict;
mod words;

pub use changes::{Change, changes};
pub use device::{Moment, Snapshot};
pub use exact::{Agreement, Balance, ExactProfile, MemoryKind, Refused, Untold};
pub use fold::{FoldError, FoldOptions, Folded, FoldedStack, Label, Mark, Resolution};
pub use fragmentation::{Fragmentation, SegmentSum, SizeClass};
pub use high_water::{HighWater, Reached};
pub use holders::{HolderPart, HolderStacks};
pub use iteration::{HeldInIteration, Iteration, IterationEnd, IterationLevels, ParameterBytes};
pub use iteration_clock::{IterationClock, MarkerLine};
pub use lines::{Bounded, Cell, LineError, LineFunction, LineRow, LineTable};
pub use live::{IsLibrary, Live, LiveCounts, LiveLine, LiveRows, LiveStack};
pub use look::{Look, LookDevice, LookThread, OutsideTorch};
pub use losses::{Loss, Losses};
pub use modelsize::{ModelSize, model_sizes};
pub use period::{Period, PeriodFinder};
pub use profile::{Profile, UsagePeak};
pub use rank_lines::{RankFunction, RankRow, RankTable, Ranked};
pub use recent::{Reach, Recent};
pub use results::results;
pub use saved::{NodeClass, SavedSummary, saved};
pub use shares::Shares;
pub use tally::Tally;
pub use tick::ThreadChoice;
pub use timeline::{Timeline, TimelinePoint};
pub use trigger::{Condition, UnknownCondition, Watch};
pub use trumpy::{BackwardMemory, LossMemory, losses, memory_for_backward};
pub use verdict::{Asked, Cache, FreeClass, Stood, Verdict, VerdictDevice, Verdicts};
pub use words::bytes_in_words;
