//! Where gradients are freed: `zero_grad` gives up what the autograd engine made, whatever else of the same size is younger.
//!
//! The optimizer's first step makes its state just before that, and nothing has been learned of the place yet.

use rustc_hash::FxHashSet;

use crate::analysis::attribution::block_attribution::{AllocationOrigin, BlockAttribution};
use crate::analysis::autograd::engine_frames::EngineFrames;
use crate::model::{StackId, StackTable};

/// `Optimizer.zero_grad` and `Module.zero_grad`, PyTorch 2.1 to 2.15.
const ZERO_GRAD: &str = "zero_grad";
const FILES: [&str; 2] = ["torch/optim/optimizer.py", "torch/nn/modules/module.py"];
/// `zero_grad` frees gradients itself, or with what it calls for many at once.
const MAX_BELOW: usize = 4;
/// Stacks in which a program waits for the engine that are remembered.
const MAX_ORIGINS: usize = 1 << 12;

/// Who allocates for the engine.
#[derive(Debug, Default)]
pub(in crate::analysis) struct GradientFrees {
    engine: FxHashSet<AllocationOrigin>,
}

impl GradientFrees {
    /// Takes whom a change is charged to.
    pub(in crate::analysis) fn saw(
        &mut self,
        charge: &BlockAttribution,
        stacks: &StackTable,
        engine: &EngineFrames,
    ) {
        if let Some(origin @ AllocationOrigin::Stack(_, stack)) = charge.only_stack()
            && engine.is_waiting(stacks, stack)
            && self.engine.len() < MAX_ORIGINS
        {
            self.engine.insert(origin);
        }
    }

    /// Whether the engine allocated it.
    pub(in crate::analysis) fn is_gradient(&self, attribution: &BlockAttribution) -> bool {
        attribution.only_stack().is_some_and(|origin| self.engine.contains(&origin))
    }
}

/// Whether the program is in `zero_grad` there.
pub(in crate::analysis) fn frees_gradients(
    origins: &[AllocationOrigin],
    stacks: &StackTable,
) -> bool {
    let is_zero_grad = |stack: &StackId| {
        let node = stacks.get_stack(*stack);
        let frame = node.and_then(|node| stacks.get_frame(node.frame));
        frame.and_then(|frame| stacks.get_function(frame.function)).is_some_and(|function| {
            // `Optimizer.zero_grad` from CPython 3.11 on.
            let name = function.name.rsplit('.').next();
            name == Some(ZERO_GRAD) && FILES.iter().any(|file| function.file.ends_with(file))
        })
    };
    let is_there = |origin: &AllocationOrigin| {
        let AllocationOrigin::Stack(_, stack) = *origin else { return false };
        let caller = |stack: &StackId| stacks.get_stack(*stack)?.parent;
        std::iter::successors(Some(stack), caller).take(MAX_BELOW).any(|at| is_zero_grad(&at))
    };
    origins.iter().any(is_there)
}
