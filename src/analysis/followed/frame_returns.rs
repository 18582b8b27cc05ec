//! When the Python frame that allocated a block returned: its local variables die right then.

use rustc_hash::FxHashMap;

use crate::model::{FunctionId, StackId, StackTable, ThreadId};

/// Allocations remembered for one frame.
const MAX_OF_ONE_FRAME: usize = 256;
/// Threads followed.
const MAX_THREADS: usize = 256;

/// The frames that were seen last in each thread, with the allocations that they made.
#[derive(Debug, Default)]
pub(in crate::analysis) struct OpenFrames {
    threads: FxHashMap<ThreadId, ThreadFrames>,
}

#[derive(Debug, Default)]
struct ThreadFrames {
    stack: Option<StackId>,
    /// The first change that it can have made after it was seen last.
    next: u64,
    /// From the outermost to the innermost.
    functions: Vec<FunctionId>,
    /// Allocations by the frame that made them; as long as `functions`.
    allocations: Vec<Vec<u64>>,
}

impl OpenFrames {
    /// A thread was seen with this stack; `next` is the first change that it can have made after that. Gives the allocations
    /// whose frames have returned since it was seen last, and the first change that it can have made since.
    pub(in crate::analysis) fn observe(
        &mut self,
        thread: ThreadId,
        stack: StackId,
        next: u64,
        stacks: &StackTable,
    ) -> (Vec<u64>, u64) {
        if self.threads.len() >= MAX_THREADS && !self.threads.contains_key(&thread) {
            return (Vec::new(), next);
        }
        let frames = self.threads.entry(thread).or_default();
        let since = std::mem::replace(&mut frames.next, next);
        if frames.stack == Some(stack) {
            return (Vec::new(), since);
        }
        frames.stack = Some(stack);
        let functions = functions_of(stack, stacks);
        let common = frames.functions.iter().zip(&functions).take_while(|(a, b)| a == b).count();
        let returned = frames.allocations.drain(common..).flatten().collect();
        frames.allocations.resize_with(functions.len(), Vec::new);
        frames.functions = functions;
        (returned, since)
    }

    /// The innermost frame of the stack with which the thread was seen last made an allocation.
    pub(in crate::analysis) fn allocate(
        &mut self,
        thread: ThreadId,
        stack: StackId,
        allocation: u64,
    ) {
        let Some(frames) = self.threads.get_mut(&thread).filter(|f| f.stack == Some(stack)) else {
            return;
        };
        if let Some(of_frame) = frames.allocations.last_mut()
            && of_frame.len() < MAX_OF_ONE_FRAME
        {
            of_frame.push(allocation);
        }
    }
}

fn functions_of(stack: StackId, stacks: &StackTable) -> Vec<FunctionId> {
    let mut functions = Vec::new();
    let mut at = Some(stack);
    while let Some(node) = at.and_then(|stack| stacks.get_stack(stack)) {
        functions.extend(stacks.get_frame(node.frame).map(|frame| frame.function));
        at = node.parent;
    }
    functions.reverse();
    functions
}
