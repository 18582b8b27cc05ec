//! Which thread a stack belongs to that an autograd thread was given: the one that called `backward()`.

use rustc_hash::FxHashMap;

use crate::model::{FunctionId, StackId, StackTable, ThreadId};

/// Threads by where their stacks begin.
#[derive(Debug, Default)]
pub(crate) struct ThreadRoots {
    /// By outermost frame; `None` where several threads begin there.
    by_frame: FxHashMap<StackId, Option<ThreadId>>,
    /// By its function.
    by_function: FxHashMap<FunctionId, Option<ThreadId>>,
    /// Frames that were passed to find where stacks begin.
    pub(crate) steps: u64,
}

impl ThreadRoots {
    /// Takes notice of a thread's own stack.
    pub(crate) fn observe(&mut self, thread: ThreadId, stack: StackId, table: &StackTable) {
        let Some((root, function)) = outermost(stack, table, &mut self.steps) else { return };
        for known in [
            self.by_frame.entry(root).or_insert(Some(thread)),
            self.by_function.entry(function).or_insert(Some(thread)),
        ] {
            if *known != Some(thread) {
                *known = None;
            }
        }
    }

    /// The thread that has this stack; `None` when none or several are known that begin like it.
    pub(crate) fn thread(&mut self, stack: StackId, table: &StackTable) -> Option<ThreadId> {
        let (root, function) = outermost(stack, table, &mut self.steps)?;
        *self.by_frame.get(&root).or_else(|| self.by_function.get(&function))?
    }
}

fn outermost(
    mut stack: StackId,
    table: &StackTable,
    steps: &mut u64,
) -> Option<(StackId, FunctionId)> {
    while let Some(parent) = table.get_stack(stack)?.parent {
        stack = parent;
        *steps += 1;
    }
    let frame = table.get_frame(table.get_stack(stack)?.frame)?;
    Some((stack, frame.function))
}
