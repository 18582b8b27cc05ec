//! Bytes by stack, of any recording.

mod fold_limit;
mod time_resolution;

pub(crate) use fold_limit::TextBudget;
pub use time_resolution::TimeResolution;
pub(in crate::analysis) use time_resolution::resolution;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AttributedSnapshot, Evidence, Moment};
use crate::model::{CudaIndex, Frame, FunctionId, OwnerId, SiteId, StackId, StackTable, ThreadId};

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryGroup {
    /// PyTorch's caching allocator.
    Torch,
    /// `cuMemAlloc*`, all devices.
    Driver,
    /// `cuMemCreate`, all devices.
    Physical,
    /// `cuMemAllocManaged`.
    Managed,
    /// Page-locked host memory.
    Pinned,
}

/// A frame that is not a line of Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PseudoFrame {
    /// Older than the recording.
    BeforeRecording,
    /// Counted, but in no block.
    Unmatched,
    /// No Python stack was read.
    NoPythonStack,
    /// Unattributed: no stack is known.
    NotSeen,
    /// Autograd engine, while Python waited for it.
    AutogradThread,
    /// Before the forward call of this backward work.
    BackwardOf,
    /// Counted, but without an event.
    NoEvent,
    /// A thread without Python.
    NoPython,
    /// Excluded by the options.
    StackNotTaken,
    /// The stack could not be read or named.
    UnknownStack,
    /// Outer frames that were not read.
    DeeperFrames,
    /// Stacks beyond the text budget.
    LeftOut,
    /// Allocated by a stack that calls no `torch.nn.Module`.
    OutsideModules,
    /// No evidence for a module.
    UnknownModule,
}

impl PseudoFrame {
    /// Its text, such as `[before recording]`.
    pub fn text(self) -> &'static str {
        match self {
            PseudoFrame::BeforeRecording => "[before recording]",
            PseudoFrame::Unmatched => "[unmatched]",
            PseudoFrame::NoPythonStack => "[no Python stack]",
            PseudoFrame::NotSeen => "[not seen]",
            PseudoFrame::AutogradThread => "[autograd thread]",
            PseudoFrame::BackwardOf => "[backward of]",
            PseudoFrame::NoEvent => "[no event]",
            PseudoFrame::NoPython => "[no Python]",
            PseudoFrame::StackNotTaken => "[stack not taken]",
            PseudoFrame::UnknownStack => "[unknown stack]",
            PseudoFrame::DeeperFrames => "[deeper frames not read]",
            PseudoFrame::LeftOut => "[stacks left out]",
            PseudoFrame::OutsideModules => "[outside modules]",
            PseudoFrame::UnknownModule => "[module not known]",
        }
    }
}

/// One frame of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackLabel {
    /// First with [`FoldOptions::by_thread`], and after [`PseudoFrame::NoPython`].
    Thread(ThreadId),
    /// A line of Python.
    Frame(Frame),
    /// A C or C++ function ([`FoldOptions::native`]).
    Native(Frame),
    /// A frame that is not code.
    Pseudo(PseudoFrame),
    /// Class of the autograd node of a site.
    Node(SiteId),
    /// The same without a known forward line.
    NodeOfUnknownLine(SiteId),
    /// Owner of memory older than the recording.
    Owner(OwnerId),
    /// The `torch.nn.Module` whose call allocated ([`FoldOptions::by_module`]).
    Module(FunctionId),
}

/// The bytes of one stack alone, outermost frame first.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedStack {
    pub path: Vec<StackLabel>,
    pub bytes: u64,
    /// `None` if it was not allocated while recording, or not looked up.
    pub evidence: Option<EvidenceBytes>,
}

/// Of some bytes, those whose site is proven and those whose site is probable; the rest is
/// unattributed.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EvidenceBytes {
    pub proven: u64,
    pub probable: u64,
}

/// All allocations of one stack, outermost frame first; no `count` if stacks are sampled.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedStack {
    pub path: Vec<StackLabel>,
    pub bytes: u64,
    pub count: Option<u64>,
}

/// Options of a fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FoldOptions {
    /// Threads become roots.
    pub by_thread: bool,
    /// All allocations instead of a moment; not in a sampled recording.
    pub churn: bool,
    /// Kind of memory (exact recordings); default: PyTorch's if any.
    pub memory: Option<MemoryGroup>,
    /// With C and C++ frames.
    pub native: bool,
    /// Only bytes with this evidence; for followed recordings.
    pub evidence: Option<Evidence>,
    /// By module, not by stack.
    pub by_module: bool,
    /// Take the peak's snapshot, never a moment between two.
    pub with_addresses: bool,
}

