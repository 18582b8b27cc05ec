//! Folds the bytes of one moment by stack.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::attributed_snapshot::{AttributedSnapshot, Moment};
use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::attribution::evidence::Evidence;
use crate::analysis::exact::ExactProfile;
use crate::analysis::folded::fold_limit::TextBudget;
use crate::analysis::folded::time_resolution::{TimeResolution, resolution};
use crate::analysis::folded::{
    AllocatedStack, FoldError, FoldKey, FoldOptions, FoldedProfile, FoldedStack, MemoryGroup,
    PseudoFrame, StackLabel, before_path,
};
use crate::analysis::peak::DevicePeak;
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, StackId, ThreadId};

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
        // Blocks allocated alike share an attribution.
        let mut shown = FxHashMap::default();
        for (size, charge) in snapshot.blocks.iter().filter(|(_, charge)| is_asked(charge)) {
            let shown = shown.entry(Arc::as_ptr(charge)).or_insert_with(|| self.shown(charge));
            shown.split(*size, |origin, bytes| {
                *by_origin.entry(origin).or_default() += bytes;
            });
        }
        by_origin
    }

    /// [`BlockAttribution::shown`] with the stacks of this recording.
    pub(crate) fn shown<'a>(&self, charge: &'a BlockAttribution) -> Cow<'a, BlockAttribution> {
        charge.shown(self.is_followed(), |stack| self.stacks().get_stack(stack)?.parent)
    }

    /// Folds a device's memory at a moment; the bytes add up to the allocator's counter.
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

    /// The same, for `stacks` of an exact recording.
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
