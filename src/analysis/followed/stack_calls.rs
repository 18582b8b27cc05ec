//! In which calls stacks stand, for what is asked when the table of stacks is not at hand.

use rustc_hash::FxHashMap;

use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::model::{StackId, StackTable};

/// How far up the calls of a stack are looked at.
const DEPTH: usize = 6;
/// Stacks remembered; with more, all are forgotten.
const MAX_STACKS: usize = 1 << 17;

/// The callers of stacks that came into question for an allocation.
#[derive(Debug, Default)]
pub(super) struct StackCalls {
    parents: FxHashMap<StackId, StackId>,
}

impl StackCalls {
    /// Takes the stacks of some candidates.
    pub(super) fn add(&mut self, origins: &[AllocationOrigin], stacks: &StackTable) {
        if self.parents.len() >= MAX_STACKS {
            self.parents.clear();
        }
        for origin in origins {
            let AllocationOrigin::Stack(_, mut stack) = *origin else { continue };
            for _ in 0..DEPTH {
                let parent = stacks.get_stack(stack).and_then(|node| node.parent);
                let Some(parent) = parent else { break };
                self.parents.insert(stack, parent);
                stack = parent;
            }
        }
    }

    /// Whether `maker` is in the call of the function in which `seen` stands, or in one that this has made.
    pub(super) fn is_within(&self, maker: AllocationOrigin, seen: AllocationOrigin) -> bool {
        let (AllocationOrigin::Stack(thread, stack), AllocationOrigin::Stack(of, at)) =
            (maker, seen)
        else {
            return false;
        };
        let Some(call) = self.parents.get(&at) else { return false };
        let mut callers =
            std::iter::successors(Some(stack), |stack| self.parents.get(stack).copied());
        thread == of && callers.by_ref().take(DEPTH).any(|caller| caller == *call)
    }
}
