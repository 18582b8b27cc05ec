//! In which calls stacks stand, for what is asked when the table of stacks is not at hand.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::AllocationOrigin;
use crate::model::{FrameId, FunctionId, StackId, StackTable, ThreadId};

/// A thread that is deeper in a call does not leave it, go elsewhere, and come back between two polls.
pub(super) const DEEP: usize = 10;
/// Stacks remembered; with more, all are forgotten.
const MAX_STACKS: usize = 1 << 17;

/// The callers of stacks that came into question for an allocation.
#[derive(Debug, Default)]
pub(super) struct StackCalls {
    parents: FxHashMap<StackId, StackId>,
    /// The innermost line of each.
    lines: FxHashMap<StackId, SeenLine>,
}

#[derive(Debug, Clone, Copy)]
struct SeenLine {
    frame: FrameId,
    function: FunctionId,
    number: u32,
}

impl StackCalls {
    /// Takes the stacks of some candidates.
    pub(super) fn add(&mut self, origins: &[AllocationOrigin], stacks: &StackTable) {
        if self.parents.len() >= MAX_STACKS {
            self.parents.clear();
            self.lines.clear();
        }
        for origin in origins {
            let AllocationOrigin::Stack(_, mut stack) = *origin else { continue };
            let Some(node) = stacks.get_stack(stack) else { continue };
            let Some(frame) = stacks.get_frame(node.frame) else { continue };
            let line = SeenLine { frame: node.frame, function: frame.function, number: frame.line };
            if self.lines.insert(stack, line).is_some() {
                continue;
            }
            // What is above a caller that is known is known as well.
            while let Some(parent) = stacks.get_stack(stack).and_then(|node| node.parent) {
                if self.parents.insert(stack, parent).is_some() {
                    break;
                }
                stack = parent;
            }
        }
    }

    /// The line on which a thread stood.
    pub(super) fn line(&self, origin: AllocationOrigin) -> Option<FrameId> {
        let AllocationOrigin::Stack(_, stack) = origin else { return None };
        self.lines.get(&stack).map(|line| line.frame)
    }

    /// Whether a line comes ahead of another one of the same call.
    pub(super) fn is_ahead(&self, line: AllocationOrigin, other: AllocationOrigin) -> bool {
        let (AllocationOrigin::Stack(thread, one), AllocationOrigin::Stack(of, two)) =
            (line, other)
        else {
            return false;
        };
        let of_one_call = thread == of && self.parents.get(&one) == self.parents.get(&two);
        let (Some(one), Some(two)) = (self.lines.get(&one), self.lines.get(&two)) else {
            return false;
        };
        of_one_call && one.function == two.function && one.number < two.number
    }

    /// The call in which it stood there.
    pub(super) fn call(&self, origin: AllocationOrigin) -> Option<(ThreadId, StackId)> {
        let AllocationOrigin::Stack(thread, stack) = origin else { return None };
        Some((thread, *self.parents.get(&stack)?))
    }

    /// Whether a thread that was seen at `seen` may have come from `maker` or gone there between two polls.
    pub(super) fn are_near(&self, maker: AllocationOrigin, seen: AllocationOrigin) -> bool {
        let (AllocationOrigin::Stack(thread, maker), AllocationOrigin::Stack(of, seen)) =
            (maker, seen)
        else {
            return true;
        };
        let callers = |stack| self.callers(stack).take(DEEP);
        let is_shallow = callers(seen).count() < DEEP;
        thread == of
            && (is_shallow || callers(maker).any(|caller| callers(seen).any(|of| of == caller)))
    }

    /// Whether a thread that was seen before and after may have been at `maker` in between: where one of the two is in a call that the line of the
    /// other has made, the thread did not leave this line.
    pub(super) fn may_be_between(
        &self,
        maker: AllocationOrigin,
        seen: &[(AllocationOrigin, u64)],
    ) -> bool {
        let (Some((thread, line)), AllocationOrigin::Stack(of, maker)) =
            (self.stayed_on(seen), maker)
        else {
            return true;
        };
        thread != of || self.is_under(maker, line)
    }

    /// The line that a thread did not leave, which was seen on it and in a call that this has made; and the thread.
    pub(super) fn stayed_on(
        &self,
        seen: &[(AllocationOrigin, u64)],
    ) -> Option<(ThreadId, StackId)> {
        let [(AllocationOrigin::Stack(thread, one), _), (AllocationOrigin::Stack(of, other), _)] =
            *seen
        else {
            return None;
        };
        let mut lines = [(one, other), (other, one)].into_iter();
        let (line, _) = lines.find(|(line, stack)| self.is_under(*stack, *line))?;
        (thread == of).then_some((thread, line))
    }

    /// Whether a stack is on this line, or in a call that it has made.
    fn is_under(&self, stack: StackId, line: StackId) -> bool {
        self.callers(stack).any(|caller| caller == line)
    }

    /// A stack, and those of its callers.
    fn callers(&self, stack: StackId) -> impl Iterator<Item = StackId> {
        std::iter::successors(Some(stack), |stack| self.parents.get(stack).copied())
    }
}
