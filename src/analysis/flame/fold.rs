//! Folds the bytes of one moment by stack.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::evidence::Evidence;
use crate::analysis::exact::{ExactProfile, MemoryGroup};
use crate::analysis::flame::fold_limit::TextBudget;
use crate::analysis::flame::time_resolution::{TimeResolution, resolution};
use crate::analysis::peak::DevicePeak;
use crate::analysis::profile::Profile;
use crate::analysis::profile::attributed_snapshot::{AttributedSnapshot, Moment};
use crate::model::{CudaIndex, Frame, OwnerId, SiteId, StackId, StackTable, ThreadId};

/// A frame that is not a line of Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PseudoFrame {
    /// Allocated before the recording.
    BeforeRecording,
    /// Counted, but in no block.
    Unmatched,
    /// No Python stack was read.
    NoPythonStack,
    /// Unattributed: no stack is known.
    NotSeen,
    /// Autograd engine, while Python waited for it.
    AutogradThread,
    /// The forward call of this backward work follows.
    BackwardOf,
    /// Counted, but without an event.
    NoEvent,
    /// A thread without Python.
    NoPython,
    /// Excluded by the recording's options.
    StackNotTaken,
    /// The stack could not be read or named.
    UnknownStack,
    /// Frames deeper than what was read.
    DeeperFrames,
    /// Stacks beyond the text budget.
    LeftOut,
}

impl PseudoFrame {
    /// The text, such as `[before recording]`.
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
    /// A C or C++ function, with [`FoldOptions::native`].
    Native(Frame),
    /// A frame that is not code.
    Pseudo(PseudoFrame),
    /// Class of the autograd node of a site.
    Node(SiteId),
    /// The same without a known forward line.
    NodeOfUnknownLine(SiteId),
    /// Owner of memory older than the recording.
    Owner(OwnerId),
}

/// One stack and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedStack {
    /// Outermost frame first.
    pub path: Vec<StackLabel>,
    /// Bytes of this stack alone.
    pub bytes: u64,
}

/// One stack and all its allocations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedStack {
    /// Outermost frame first.
    pub path: Vec<StackLabel>,
    /// Bytes allocated.
    pub bytes: u64,
    /// Number, unless only a sample has stacks.
    pub count: Option<u64>,
}

/// Options of a fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FoldOptions {
    /// Threads become roots.
    pub by_thread: bool,
    /// All allocations instead of a moment; not for sampled recordings.
    pub churn: bool,
    /// Kind of memory (exact recordings); default: PyTorch's if any.
    pub memory: Option<MemoryGroup>,
    /// With C and C++ frames.
    pub native: bool,
    /// Only bytes with this evidence; for followed recordings.
    pub evidence: Option<Evidence>,
    /// At the peak: a snapshot, never a moment between two.
    pub with_addresses: bool,
}

/// The memory of one device at one moment.
#[derive(Debug, Clone)]
pub struct FoldedProfile {
    /// Device.
    pub device: CudaIndex,
    /// Moment asked for.
    pub moment: Moment,
    /// Its snapshot.
    pub snapshot: Arc<AttributedSnapshot>,
    /// Largest first; their sum is [`FoldedProfile::total`].
    pub stacks: Vec<FoldedStack>,
    /// Allocated bytes.
    pub total: u64,
    /// The device's peak, if this kind of memory has one.
    pub true_peak: Option<u64>,
    /// The allocator's mark is older than the recording: the peak is a reading, and may be too low.
    pub peak_was_read: bool,
    /// How precisely sites are known.
    pub resolution: TimeResolution,
    /// Stacks beyond the text budget, in [`PseudoFrame::LeftOut`].
    pub unlisted: u64,
    /// Bytes older than the recording, absent from the leak view (end of an exact recording).
    pub left_out: u64,
    /// The same by owner, where known.
    pub left_out_stacks: Vec<FoldedStack>,
    /// Kind of memory (exact recordings).
    pub memory: Option<MemoryGroup>,
    /// The number of sampled stacks, if bytes are estimated from them.
    pub estimated_from: Option<u64>,
    /// Sizes are exact; stacks are the last ones sampled.
    pub stacks_guessed: bool,
    /// Number of allocations, with [`FoldOptions::churn`].
    pub allocations: Option<u64>,
}

impl FoldedProfile {
    /// Bytes older than the recording by category (the first step of the owner), most first; only
    /// with known owners.
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

    /// Bytes below the device's peak.
    pub fn below_peak(&self) -> Option<u64> {
        Some(self.true_peak?.saturating_sub(self.total))
    }
}

