//! The frame in which Python waits while the autograd engine's threads run the backward pass.

use crate::model::{Function, StackId, StackTable};

/// Says whether a stack's innermost frame waits for the autograd engine.
///
/// torch/autograd/graph.py has had `_engine_run_backward` since PyTorch 2.1; before, `backward` and
/// `grad` of torch/autograd/__init__.py called the engine themselves. They still exist in later
/// versions and allocate a little there, so they only count where the newer function was never seen.
#[derive(Debug, Default)]
pub(crate) struct EngineFrames {
    has_engine_function: bool,
}

impl EngineFrames {
    /// Takes notice of a function.
    pub(crate) fn observe(&mut self, function: &Function) {
        self.has_engine_function |= is_engine_function(function);
    }

    /// Whether the innermost frame of `stack` waits for the engine.
    pub(crate) fn is_waiting(&self, stacks: &StackTable, stack: StackId) -> bool {
        let Some(function) = stacks
            .get_stack(stack)
            .and_then(|node| stacks.get_frame(node.frame))
            .and_then(|frame| stacks.get_function(frame.function))
        else {
            return false;
        };
        if self.has_engine_function {
            is_engine_function(function)
        } else {
            matches!(&*function.name, "backward" | "grad")
                && function.file.ends_with("torch/autograd/__init__.py")
        }
    }
}

fn is_engine_function(function: &Function) -> bool {
    &*function.name == "_engine_run_backward" && function.file.ends_with("torch/autograd/graph.py")
}
