//! Which threads were seen to hold the allocator's lock: one that never is, among changes in which
//! others are, allocates nothing.
//!
//! `torch.compile`'s pool of processes, a logger or a progress bar have threads that stand still in
//! a read. A change beside which nobody is seen with the lock may be anybody's, but not theirs as
//! often as the program's.

use rustc_hash::FxHashMap;

use crate::model::{FollowedChange, StackId, ThreadId};

/// So many changes beside which others held the lock show that a thread most likely allocates
/// nothing.
const MIN_CHANGES: u32 = 8;
/// Threads remembered.
const MAX_THREADS: usize = 1 << 12;

/// What is known of one thread.
#[derive(Debug, Clone, Copy, Default)]
struct ThreadLocks {
    /// Changes beside which it was listed while another thread held the lock.
    others_held: u32,
    has_held: bool,
}

/// Who held the lock, since the recording began.
#[derive(Debug, Default)]
pub(super) struct LockHolders(FxHashMap<ThreadId, ThreadLocks>);

impl LockHolders {
    /// Takes a change. One that waits for the autograd engine, as its stack says, allocates by the
    /// engine's threads: whether it holds the lock says nothing.
    pub(super) fn add(&mut self, change: &FollowedChange, is_waiting: impl Fn(StackId) -> bool) {
        if !change.threads.iter().any(|thread| thread.held_lock) {
            return;
        }
        for thread in change.threads.iter().filter(|thread| !thread.stacks().any(&is_waiting)) {
            if self.0.len() >= MAX_THREADS && !self.0.contains_key(&thread.thread) {
                continue;
            }
            let known = self.0.entry(thread.thread).or_default();
            known.has_held |= thread.held_lock;
            known.others_held = known.others_held.saturating_add(u32::from(!thread.held_lock));
        }
    }

    /// Whether a thread may allocate: not one that others were always seen with the lock beside.
    pub(super) fn may_allocate(&self, thread: ThreadId) -> bool {
        let never = |known: &ThreadLocks| !known.has_held && known.others_held >= MIN_CHANGES;
        !self.0.get(&thread).is_some_and(never)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::attribution::{AllocationOrigin, HostStacks};
    use crate::analysis::autograd::EngineFrames;
    use crate::analysis::followed::FollowedSteps;
    use crate::analysis::followed::generated_buffers::ProgramText;
    use crate::model::{
        CounterDelta, FollowedThread, Frame, Function, Nanos, StackReading, StackTable,
    };

    /// A recording that begins in a backward pass: only the engine's thread is ever seen with the
    /// lock, and it has no stack.
    #[test]
    fn what_the_autograd_engine_allocates_is_of_the_thread_that_waits_for_it() {
        let mut stacks = StackTable::new();
        let file = "/site-packages/torch/autograd/graph.py".into();
        let function = Function { file, ..Function::of_test("_engine_run_backward", 860) };
        let mut engine = EngineFrames::default();
        engine.observe(&function);
        let function = stacks.function(function);
        let frame = stacks.frame(Frame { function, line: 869 });
        let waits = stacks.stack(None, frame);
        let reading = StackReading::Whole(waits);
        let no_sources = Default::default();
        let text = ProgramText { stacks: &stacks, sources: &no_sources };
        let listed = |thread, reading, held_lock| FollowedThread {
            thread: ThreadId(thread),
            before: reading,
            after: reading,
            held_lock,
            wait: Default::default(),
        };
        let mut steps = FollowedSteps::default();
        let changes = u64::from(16 * MIN_CHANGES);
        for nth in 1..=changes {
            let change = FollowedChange {
                before: Nanos(20_000 * nth),
                after: Nanos(20_000 * nth + 10_000),
                small: CounterDelta { allocations: 1, allocated_bytes: 512, ..Default::default() },
                live: [512 * nth as i64, 0],
                threads: vec![listed(0, reading, false), listed(1, StackReading::NoFrames, true)],
                ..FollowedChange::empty()
            };
            steps.push(&change, text, &engine, &HostStacks::default());
        }
        let made = steps.allocated().by_origin;
        let waiting = AllocationOrigin::Stack(ThreadId(0), waits);
        assert_eq!(made.into_iter().collect::<Vec<_>>(), [(waiting, 512 * changes)]);
    }
}