/// Why a fold failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// The device is not in the recording.
    #[error("GPU {} is not in the recording; it has {have}", .device.0)]
    NoGpu {
        /// The device asked for.
        device: CudaIndex,
        /// Recorded devices.
        have: String,
    },
    /// No PyTorch memory on any device.
    #[error("no memory of PyTorch was recorded on a GPU: {why}")]
    NoMemoryOfTorch {
        /// The reason, if known.
        why: &'static str,
    },
    /// Needs an exact recording.
    #[error("{what} is known only of exact recordings (record with --exact)")]
    NotExact {
        /// What was asked for.
        what: &'static str,
    },
    /// Needs an exact or followed recording.
    #[error(
        "all that was allocated is known only where the allocator was followed (record without -r) and of exact recordings \
         (record with --exact)"
    )]
    NeitherExactNorFollowed,
    /// Needs a followed recording.
    #[error(
        "what is proven is told apart only where the allocator was followed (record without -r and --exact)"
    )]
    NotFollowed,
    /// No memory of this kind.
    #[error("the recording has no allocation of this kind")]
    NoMemory,
    /// No snapshot of the device.
    #[error("no snapshot of GPU {} was recorded, so it is not known which blocks made up its memory", .device.0)]
    NoSnapshot {
        /// The device asked for.
        device: CudaIndex,
    },
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

impl Profile {
    pub(crate) fn no_gpu(&self, device: CudaIndex) -> FoldError {
        let have: Vec<String> = self.gpus().map(|d| format!("GPU {}", d.0)).collect();
        if !have.is_empty() {
            return FoldError::NoGpu { device, have: have.join(", ") };
        }
        let why = match self.exact().is_some_and(|exact| exact.events() > 0) {
            true => "the job took what it has from the CUDA driver itself; a flamegraph draws that",
            false => "the job had not used CUDA yet",
        };
        FoldError::NoMemoryOfTorch { why }
    }

    pub(crate) fn bytes_by_origin(
        &self,
        snapshot: &AttributedSnapshot,
        evidence: Option<Evidence>,
    ) -> FxHashMap<AllocationOrigin, u64> {
        let mut by_origin: FxHashMap<AllocationOrigin, u64> = FxHashMap::default();
        let is_asked = |charge: &BlockAttribution| {
            evidence.is_none_or(|asked| charge.evidence(snapshot.followed) == asked)
        };
        for (size, charge) in snapshot.blocks.iter().filter(|(_, charge)| is_asked(charge)) {
            self.shown(charge).split(*size, |origin, bytes| {
                *by_origin.entry(origin).or_default() += bytes;
            });
        }
        by_origin
    }

