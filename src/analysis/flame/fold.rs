//! Folding: the bytes of one moment, stack by stack.

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

/// A frame that stands for something other than a line of Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PseudoFrame {
    /// Blocks that were there when the recording began.
    BeforeRecording,
    /// Bytes that the counter has and no block shows.
    Unmatched,
    /// Blocks allocated while no Python stack was seen.
    NoPythonStack,
    /// Blocks allocated between two polls or samples that tell nothing of who did.
    NotSeen,
    /// Allocated by the autograd engine while Python waited for it.
    AutogradThread,
    /// What follows is the forward call that the backward work belongs to.
    BackwardOf,
    /// Bytes that the allocator has and no event told of.
    NoEvent,
    /// Allocated by a thread that runs no Python.
    NoPython,
    /// Allocated where the options of the recording say that no stack is taken.
    StackNotTaken,
    /// The stack could not be read or named.
    UnknownStack,
    /// The stack is deeper than what was read of it.
    DeeperFrames,
    /// Stacks that are too many, and too deep, to be spelled out.
    LeftOut,
}

impl PseudoFrame {
    /// The text of the frame, such as `[before recording]`.
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

/// One step of a folded stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackLabel {
    /// The thread that allocated: first with [`FoldOptions::by_thread`], and after [`PseudoFrame::NoPython`].
    Thread(ThreadId),
    /// A line of Python.
    Frame(Frame),
    /// A function of C or C++ code; with [`FoldOptions::native`].
    Native(Frame),
    /// Something else.
    Pseudo(PseudoFrame),
    /// The class of the autograd node that a site allocates for.
    Node(SiteId),
    /// The same, where the line of the forward call is not known.
    NodeOfUnknownLine(SiteId),
    /// Below [`PseudoFrame::BeforeRecording`]: whose the memory is.
    Owner(OwnerId),
}

/// One stack and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoldedStack {
    /// From the outermost frame to the innermost.
    pub path: Vec<StackLabel>,
    /// Bytes charged to just this stack.
    pub bytes: u64,
}

/// One stack and all that it allocated while recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedStack {
    /// From the outermost frame to the innermost.
    pub path: Vec<StackLabel>,
    /// Bytes allocated.
    pub bytes: u64,
    /// Allocations; `None` where only a sample of them has stacks.
    pub count: Option<u64>,
}

/// How to fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FoldOptions {
    /// Whether each thread is a root of its own.
    pub by_thread: bool,
    /// All bytes allocated, instead of those of a moment; not of recordings that only sampled.
    pub churn: bool,
    /// The kind of memory, in exact recordings; `None` for PyTorch's, or what there is.
    pub memory: Option<MemoryGroup>,
    /// Whether stacks have frames of C and C++ code, where these were recorded.
    pub native: bool,
    /// Only bytes that are known in this way; of recordings that followed the allocator only.
    pub evidence: Option<Evidence>,
    /// Of the peak, the highest moment at which the blocks and their addresses were read; else, where the allocator was followed, it
    /// may lie between two of these.
    pub with_addresses: bool,
}

/// The bytes of one moment.
#[derive(Debug, Clone)]
pub struct FoldedProfile {
    /// The device.
    pub device: CudaIndex,
    /// Which moment was asked for.
    pub moment: Moment,
    /// The snapshot it is.
    pub snapshot: Arc<AttributedSnapshot>,
    /// Stacks, the largest first; their bytes add up to [`FoldedProfile::total`].
    pub stacks: Vec<FoldedStack>,
    /// Bytes allocated at the moment.
    pub total: u64,
    /// The device's peak ([`Profile::peak`]); `None` of memory that has none.
    pub true_peak: Option<u64>,
    /// Whether the allocator's own mark is older than the recording: the peak is then the highest
    /// level that was read, and the job can have been higher in between.
    pub peak_was_read: bool,
    /// How sharply it is known who allocated what.
    pub resolution: TimeResolution,
    /// Stacks that were not spelled out, as all of them would be too much text: [`PseudoFrame::LeftOut`] has their bytes.
    pub unlisted: u64,
    /// Bytes left out because they are older than the recording: in the leak view, the end of an exact one.
    pub left_out: u64,
    /// The same by owner, as far as that is known.
    pub left_out_stacks: Vec<FoldedStack>,
    /// The kind of memory in an exact recording; `None` in a sampled one.
    pub memory: Option<MemoryGroup>,
    /// How many sampled stacks the bytes are shared among in proportion to what each stands for; `None`
    /// where every allocation has its stack (or was to have none).
    pub estimated_from: Option<u64>,
    /// Whether sizes are exact but stacks are those that sampling saw last: a guess.
    pub stacks_guessed: bool,
    /// With [`FoldOptions::churn`], how many allocations the bytes are of.
    pub allocations: Option<u64>,
}

impl FoldedProfile {
    /// Bytes older than the recording by the outermost step of their owner's path, which is the category; the most first. Without
    /// what has no known owner.
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

