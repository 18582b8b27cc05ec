//! All allocations of a device by stack.

use std::sync::Arc;

use super::evidence::KeyEvidence;
use super::paths;
use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, AttributedSnapshot, Moment};
use crate::analysis::folded::{
    AllocatedStack, FoldError, FoldOptions, FoldedProfile, FoldedStack, TextBudget, TimeResolution,
};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, SnapshotConsistency};

/// All allocations by stack; `None` if only sampled.
pub fn allocated(profile: &Profile, device: CudaIndex) -> Option<Vec<AllocatedStack>> {
    match profile.exact() {
        Some(exact) => exact.allocated_by_stack(device, profile.stacks(), paths::budget(profile)),
        None => followed_by_stack(profile, device),
    }
}

/// [`FoldOptions::churn`] for a followed recording.
pub(super) fn fold(
    profile: &Profile,
    device: CudaIndex,
    options: FoldOptions,
) -> Result<FoldedProfile, FoldError> {
    let totals = profile.followed_totals(device).ok_or(FoldError::NeitherExactNorFollowed)?;
    let bytes: u64 = totals.by_origin.values().sum();
    let proven: u64 = totals.certain.values().sum();
    let (by_origin, allocations) = match options.evidence {
        None => (&totals.by_origin, totals.allocations),
        // Totals of freed memory keep only the proven part apart.
        Some(_) => (&totals.certain, totals.certain_allocations),
    };
    let (stacks, budget) = allocated_stacks(profile, by_origin, &totals.certain, options.by_thread);
    let snapshot = AttributedSnapshot {
        followed: true,
        time: profile.duration(),
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
        total: by_origin.values().sum(),
        resolution: TimeResolution {
            seen: bytes,
            one_stack: totals.one_stack,
            certain: Some(proven),
            probable: totals.one_stack.saturating_sub(proven),
            not_seen: totals.not_seen(),
            ..TimeResolution::default()
        },
        unlisted: budget.left_out.0,
        allocations: Some(allocations),
        ..FoldedProfile::whole(device, Moment::End, Arc::new(snapshot), stacks)
    })
}

fn followed_by_stack(profile: &Profile, device: CudaIndex) -> Option<Vec<AllocatedStack>> {
    let totals = profile.followed_totals(device)?;
    let (stacks, _) = allocated_stacks(profile, &totals.by_origin, &totals.certain, false);
    let without_count =
        |stack: FoldedStack| AllocatedStack { path: stack.path, bytes: stack.bytes, count: None };
    Some(stacks.into_iter().map(without_count).collect())
}

fn allocated_stacks(
    profile: &Profile,
    by_origin: &FxHashMap<AllocationOrigin, u64>,
    certain: &FxHashMap<AllocationOrigin, u64>,
    by_thread: bool,
) -> (Vec<FoldedStack>, TextBudget) {
    let merged = paths::by_key(profile, by_origin, by_thread);
    let evidence = KeyEvidence::of_totals(profile, &merged, certain, by_thread);
    paths::spell_out(profile, merged, &evidence)
}
