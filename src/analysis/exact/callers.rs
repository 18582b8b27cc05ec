//! Finds the thread that called `backward()`.

use rustc_hash::FxHashMap;

use crate::model::{FunctionId, StackId, StackTable, ThreadId};

/// Threads by the outermost frames of their stacks.
#[derive(Debug, Default)]
pub(crate) struct ThreadRoots {
    /// By outermost frame; `None` if several threads share it.
    by_frame: FxHashMap<StackId, Option<ThreadId>>,
    /// By the function of that frame.
    by_function: FxHashMap<FunctionId, Option<ThreadId>>,
    /// Frames walked so far.
    pub(crate) steps: u64,
}

impl ThreadRoots {
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

    /// The only known thread with this outermost frame, or function.
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
