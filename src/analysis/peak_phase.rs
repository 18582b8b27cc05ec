//! In which phase the peak of a recording lies, and what was allocated in it.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, AttributedSnapshot, Moment};
use crate::analysis::flame;
use crate::analysis::folded::{FoldOptions, FoldedStack, PseudoFrame, StackLabel};
use crate::analysis::peak;
use crate::analysis::phases::{PhaseSigns, RunPhase};
use crate::analysis::profile::Profile;
use crate::model::{CudaIndex, StackTable};

/// The phase of a peak. Only proven stacks count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeakPhase {
    /// What the program did when the last allocation reached the peak.
    pub phase: RunPhase,
    /// Bytes live at the peak that were allocated in such a phase.
    pub allocated_in_it: u64,
    /// Of these, at least so many were freed before the recording's end; `None`: not known.
    pub temporary: Option<u64>,
    /// Of these, temporary tensors of an optimizer that works on all parameters at once.
    pub foreach: u64,
}

/// `None`: the last allocation before the peak is not known or not proven, or its stack tells no
/// phase.
pub fn peak_phase(profile: &Profile, device: CudaIndex) -> Option<PeakPhase> {
    let peak = peak::of(profile, device)?;
    let moment = peak.moment.as_ref()?;
    // Below the peak, something allocated since may have been freed.
    if moment.allocated < peak.bytes() {
        return None;
    }
    let signs = match (profile.exact(), &moment.snapshot) {
        (Some(exact), _) => {
            let site = profile.stacks().get_site(exact.peak_site(device)?)?;
            PhaseSigns::of_site(profile.stacks(), site)?
        }
        (None, Some(snapshot)) => of_youngest(profile.stacks(), snapshot)?,
        (None, None) => return None,
    };
    let phase = signs.phase()?;
    let fold = |moment| flame::fold(profile, device, moment, FoldOptions::default());
    let folded = fold(Moment::Peak).ok()?;
    let end = fold(Moment::End).ok();
    // Also what a stack allocated later, and blocks that are not proven.
    let lasting: Option<FxHashMap<&[StackLabel], u64>> = end
        .as_ref()
        .map(|end| end.stacks.iter().map(|stack| (stack.path.as_slice(), stack.bytes)).collect());
    let (mut allocated_in_it, mut freed, mut foreach) = (0, 0, 0);
    for stack in &folded.stacks {
        let proven = stack.evidence.map_or(0, |evidence| evidence.proven);
        let signs = of_path(profile.stacks(), stack);
        if signs.phase() == Some(phase) {
            let left = lasting.as_ref().and_then(|all| all.get(stack.path.as_slice()));
            allocated_in_it += proven;
            freed += proven.saturating_sub(left.copied().unwrap_or(0));
            foreach += if signs.is_foreach { proven } else { 0 };
        }
    }
    let temporary = lasting.as_ref().map(|_| freed);
    Some(PeakPhase { phase, allocated_in_it, temporary, foreach })
}

/// Of the block that was allocated last.
fn of_youngest(stacks: &StackTable, snapshot: &AttributedSnapshot) -> Option<PhaseSigns> {
    if !snapshot.followed {
        return None;
    }
    let charges = || snapshot.blocks.iter().map(|(_, charge)| charge);
    let time = charges().map(|charge| charge.allocated_at).max().filter(|time| *time > 0)?;
    let mut known: FxHashMap<Option<RunPhase>, PhaseSigns> = FxHashMap::default();
    for charge in charges().filter(|charge| charge.allocated_at == time) {
        let Some(AllocationOrigin::Stack(_, stack)) = charge.certain_origin() else { return None };
        let signs = PhaseSigns::of_stack(stacks, stack);
        known.insert(signs.phase(), signs);
    }
    let mut signs = known.into_values();
    signs.next().filter(|_| signs.next().is_none())
}

fn of_path(stacks: &StackTable, stack: &FoldedStack) -> PhaseSigns {
    let functions = stack.path.iter().filter_map(|label| match label {
        StackLabel::Frame(frame) => stacks.get_function(frame.function),
        _ => None,
    });
    let signs =
        PhaseSigns::of_functions(functions.map(|function| (&*function.name, &*function.file)));
    let is_of_engine = |label: &StackLabel| {
        matches!(
            label,
            StackLabel::Node(_)
                | StackLabel::NodeOfUnknownLine(_)
                | StackLabel::Pseudo(PseudoFrame::BackwardOf | PseudoFrame::AutogradThread)
        )
    };
    let is_backward = signs.is_backward || stack.path.iter().any(is_of_engine);
    PhaseSigns { is_backward, ..signs }
}
