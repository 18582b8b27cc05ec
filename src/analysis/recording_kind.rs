//! One interface for the answers that differ between sampled and exact recordings.

use crate::analysis::attribution::attributed_snapshot::Moment;
use crate::analysis::exact::keyframe::SourceTable;
use crate::analysis::exact::{ExactProfile, LineDoubt, UnknownReason};
use crate::analysis::folded::{AllocatedStack, FoldError, FoldOptions, FoldedProfile};
use crate::analysis::lines::{LineRow, LineStats, SumAccuracy, statements};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, KeyframeMemory, ReaderKind, SourceText, StatField, StatKey};

pub(in crate::analysis) trait Attribution {
    /// All allocated blocks are attributed.
    fn is_settled(&self) -> bool;

    /// Adds the live blocks with their sources to a keyframe.
    fn add_to_keyframe(&self, sources: &mut SourceTable, memory: &mut Vec<KeyframeMemory>);

    fn fold(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError>;

    /// All allocations by stack; `None` where unknown.
    fn allocated_by_stack(&self, device: CudaIndex) -> Option<Vec<AllocatedStack>>;

    /// Each stack's own values: allocated bytes, then the columns.
    fn line_nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats>;

    /// Accuracy of line values, and why none is marked exact.
    fn line_accuracy(&self, device: CudaIndex) -> (SumAccuracy, Option<LineDoubt>);

    fn unknown_reason(&self, device: CudaIndex, key: StatKey) -> Option<UnknownReason>;

    /// A line absent from the recording certainly has none of this.
    fn knows_none(&self, field: StatField) -> bool;

    /// Lets the lines of one statement share its values.
    fn join_statements(&self, rows: &mut [LineRow], source: Option<&SourceText>);
}

impl Profile {
    pub(in crate::analysis) fn attribution(&self) -> Box<dyn Attribution + '_> {
        match self.exact() {
            Some(exact) => Box::new(ExactAttribution { profile: self, exact }),
            None => Box::new(SampledAttribution(self)),
        }
    }
}

struct SampledAttribution<'a>(&'a Profile);

impl Attribution for SampledAttribution<'_> {
    fn is_settled(&self) -> bool {
        self.0.samples_are_settled()
    }

    fn add_to_keyframe(&self, sources: &mut SourceTable, memory: &mut Vec<KeyframeMemory>) {
        self.0.add_sampled_to_keyframe(sources, memory);
    }

    fn fold(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        self.0.fold_sampled(device, moment, options)
    }

    fn allocated_by_stack(&self, device: CudaIndex) -> Option<Vec<AllocatedStack>> {
        self.0.followed_by_stack(device)
    }

    fn line_nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats> {
        self.0.sampled_nodes(device, columns)
    }

    fn line_accuracy(&self, _device: CudaIndex) -> (SumAccuracy, Option<LineDoubt>) {
        (SumAccuracy::OF_SAMPLES, None)
    }

    fn unknown_reason(&self, _device: CudaIndex, _key: StatKey) -> Option<UnknownReason> {
        None
    }

    fn knows_none(&self, _field: StatField) -> bool {
        false
    }

    fn join_statements(&self, _rows: &mut [LineRow], _source: Option<&SourceText>) {}
}

struct ExactAttribution<'a> {
    profile: &'a Profile,
    exact: &'a ExactProfile,
}

impl Attribution for ExactAttribution<'_> {
    fn is_settled(&self) -> bool {
        self.exact.is_settled()
    }

    fn add_to_keyframe(&self, sources: &mut SourceTable, memory: &mut Vec<KeyframeMemory>) {
        self.exact.add_to_keyframe(self.profile.stacks(), sources, memory);
    }

    fn fold(
        &self,
        device: CudaIndex,
        moment: Moment,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        self.profile.fold_exact(self.exact, device, moment, options)
    }

    fn allocated_by_stack(&self, device: CudaIndex) -> Option<Vec<AllocatedStack>> {
        let budget = self.profile.text_budget();
        self.exact.allocated_by_stack(device, self.profile.stacks(), budget)
    }

    fn line_nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats> {
        self.profile.exact_nodes(self.exact, device, columns)
    }

    fn line_accuracy(&self, device: CudaIndex) -> (SumAccuracy, Option<LineDoubt>) {
        let doubt = match self.profile.losses().late(ReaderKind::Events) {
            0 => self.exact.doubt(device),
            lost => Some(LineDoubt::LostEvents(lost)),
        };
        let is_true = !self.exact.is_estimated() && doubt.is_none();
        let sure = SumAccuracy {
            exact: is_true,
            frees: self.exact.knows_freed(),
            events: true,
            levels: doubt.is_none(),
            runs: is_true && !self.exact.has_corrected(device),
            active: !self.exact.had_pending(device),
        };
        (sure, doubt)
    }

    fn unknown_reason(&self, device: CudaIndex, key: StatKey) -> Option<UnknownReason> {
        self.exact.untold(device, key)
    }

    fn knows_none(&self, field: StatField) -> bool {
        match field {
            StatField::Allocated => true,
            StatField::Freed => self.exact.knows_freed(),
            StatField::Peak | StatField::Current => false,
        }
    }

    fn join_statements(&self, rows: &mut [LineRow], source: Option<&SourceText>) {
        statements::widen(rows, source);
    }
}
