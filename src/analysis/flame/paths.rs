//! Paths of stacks, as shown.

use rustc_hash::FxHashMap;

use super::evidence::KeyEvidence;
use crate::analysis::attribution::AllocationOrigin;
use crate::analysis::exact::SITES;
use crate::analysis::folded::{
    FoldKey, FoldedStack, PseudoFrame, StackLabel, TextBudget, before_path,
};
use crate::analysis::profile::Profile;
use crate::model::AllocationSource;

pub(in crate::analysis) fn key(
    profile: &Profile,
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
            let waits = profile.engine().is_waiting(profile.stacks(), stack);
            let mark = waits.then_some(PseudoFrame::AutogradThread);
            (by_thread.then_some(thread), Some(stack), mark, None)
        }
    }
}

pub(in crate::analysis) fn of_key(profile: &Profile, key: FoldKey) -> Vec<StackLabel> {
    match key {
        (_, _, _, owner @ Some(_)) => before_path(owner, profile.stacks()),
        (thread, stack, mark, None) => {
            let mut path: Vec<StackLabel> = mark.map(StackLabel::Pseudo).into_iter().collect();
            if let Some(stack) = stack {
                path.extend(profile.stacks().frames(stack).map(StackLabel::Frame));
            }
            path.extend(thread.map(StackLabel::Thread));
            path.reverse();
            path
        }
    }
}

pub(in crate::analysis) fn of_origin(
    profile: &Profile,
    origin: AllocationOrigin,
) -> Vec<StackLabel> {
    of_key(profile, key(profile, origin, false))
}

/// The most probable stack of a block.
pub(in crate::analysis) fn of_source(
    profile: &Profile,
    source: &AllocationSource,
) -> Vec<StackLabel> {
    let pseudo = |frame| vec![StackLabel::Pseudo(frame)];
    match source {
        AllocationSource::Before => pseudo(PseudoFrame::BeforeRecording),
        AllocationSource::BeforeOwned(owners) => {
            let most = owners.iter().max_by_key(|(_, weight)| *weight);
            let owner = most.and_then(|(path, _)| profile.stacks().owners.find(path));
            before_path(owner, profile.stacks())
        }
        AllocationSource::NoEvent => pseudo(PseudoFrame::NoEvent),
        AllocationSource::Lost => pseudo(PseudoFrame::UnknownStack),
        AllocationSource::NotTaken => pseudo(PseudoFrame::StackNotTaken),
        AllocationSource::Site(site) => match profile.exact() {
            Some(exact) => exact.account_path(SITES + site.0 as usize, profile.stacks()),
            None => pseudo(PseudoFrame::UnknownStack),
        },
        AllocationSource::Observed { contested: true, .. } => pseudo(PseudoFrame::NotSeen),
        AllocationSource::Observed { shares, .. } => {
            let likeliest = shares.iter().max_by_key(|share| (share.weight, share.by));
            match likeliest.and_then(|share| share.by) {
                Some((thread, stack)) => of_origin(profile, AllocationOrigin::Stack(thread, stack)),
                None => pseudo(PseudoFrame::NoPythonStack),
            }
        }
    }
}

pub(in crate::analysis) fn budget(profile: &Profile) -> TextBudget {
    TextBudget::new(profile.stacks(), profile.memory_limit())
}

pub(super) fn by_key(
    profile: &Profile,
    by_origin: &FxHashMap<AllocationOrigin, u64>,
    by_thread: bool,
) -> FxHashMap<FoldKey, u64> {
    let mut merged: FxHashMap<FoldKey, u64> = FxHashMap::default();
    for (&origin, bytes) in by_origin {
        *merged.entry(key(profile, origin, by_thread)).or_default() += bytes;
    }
    merged
}

pub(super) fn spell_out(
    profile: &Profile,
    merged: FxHashMap<FoldKey, u64>,
    evidence: &KeyEvidence,
) -> (Vec<FoldedStack>, TextBudget) {
    let mut keys: Vec<_> = merged.into_iter().collect();
    keys.sort_unstable_by_key(|&(key, bytes)| (std::cmp::Reverse(bytes), key));
    let mut budget = budget(profile);
    let mut stacks = Vec::new();
    for (key, bytes) in keys {
        if budget.takes(key.1, bytes) {
            let (path, evidence) = (of_key(profile, key), evidence.of(&key));
            stacks.push(FoldedStack { path, bytes, evidence });
        }
    }
    stacks.extend(budget.rest());
    (stacks, budget)
}
