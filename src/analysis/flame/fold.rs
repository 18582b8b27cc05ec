//! Folds the bytes of one moment by stack.

use std::sync::Arc;

use super::evidence::KeyEvidence;
use super::{allocated, evidence, paths};
use rustc_hash::FxHashMap;

use crate::analysis::attribution::{
    AllocationOrigin, AttributedSnapshot, BlockAttribution, Evidence, Moment,
};
use crate::analysis::exact::ExactProfile;
use crate::analysis::folded::{
    FoldError, FoldOptions, FoldedProfile, FoldedStack, MemoryGroup, PseudoFrame, TimeResolution,
    resolution,
};
use crate::analysis::peak::{self, HighestLevel};
use crate::analysis::profile::Profile;
use crate::model::CudaIndex;

pub(crate) fn no_gpu(profile: &Profile, device: CudaIndex) -> FoldError {
    let have: Vec<String> = profile.gpus().map(|d| format!("GPU {}", d.0)).collect();
    if !have.is_empty() {
        return FoldError::NoGpu { device, have: have.join(", ") };
    }
    let why = match profile.exact().is_some_and(|exact| exact.events() > 0) {
        true => "the job took what it has from the CUDA driver itself; a flamegraph draws that",
        false => "the job had not used CUDA yet",
    };
    FoldError::NoMemoryOfTorch { why }
}

pub(crate) fn by_origin(
    profile: &Profile,
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
        let shown = shown.entry(Arc::as_ptr(charge)).or_insert_with(|| profile.shown(charge));
        shown.split(*size, |origin, bytes| {
            *by_origin.entry(origin).or_default() += bytes;
        });
    }
    by_origin
}

/// Folds a device's memory at a moment; the sum equals the allocator's counter.
pub fn fold(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
    options: FoldOptions,
) -> Result<FoldedProfile, FoldError> {
    match profile.exact() {
        Some(exact) => fold_exact(profile, exact, device, moment, options),
        None => fold_sampled(profile, device, moment, options),
    }
}

/// How precisely the peak's sites are known; `None` without a snapshot.
pub fn peak_resolution(profile: &Profile, device: CudaIndex) -> Option<TimeResolution> {
    if profile.exact().is_some() {
        let folded = fold(profile, device, Moment::Peak, FoldOptions::default());
        return folded.ok().map(|folded| folded.resolution);
    }
    Some(resolution(&*peak::of(profile, device)?.moment?.snapshot?))
}

/// The same for `stacks` of an exact recording.
pub fn exact_resolution(profile: &Profile, stacks: &[FoldedStack]) -> Option<TimeResolution> {
    let exact = profile.exact()?;
    Some(TimeResolution::of_exact(stacks, evidence::sharpness(exact)))
}

fn fold_sampled(
    profile: &Profile,
    device: CudaIndex,
    moment: Moment,
    options: FoldOptions,
) -> Result<FoldedProfile, FoldError> {
    if options.memory.is_some() {
        return Err(FoldError::NotExact { what: "memory by its kind" });
    }
    if !profile.has_gpu(device) {
        return Err(no_gpu(profile, device));
    }
    if options.churn {
        return allocated::fold(profile, device, options);
    }
    let peak = peak::of(profile, device);
    let true_peak = peak.as_ref().map(HighestLevel::bytes);
    let peak_was_read = peak.as_ref().is_some_and(HighestLevel::was_read);
    let snapshot = match moment {
        Moment::Peak if !options.with_addresses => peak.and_then(|peak| peak.moment?.snapshot),
        _ => profile.snapshot(device, moment).cloned(),
    };
    let snapshot = snapshot.ok_or(FoldError::NoSnapshot { device })?;
    if options.evidence == Some(Evidence::Proven) && !snapshot.followed {
        return Err(FoldError::NotFollowed);
    }
    let by_origin = by_origin(profile, &snapshot, options.evidence);
    let mut merged = paths::by_key(profile, &by_origin, options.by_thread);
    let unmatched = snapshot.allocated - snapshot.in_blocks;
    if unmatched > 0 && options.evidence.is_none() {
        merged.insert((None, None, Some(PseudoFrame::Unmatched), None), unmatched);
    }
    let evidence = KeyEvidence::of_snapshot(profile, &snapshot, options.by_thread);
    let (stacks, budget) = paths::spell_out(profile, merged, &evidence);
    Ok(FoldedProfile {
        total: match options.evidence.is_some() {
            true => stacks.iter().map(|stack| stack.bytes).sum(),
            false => snapshot.allocated,
        },
        resolution: resolution(&snapshot),
        true_peak,
        peak_was_read,
        unlisted: budget.left_out.0,
        ..FoldedProfile::whole(device, moment, snapshot, stacks)
    })
}

fn fold_exact(
    profile: &Profile,
    exact: &ExactProfile,
    device: CudaIndex,
    moment: Moment,
    options: FoldOptions,
) -> Result<FoldedProfile, FoldError> {
    if options.evidence.is_some() {
        return Err(FoldError::NotFollowed);
    }
    let peak = peak::of(profile, device).map(|peak| peak.bytes());
    let most = peak.unwrap_or(u64::MAX);
    let folded = exact
        .fold(device, moment, options, profile.stacks(), paths::budget(profile), most)
        .ok_or_else(|| match options.memory {
            None if !profile.has_gpu(device) && profile.gpus().next().is_some() => {
                no_gpu(profile, device)
            }
            _ => FoldError::NoMemory,
        })?;
    let mut stacks = folded.stacks;
    stacks.sort_by(|a, b| (b.bytes, &a.path).cmp(&(a.bytes, &b.path)));
    evidence::of_exact(profile, &mut stacks);
    let resolution = exact_resolution(profile, &stacks).unwrap_or_default();
    let memory = options.memory.unwrap_or_else(|| exact.default_memory());
    let true_peak = (memory == MemoryGroup::Torch && !options.churn).then_some(peak).flatten();
    Ok(FoldedProfile {
        total: folded.total,
        true_peak,
        resolution,
        unlisted: folded.unlisted,
        left_out: folded.left_out,
        left_out_stacks: folded.left_out_stacks,
        memory: Some(memory),
        estimated_from: exact.is_estimated().then(|| exact.with_stack()),
        stacks_guessed: exact.stacks_are_guessed(),
        allocations: options.churn.then_some(folded.allocations),
        ..FoldedProfile::whole(device, moment, Arc::new(folded.snapshot), stacks)
    })
}
