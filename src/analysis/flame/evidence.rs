//! How the sites of folded stacks are known.

use rustc_hash::FxHashMap;

use super::fold::by_origin;
use super::paths;
use crate::analysis::attribution::{AllocationOrigin, AttributedSnapshot, Evidence};
use crate::analysis::exact::ExactProfile;
use crate::analysis::folded::{EvidenceBytes, FoldKey, FoldedStack, PseudoFrame, StackLabel};
use crate::analysis::profile::Profile;

/// Proven and probable bytes by stack.
pub(super) struct KeyEvidence {
    proven: FxHashMap<FoldKey, u64>,
    probable: FxHashMap<FoldKey, u64>,
}

impl KeyEvidence {
    pub(super) fn of_snapshot(
        profile: &Profile,
        snapshot: &AttributedSnapshot,
        by_thread: bool,
    ) -> KeyEvidence {
        let known = |evidence| {
            let by_origin = by_origin(profile, snapshot, Some(evidence));
            paths::by_key(profile, &by_origin, by_thread)
        };
        KeyEvidence { proven: known(Evidence::Proven), probable: known(Evidence::Probable) }
    }

    /// Of all that was allocated: what has one stack is at least probable.
    pub(super) fn of_totals(
        profile: &Profile,
        all: &FxHashMap<FoldKey, u64>,
        certain: &FxHashMap<AllocationOrigin, u64>,
        by_thread: bool,
    ) -> KeyEvidence {
        let proven = paths::by_key(profile, certain, by_thread);
        let has_site = |key: &FoldKey| key.1.is_some() && key.2 != Some(PseudoFrame::NotSeen);
        let rest = all.iter().filter(|(key, _)| has_site(key)).map(|(key, bytes)| {
            (*key, bytes.saturating_sub(proven.get(key).copied().unwrap_or_default()))
        });
        KeyEvidence { probable: rest.collect(), proven }
    }

    pub(super) fn of(&self, key: &FoldKey) -> Option<EvidenceBytes> {
        let is_of_recording =
            !matches!(key.2, Some(PseudoFrame::BeforeRecording | PseudoFrame::Unmatched));
        let of = |known: &FxHashMap<FoldKey, u64>| known.get(key).copied().unwrap_or_default();
        is_of_recording
            .then(|| EvidenceBytes { proven: of(&self.proven), probable: of(&self.probable) })
    }
}

/// Of all stacks of an exact recording.
pub(super) fn sharpness(exact: &ExactProfile) -> Evidence {
    match exact.stacks_are_guessed() {
        true => Evidence::Sampled,
        false if exact.is_estimated() => Evidence::Probable,
        false => Evidence::Proven,
    }
}

pub(super) fn of_exact(profile: &Profile, stacks: &mut [FoldedStack]) {
    let Some(sharpness) = profile.exact().map(sharpness) else { return };
    let before = StackLabel::Pseudo(PseudoFrame::BeforeRecording);
    for stack in stacks.iter_mut().filter(|stack| !stack.path.contains(&before)) {
        let is_named = stack.path.iter().any(|label| matches!(label, StackLabel::Frame(_)));
        let known = |asked| if is_named && sharpness == asked { stack.bytes } else { 0 };
        stack.evidence = Some(EvidenceBytes {
            proven: known(Evidence::Proven),
            probable: known(Evidence::Probable),
        });
    }
}
