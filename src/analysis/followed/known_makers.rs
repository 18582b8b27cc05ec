//! Known after later deltas: which line of a loop, or of generated code, allocated the blocks.

use crate::analysis::followed::FollowedSteps;
use crate::analysis::followed::buffer_alignment::MadeBuffer;
use crate::analysis::followed::generated_buffers::ProgramText;

impl FollowedSteps {
    /// What loops and generated code allocated until now.
    pub(crate) fn settle(&mut self, text: ProgramText<'_>) {
        let mut known = self.loops.settle();
        known.append(&mut self.buffers.settle(text));
        for (of, buffers) in known {
            self.made_by_lines(of, &buffers);
        }
    }

    /// Lines of a loop, or of generated code, made what change `number` allocated.
    pub(super) fn made_by_lines(&mut self, number: u64, buffers: &[MadeBuffer]) {
        let index = number.checked_sub(self.first).map(|index| index as usize);
        let Some(step) = index.and_then(|index| self.steps.get_mut(index)) else { return };
        if step.charge.certain {
            return;
        }
        let had = step.parts.as_ref().map_or(0, Vec::len);
        step.made_by_lines(buffers);
        let has = step.parts.as_ref().map_or(0, Vec::len);
        self.parts = self.parts.saturating_sub(had) + has;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::attribution::{AllocationOrigin, HostStacks};
    use crate::analysis::autograd::EngineFrames;
    use crate::model::{
        CounterDelta, FollowedChange, FollowedThread, Frame, Function, FunctionId, Nanos,
        SourceText, StackId, StackReading, StackTable, ThreadId,
    };
    use rustc_hash::FxHashMap;

    const TEXT: &str = "def call(args):
    buf0 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    triton_0.run(buf0, stream=stream0)
    buf1 = empty_strided_cuda((1024, 512), (512, 1), torch.float32)
    triton_1.run(buf1, stream=stream0)";
    const CALLS: u64 = 20;
    const FIRST: i64 = 4 << 20;
    const SECOND: i64 = 2 << 20;

    /// A function generated for it makes two buffers, by its lines 2 and 4, and is called `CALLS` times.
    struct TwoBuffers {
        stacks: StackTable,
        sources: FxHashMap<FunctionId, SourceText>,
        /// The lines of the function.
        lines: [StackId; 5],
        /// The kernels behind the buffers.
        kernels: [StackReading; 2],
        steps: FollowedSteps,
    }

    impl TwoBuffers {
        fn new() -> TwoBuffers {
            let mut stacks = StackTable::new();
            let mut function = |name: &str| stacks.function(Function::of_test(name, 5));
            let (call, kernel) = (function("call"), function("run"));
            let mut stack = |parent, function, line| {
                let frame = stacks.frame(Frame { function, line });
                stacks.stack(parent, frame)
            };
            let lines = [1, 2, 3, 4, 5].map(|line| stack(None, call, line));
            let kernels =
                [lines[2], lines[4]].map(|line| StackReading::Whole(stack(Some(line), kernel, 1)));
            let source = SourceText { function: call, first_line: 1, text: TEXT.into() };
            let sources = [(call, source)].into_iter().collect();
            TwoBuffers { stacks, sources, lines, kernels, steps: FollowedSteps::default() }
        }

        /// A change of so many allocations, the `nth` of the recording.
        fn change(&mut self, nth: u64, (count, bytes): (i64, i64), sides: [StackReading; 2]) {
            // A stack read so long before says nothing of a change.
            let now = 100_000 + 2_000_000 * nth;
            let [before, after] = sides;
            let change = FollowedChange {
                before: Nanos(now - 10_000),
                after: Nanos(now),
                large: CounterDelta {
                    allocations: count,
                    allocated_bytes: bytes,
                    requested_bytes: bytes,
                    ..CounterDelta::default()
                },
                live: [0, bytes],
                threads: vec![FollowedThread {
                    thread: ThreadId(0),
                    before,
                    after,
                    held_lock: true,
                    wait: Default::default(),
                }],
                ..FollowedChange::empty()
            };
            let text = ProgramText { stacks: &self.stacks, sources: &self.sources };
            let (engine, host_only) = (EngineFrames::default(), HostStacks::default());
            self.steps.push(&change, text, &engine, &host_only);
        }

        /// The polls before and after the second buffer fail: `last` are those of the last call, where it is not seen from the kernel behind it.
        fn calls(&mut self, last: StackReading) {
            let start = StackReading::Whole(self.lines[1]);
            let [first, second] = self.kernels;
            for call in 0..CALLS {
                self.change(2 * call, (1, FIRST), [start, first]);
                let after = if call == CALLS - 1 { last } else { second };
                self.change(2 * call + 1, (1, SECOND), [StackReading::Torn, after]);
            }
        }

        /// Bytes that the two lines made.
        fn made(&mut self) -> [Option<u64>; 2] {
            let text = ProgramText { stacks: &self.stacks, sources: &self.sources };
            self.steps.settle(text);
            let made = self.steps.allocated().by_origin;
            [self.lines[1], self.lines[3]]
                .map(|stack| made.get(&AllocationOrigin::Stack(ThreadId(0), stack)).copied())
        }
    }

    #[test]
    fn the_line_that_the_text_tells_is_not_overruled_by_where_the_program_was_seen_last() {
        let mut program = TwoBuffers::new();
        program.calls(StackReading::Torn);
        assert_eq!(program.made(), [FIRST, SECOND].map(|bytes| Some(CALLS * bytes as u64)));
    }
}
