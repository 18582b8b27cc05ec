//! All allocations of a followed device by stack.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::attributed_snapshot::{AttributedSnapshot, Moment};
use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::folded::fold_limit::TextBudget;
use crate::analysis::folded::time_resolution::TimeResolution;
use crate::analysis::folded::{AllocatedStack, FoldError, FoldOptions, FoldedProfile, FoldedStack};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, SnapshotConsistency};

impl Profile {
    /// [`FoldOptions::churn`] for a followed recording.
    pub(super) fn fold_allocated(
        &self,
        device: CudaIndex,
        options: FoldOptions,
    ) -> Result<FoldedProfile, FoldError> {
        let totals = self.followed_totals(device).ok_or(FoldError::NeitherExactNorFollowed)?;
        let bytes: u64 = totals.by_origin.values().sum();
        let proven: u64 = totals.certain.values().sum();
        let (by_origin, allocations) = match options.evidence {
            None => (&totals.by_origin, totals.allocations),
            // Totals of freed memory separate only the proven part.
            Some(_) => (&totals.certain, totals.certain_allocations),
        };
        let (stacks, budget) = self.allocated_stacks(by_origin, options.by_thread);
        let snapshot = AttributedSnapshot {
            followed: true,
            time: self.duration(),
            allocated: bytes,
            in_blocks: bytes,
            reserved: None,
            pending_free: 0,
            largest_free: 0,
            consistency: SnapshotConsistency::Consistent,
            before_recording: 0,
            blocks: Vec::new(),
            addresses: Vec::new(),
            ownerless: Vec::new(),
        };
        Ok(FoldedProfile {
            device,
            moment: Moment::End,
            snapshot: Arc::new(snapshot),
            stacks,
            total: by_origin.values().sum(),
            true_peak: None,
            peak_was_read: false,
            resolution: TimeResolution {
                seen: bytes,
                one_stack: totals.one_stack,
                certain: Some(proven),
                probable: totals.one_stack.saturating_sub(proven),
                not_seen: totals.not_seen(),
                ..TimeResolution::default()
            },
            unlisted: budget.left_out.0,
            left_out: 0,
            left_out_stacks: Vec::new(),
            memory: None,
            estimated_from: None,
            stacks_guessed: false,
            allocations: Some(allocations),
        })
    }

    /// [`Profile::allocated_by_stack`] for a followed recording.
    pub(in crate::analysis) fn followed_by_stack(
        &self,
        device: CudaIndex,
    ) -> Option<Vec<AllocatedStack>> {
        let (stacks, _) = self.allocated_stacks(&self.followed_totals(device)?.by_origin, false);
        let without_count = |stack: FoldedStack| AllocatedStack {
            path: stack.path,
            bytes: stack.bytes,
            count: None,
        };
        Some(stacks.into_iter().map(without_count).collect())
    }

    fn allocated_stacks(
        &self,
        by_origin: &FxHashMap<AllocationOrigin, u64>,
        by_thread: bool,
    ) -> (Vec<FoldedStack>, TextBudget) {
        self.spell_out(self.by_fold_key(by_origin, by_thread))
    }
}