    /// [`BlockAttribution::shown`] with the stacks of this recording.
    pub(crate) fn shown<'a>(&self, charge: &'a BlockAttribution) -> Cow<'a, BlockAttribution> {
        charge.shown(self.is_followed(), |stack| {
            self.stacks().get_stack(stack).and_then(|node| node.parent)
        })
    }

    /// Folds a device's memory at a moment; the sum equals the allocator's counter.
    pub fn fold(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        self.attribution().fold(device, moment, options)
    }

    /// How precisely the peak's sites are known; `None` without a snapshot.
    pub fn peak_resolution(&self, device: CudaIndex) -> Option<TimeResolution> {
        if self.exact().is_some() {
            let folded = self.fold(device, Moment::Peak, FoldOptions::default());
            return folded.ok().map(|folded| folded.resolution);
        }
        Some(resolution(&*self.peak(device)?.moment?.snapshot?))
    }

    /// The same for `stacks` of an exact recording.
    pub fn exact_resolution(&self, stacks: &[FoldedStack]) -> Option<TimeResolution> {
        let exact = self.exact()?;
        let evidence = match exact.stacks_are_guessed() {
            true => Evidence::Sampled,
            false if exact.is_estimated() => Evidence::Probable,
            false => Evidence::Proven,
        };
        Some(TimeResolution::of_exact(stacks, evidence))
    }

    pub(in crate::analysis) fn fold_sampled(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        if options.memory.is_some() {
            return Err(FoldError::NotExact { what: "memory by its kind" });
        }
        if !self.has_gpu(device) {
            return Err(self.no_gpu(device));
        }
        if options.churn {
            return self.fold_allocated(device, options);
        }
        let peak = self.peak(device);
        let true_peak = peak.as_ref().map(DevicePeak::bytes);
        let peak_was_read = peak.as_ref().is_some_and(DevicePeak::was_read);
        let snapshot = match moment {
            Moment::Peak if !options.with_addresses => peak.and_then(|peak| peak.moment?.snapshot),
            _ => self.snapshot(device, moment).cloned(),
        };
        let snapshot = snapshot.ok_or(FoldError::NoSnapshot { device })?;
        if options.evidence == Some(Evidence::Proven) && !snapshot.followed {
            return Err(FoldError::NotFollowed);
        }
        let by_origin = self.bytes_by_origin(&snapshot, options.evidence);
        let mut merged = self.by_fold_key(&by_origin, options.by_thread);
        let unmatched = snapshot.allocated - snapshot.in_blocks;
        if unmatched > 0 && options.evidence.is_none() {
            merged.insert((None, None, Some(PseudoFrame::Unmatched), None), unmatched);
        }
        let (stacks, budget) = self.spell_out(merged);
        Ok(FoldedProfile {
            device,
            moment,
            total: match options.evidence.is_some() {
                true => stacks.iter().map(|stack| stack.bytes).sum(),
                false => snapshot.allocated,
            },
            resolution: resolution(&snapshot),
            stacks,
            true_peak,
            peak_was_read,
            snapshot,
            unlisted: budget.left_out.0,
            left_out: 0,
            left_out_stacks: Vec::new(),
            memory: None,
            estimated_from: None,
            stacks_guessed: false,
            allocations: None,
        })
    }

    pub(super) fn by_fold_key(
        &self,
        by_origin: &FxHashMap<AllocationOrigin, u64>,
        by_thread: bool,
    ) -> FxHashMap<FoldKey, u64> {
        let mut merged: FxHashMap<FoldKey, u64> = FxHashMap::default();
        for (&origin, bytes) in by_origin {
            *merged.entry(self.fold_key(origin, by_thread)).or_default() += bytes;
        }
        merged
    }

    pub(super) fn spell_out(
        &self,
        merged: FxHashMap<FoldKey, u64>,
    ) -> (Vec<FoldedStack>, TextBudget) {
        let mut keys: Vec<_> = merged.into_iter().collect();
        keys.sort_unstable_by_key(|&(key, bytes)| (std::cmp::Reverse(bytes), key));
        let mut budget = self.text_budget();
        let mut stacks = Vec::new();
        for (key, bytes) in keys {
            if budget.takes(key.1, bytes) {
                stacks.push(FoldedStack { path: self.path_of(key), bytes });
            }
        }
        stacks.extend(budget.rest());
        (stacks, budget)
    }

    pub(in crate::analysis) fn fold_key(
        &self,
        origin: AllocationOrigin,
        by_thread: bool,
    ) -> FoldKey {
        match origin {
            AllocationOrigin::Before => (None, None, Some(PseudoFrame::BeforeRecording), None),
            AllocationOrigin::BeforeOwned(owner) => {
                (None, None, Some(PseudoFrame::BeforeRecording), Some(owner))
            }
            AllocationOrigin::NoStack => (None, None, Some(PseudoFrame::NoPythonStack), None),
            AllocationOrigin::NotSeen => (None, None, Some(PseudoFrame::NotSeen), None),
            AllocationOrigin::Below(thread, stack) => {
                (by_thread.then_some(thread), Some(stack), Some(PseudoFrame::NotSeen), None)
            }
            AllocationOrigin::Stack(thread, stack) => {
                let waits = self.engine().is_waiting(self.stacks(), stack);
                let mark = waits.then_some(PseudoFrame::AutogradThread);
                (by_thread.then_some(thread), Some(stack), mark, None)
            }
        }
    }

    pub(in crate::analysis) fn path_of(&self, key: FoldKey) -> Vec<StackLabel> {
        match key {
            (_, _, _, owner @ Some(_)) => before_path(owner, self.stacks()),
            (thread, stack, mark, None) => self.path(thread, stack, mark),
        }
    }

    /// All allocations by stack; `None` if only sampled.
    pub fn allocated_by_stack(&self, device: CudaIndex) -> Option<Vec<AllocatedStack>> {
        self.attribution().allocated_by_stack(device)
    }

    pub(in crate::analysis) fn text_budget(&self) -> TextBudget {
        TextBudget::new(self.stacks(), self.memory_limit())
    }

    pub(in crate::analysis) fn fold_exact(
        &self,
        exact: &ExactProfile,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        if options.evidence.is_some() {
            return Err(FoldError::NotFollowed);
        }
        let peak = self.peak(device).map(|peak| peak.bytes());
        let most = peak.unwrap_or(u64::MAX);
        let folded = exact
            .fold(device, moment, options, self.stacks(), self.text_budget(), most)
            .ok_or_else(|| match options.memory {
            None if !self.has_gpu(device) && self.gpus().next().is_some() => self.no_gpu(device),
            _ => FoldError::NoMemory,
        })?;
        let mut stacks = folded.stacks;
        stacks.sort_by(|a, b| (b.bytes, &a.path).cmp(&(a.bytes, &b.path)));
        let resolution = self.exact_resolution(&stacks).unwrap_or_default();
        let memory = options.memory.unwrap_or_else(|| exact.default_memory());
        let true_peak = (memory == MemoryGroup::Torch && !options.churn).then_some(peak).flatten();
        Ok(FoldedProfile {
            device,
            moment,
            snapshot: Arc::new(folded.snapshot),
            stacks,
            total: folded.total,
            true_peak,
            // Events show every level.
            peak_was_read: false,
            resolution,
            unlisted: folded.unlisted,
            left_out: folded.left_out,
            left_out_stacks: folded.left_out_stacks,
            memory: Some(memory),
            estimated_from: exact.is_estimated().then(|| exact.with_stack()),
            stacks_guessed: exact.stacks_are_guessed(),
            allocations: options.churn.then_some(folded.allocations),
        })
    }

    pub(in crate::analysis) fn path(
        &self,
        thread: Option<ThreadId>,
        stack: Option<StackId>,
        mark: Option<PseudoFrame>,
    ) -> Vec<StackLabel> {
        let mut path: Vec<StackLabel> = mark.map(StackLabel::Pseudo).into_iter().collect();
        if let Some(stack) = stack {
            path.extend(self.stacks().frames(stack).map(StackLabel::Frame));
        }
        path.extend(thread.map(StackLabel::Thread));
        path.reverse();
        path
    }
}
