//! Line values of sampled and exact recordings.

use super::{LineRow, LineStats, SumAccuracy, exact_lines, sampled_lines, statements};
use crate::analysis::exact::{ExactProfile, LineDoubt, UnknownReason};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, ReaderKind, SourceText, StatField, StatKey};

pub(super) trait RecordingKind {
    /// Each stack's own values: allocated bytes, then the columns.
    fn nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats>;

    /// Accuracy of line values, and why none is marked exact.
    fn accuracy(&self, device: CudaIndex) -> (SumAccuracy, Option<LineDoubt>);

    fn unknown_reason(&self, device: CudaIndex, key: StatKey) -> Option<UnknownReason>;

    /// A line absent from the recording certainly has none of this.
    fn knows_none(&self, field: StatField) -> bool;

    /// Lets the lines of one statement share its values.
    fn join_statements(&self, rows: &mut [LineRow], source: Option<&SourceText>);
}

pub(super) fn of(profile: &Profile) -> Box<dyn RecordingKind + '_> {
    match profile.exact() {
        Some(exact) => Box::new(ExactRecording { profile, exact }),
        None => Box::new(SampledRecording(profile)),
    }
}

struct SampledRecording<'a>(&'a Profile);

impl RecordingKind for SampledRecording<'_> {
    fn nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats> {
        sampled_lines::nodes(self.0, device, columns)
    }

    fn accuracy(&self, _device: CudaIndex) -> (SumAccuracy, Option<LineDoubt>) {
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

struct ExactRecording<'a> {
    profile: &'a Profile,
    exact: &'a ExactProfile,
}

impl RecordingKind for ExactRecording<'_> {
    fn nodes(&self, device: CudaIndex, columns: &[StatKey]) -> Vec<LineStats> {
        exact_lines::nodes(self.profile, self.exact, device, columns)
    }

    fn accuracy(&self, device: CudaIndex) -> (SumAccuracy, Option<LineDoubt>) {
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
        self.exact.unknown_reason(device, key)
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
