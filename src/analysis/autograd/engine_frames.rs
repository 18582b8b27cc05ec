//! Where Python waits for the autograd engine.

use crate::model::{Function, StackId, StackTable};

/// Finds stacks that wait for the engine: since PyTorch 2.1 in `_engine_run_backward` of
/// torch/autograd/graph.py, before in `backward` or `grad` of torch/autograd/__init__.py. Later
/// versions allocate in those two, so they count only without the newer function.
#[derive(Debug, Default)]
pub(crate) struct EngineFrames {
    has_engine_function: bool,
}

impl EngineFrames {
    pub(crate) fn observe(&mut self, function: &Function) {
        self.has_engine_function |= is_engine_function(function);
    }

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
