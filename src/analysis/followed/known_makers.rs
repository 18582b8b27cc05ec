//! What is found out of a change later: which line of a loop, of generated code, or of two in one call made its blocks.

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::rules::BlockGroup;
use crate::analysis::followed::FollowedSteps;
use crate::analysis::followed::buffer_alignment::MadeBuffer;
use crate::analysis::followed::dropped_variables::ProgramText;
use crate::analysis::followed::follow_replay::charged_to;
use crate::model::FollowedChange;

impl FollowedSteps {
    /// What loops and generated code allocated until now.
    pub(crate) fn settle(&mut self, text: ProgramText<'_>) {
        let mut known = self.loops.settle();
        known.append(&mut self.buffers.settle(text));
        for (of, buffers) in known {
            self.made_by_lines(of, &buffers);
        }
    }

    /// Takes what one change allocated, for two lines of one call that make blocks of one kind.
    pub(super) fn find_pair(
        &mut self,
        number: u64,
        made: Option<(BlockGroup, AllocationOrigin)>,
        may_be_ahead: bool,
        change: &FollowedChange,
    ) {
        let Some(made) = made else {
            if change.allocations() > 0 {
                self.pairs.clear();
            }
            return;
        };
        let first = self.pairs.add(number, made, may_be_ahead, &self.allocation_sources);
        let Some((of, line)) = first else { return };
        self.made_by_lines(of, &[(line, made.0.requested)]);
        if let Some(past) = self.past.get_mut(of) {
            past.charge = charged_to(line, &past.charge);
        }
    }

    /// Lines of a loop, or of generated code, made what change `number` allocated.
    pub(super) fn made_by_lines(&mut self, number: u64, buffers: &[MadeBuffer]) {
        let index = number.checked_sub(self.first).map(|index| index as usize);
        let Some(step) = index.and_then(|index| self.steps.get_mut(index)) else { return };
        if step.charge.certain {
            return;
        }
        let had = step.parts.as_ref().map_or(0, Vec::len);
        step.made_by_lines(buffers);
        let has = step.parts.as_ref().map_or(0, Vec::len);
        self.parts = self.parts.saturating_sub(had) + has;
    }
}