    /// Bytes older than the recording of which no owner is known.
    pub fn before_without_owner(&self) -> u64 {
        let alone = [StackLabel::Pseudo(PseudoFrame::BeforeRecording)];
        self.stacks.iter().filter(|stack| stack.path == alone).map(|stack| stack.bytes).sum()
    }

    /// How many bytes the moment lies below the device's true peak.
    pub fn below_peak(&self) -> Option<u64> {
        Some(self.true_peak?.saturating_sub(self.total))
    }
}

/// Why nothing can be folded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// The recording has nothing of this device.
    #[error("GPU {} is not in the recording; it has {have}", .device.0)]
    NoGpu {
        /// Asked for.
        device: CudaIndex,
        /// The devices there are, as text.
        have: String,
    },
    /// The recording has nothing of any device.
    #[error("no memory of PyTorch was recorded on a GPU: {why}")]
    NoMemoryOfTorch {
        /// Why, as far as it is known.
        why: &'static str,
    },
    /// Only exact recordings know this.
    #[error("{what} is known only of exact recordings (record with --exact)")]
    NotExact {
        /// What was asked for.
        what: &'static str,
    },
    /// Only exact recordings and those that followed the allocator know this.
    #[error(
        "all that was allocated is known only where the allocator was followed (record without -r) and of exact recordings \
         (record with --exact)"
    )]
    NeitherExactNorFollowed,
    /// Only recordings that followed the allocator know this.
    #[error(
        "what is proven is told apart only where the allocator was followed (record without -r and --exact)"
    )]
    NotFollowed,
    /// No memory of the kind asked for was seen.
    #[error("the recording has no allocation of this kind")]
    NoMemory,
    /// The device has no snapshot.
    #[error("no snapshot of GPU {} was recorded, so it is not known which blocks made up its memory", .device.0)]
    NoSnapshot {
        /// Asked for.
        device: CudaIndex,
    },
}

/// What a folded stack is made of.
pub(in crate::analysis) type FoldKey =
    (Option<ThreadId>, Option<StackId>, Option<PseudoFrame>, Option<OwnerId>);

/// The path of memory that is older than the recording, and of its owner.
pub(in crate::analysis) fn before_path(
    owner: Option<OwnerId>,
    table: &StackTable,
) -> Vec<StackLabel> {
    let steps = owner.map(|owner| table.owners.steps(owner)).unwrap_or_default();
    let steps = steps.into_iter().map(StackLabel::Owner);
    [StackLabel::Pseudo(PseudoFrame::BeforeRecording)].into_iter().chain(steps).collect()
}

impl Profile {
    /// The error for a device that the recording does not have.
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

    /// Bytes by origin at a moment; only those that are known by this `evidence`, or all.
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
        charge.shown(self.is_followed(), |a, b| self.stack_facts().common(a, b))
    }

    /// Folds a device's memory at a moment. The bytes of the stacks add up to the allocator's counter.
    pub fn fold(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        self.attribution().fold(device, moment, options)
    }

    /// How it is known who allocated the blocks at a device's peak; `None` where no map was read.
    pub fn peak_resolution(&self, device: CudaIndex) -> Option<TimeResolution> {
        if self.exact().is_some() {
            let folded = self.fold(device, Moment::Peak, FoldOptions::default());
            return folded.ok().map(|folded| folded.resolution);
        }
        Some(resolution(&*self.peak(device)?.moment?.snapshot?))
    }

    /// How it is known who allocated the bytes of `stacks` of an exact recording; `None` of any
    /// other.
    pub fn exact_resolution(&self, stacks: &[FoldedStack]) -> Option<TimeResolution> {
        let exact = self.exact()?;
        let evidence = match exact.stacks_are_guessed() {
            true => Evidence::Sampled,
            false if exact.is_estimated() => Evidence::Probable,
            false => Evidence::Proven,
        };
        Some(TimeResolution::of_exact(stacks, evidence))
    }

    /// The same of a sampled recording.
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

    /// Bytes by what their stacks are made of.
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

    /// The stacks, the largest first, as far as there is room for their text.
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

    /// What the stack of an origin in a sampled recording is made of.
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

    /// The path that a key stands for.
    pub(in crate::analysis) fn path_of(&self, key: FoldKey) -> Vec<StackLabel> {
        match key {
            (_, _, _, owner @ Some(_)) => before_path(owner, self.stacks()),
            (thread, stack, mark, None) => self.path(thread, stack, mark),
        }
    }

    /// All that was allocated on a device while recording, by stack; `None` of a recording that only sampled.
    pub fn allocated_by_stack(&self, device: CudaIndex) -> Option<Vec<AllocatedStack>> {
        self.attribution().allocated_by_stack(device)
    }

    /// How much text the stacks of a report may come to.
    pub(in crate::analysis) fn text_budget(&self) -> TextBudget {
        TextBudget::new(self.stacks(), self.memory_limit())
    }

    /// [`Profile::fold`] of an exact recording.
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
