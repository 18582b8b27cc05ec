//! Threads that only work on host memory.

use rustc_hash::FxHashSet;

use crate::model::{Function, FunctionId, StackId, StackNode, StackTable};

/// By end of the file's path: DataLoader's copies into pinned memory, and the sender of
/// `multiprocessing.Queue`.
const LOOPS: [(&str, &str); 2] = [
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
    ("/multiprocessing/queues.py", "_feed"),
];

#[derive(Debug, Default)]
pub(crate) struct HostStacks {
    loops: FxHashSet<FunctionId>,
    /// By stack number.
    stacks: Vec<bool>,
}

impl HostStacks {
    pub(crate) fn observe(&mut self, id: FunctionId, function: &Function) {
        let own = function.name.rsplit('.').next().unwrap_or(&function.name);
        if LOOPS.iter().any(|(file, name)| own == *name && function.file.ends_with(file)) {
            self.loops.insert(id);
        }
    }

    pub(crate) fn push(&mut self, node: &StackNode, stacks: &StackTable) {
        let inherited = node.parent.is_some_and(|parent| self.has(parent));
        let function = stacks.get_frame(node.frame).map(|frame| frame.function);
        let is_loop = function.is_some_and(|function| self.loops.contains(&function));
        self.stacks.push(inherited || is_loop);
    }

    pub(crate) fn has(&self, stack: StackId) -> bool {
        self.stacks.get(stack.0 as usize).copied().unwrap_or(false)
    }
}