/// A device's memory at a moment, in bytes.
#[derive(Debug, Clone)]
pub struct FoldedProfile {
    /// Device.
    pub device: CudaIndex,
    /// Moment asked for.
    pub moment: Moment,
    /// Its snapshot.
    pub snapshot: Arc<AttributedSnapshot>,
    /// Largest first; they add up to [`FoldedProfile::total`].
    pub stacks: Vec<FoldedStack>,
    /// Allocated bytes.
    pub total: u64,
    /// The device's peak, if this kind of memory has one.
    pub true_peak: Option<u64>,
    /// The allocator's peak is older than the recording, so `true_peak` was read and may be too
    /// low.
    pub peak_was_read: bool,
    /// How precisely sites are known.
    pub resolution: TimeResolution,
    /// Stacks beyond the text budget, in [`PseudoFrame::LeftOut`].
    pub unlisted: u64,
    /// Older than the recording, so absent from the leak view (end of an exact recording).
    pub left_out: u64,
    /// The same by owner, where known.
    pub left_out_stacks: Vec<FoldedStack>,
    /// Kind of memory (exact recordings).
    pub memory: Option<MemoryGroup>,
    /// How many sampled stacks bytes are estimated from, if they are.
    pub estimated_from: Option<u64>,
    /// Sizes are exact, but stacks are the last ones sampled.
    pub stacks_guessed: bool,
    /// How many allocations, with [`FoldOptions::churn`].
    pub allocations: Option<u64>,
}

impl FoldedProfile {
    /// All of a snapshot: nothing is left out or estimated, and no peak is known.
    pub(in crate::analysis) fn whole(
        device: CudaIndex,
        moment: Moment,
        snapshot: Arc<AttributedSnapshot>,
        stacks: Vec<FoldedStack>,
    ) -> FoldedProfile {
        FoldedProfile {
            device,
            moment,
            total: snapshot.allocated,
            snapshot,
            stacks,
            true_peak: None,
            peak_was_read: false,
            resolution: TimeResolution::default(),
            unlisted: 0,
            left_out: 0,
            left_out_stacks: Vec::new(),
            memory: None,
            estimated_from: None,
            stacks_guessed: false,
            allocations: None,
        }
    }

    /// Bytes older than the recording by category, most first; only with known owners.
    pub fn before_by_owner(&self) -> Vec<(OwnerId, u64)> {
        let mut by_owner: FxHashMap<OwnerId, u64> = FxHashMap::default();
        for stack in &self.stacks {
            if let [
                StackLabel::Pseudo(PseudoFrame::BeforeRecording),
                StackLabel::Owner(owner),
                ..,
            ] = stack.path[..]
            {
                *by_owner.entry(owner).or_default() += stack.bytes;
            }
        }
        let mut owners: Vec<(OwnerId, u64)> = by_owner.into_iter().collect();
        owners.sort_unstable_by_key(|&(owner, bytes)| (std::cmp::Reverse(bytes), owner));
        owners
    }

    /// Bytes older than the recording without a known owner.
    pub fn before_without_owner(&self) -> u64 {
        let alone = [StackLabel::Pseudo(PseudoFrame::BeforeRecording)];
        self.stacks.iter().filter(|stack| stack.path == alone).map(|stack| stack.bytes).sum()
    }

    /// How far the total is below the device's peak.
    pub fn below_peak(&self) -> Option<u64> {
        Some(self.true_peak?.saturating_sub(self.total))
    }
}

/// Why a fold failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum FoldError {
    #[error("GPU {} is not in the recording; it has {have}", .device.0)]
    NoGpu { device: CudaIndex, have: String },
    #[error("no memory of PyTorch was recorded on a GPU: {why}")]
    NoMemoryOfTorch { why: &'static str },
    #[error("{what} is known only in exact recordings (record with --exact)")]
    NotExact { what: &'static str },
    #[error(
        "all that was allocated is known only where the allocator was followed (record without -r) and in exact recordings \
         (record with --exact)"
    )]
    NeitherExactNorFollowed,
    #[error(
        "proven bytes are shown separately only where the allocator was followed (record without -r and --exact)"
    )]
    NotFollowed,
    #[error("the recording has no allocation of this kind")]
    NoMemory,
    #[error("no snapshot of GPU {} was recorded, so it is not known which blocks made up its memory", .device.0)]
    NoSnapshot { device: CudaIndex },
}

/// Thread, stack, mark and owner of a folded stack.
pub(in crate::analysis) type FoldKey =
    (Option<ThreadId>, Option<StackId>, Option<PseudoFrame>, Option<OwnerId>);

pub(in crate::analysis) fn before_path(
    owner: Option<OwnerId>,
    table: &StackTable,
) -> Vec<StackLabel> {
    let steps = owner.map(|owner| table.owners.steps(owner)).unwrap_or_default();
    let steps = steps.into_iter().map(StackLabel::Owner);
    [StackLabel::Pseudo(PseudoFrame::BeforeRecording)].into_iter().chain(steps).collect()
}
