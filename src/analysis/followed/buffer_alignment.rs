//! Which lines of generated code made what was allocated while the polls saw the lines around them.
//!
//! While a thread is in a call of such a function it passes its lines in their order, and each of them makes a buffer of its own size. The
//! changes of the counters are laid beside the lines, as many as fit, in order, each between the lines at which the thread was seen
//! before it and after it. What fits none was allocated by something that the function called. All of this is likely, never certain.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::generated_buffers::{BufferLine, GeneratedBuffers, ProgramText};
use super::line_pairs::{UnplacedChange, pairs};
use crate::analysis::attribution::AllocationOrigin;
use crate::model::{FollowedChange, Frame, FunctionId, StackId, StackReading, ThreadId};

/// Levels of a stack that are searched for a generated function, innermost first: what it calls is the launch of a kernel, or one operator.
const MAX_DEPTH: usize = 16;
/// Changes that are laid beside the lines at once.
const MAX_WAITING: usize = 128;
/// Lines beside which they are laid.
const MAX_LINES: usize = 1 << 10;

/// A buffer that was made: by whom, and how many bytes it asked for.
pub(super) type MadeBuffer = (AllocationOrigin, u64);

/// Where a thread was in generated code.
#[derive(Debug, Clone)]
struct GeneratedPlace {
    parent: Option<StackId>,
    function: FunctionId,
    line: u32,
    lines: Arc<[BufferLine]>,
    /// Whether it was in something that the line called.
    is_below: bool,
}

/// What a stack says of that.
enum SeenPlace {
    In(GeneratedPlace),
    Elsewhere,
    Unknown,
}

/// A call of a generated function under way.
#[derive(Debug)]
struct GeneratedCall {
    at: GeneratedPlace,
    /// When it was seen there, in nanoseconds since the recording began.
    seen: u64,
    /// How many of its lines lay behind it then, and at the poll before: a poll copies the stacks after the counters, so what it has just passed
    /// may not have been counted yet.
    passed: [usize; 2],
    began: Option<PollsBegin>,
    /// The first line that was not given to a change.
    next: usize,
    waiting: Vec<UnplacedChange>,
}

/// Where a call was at the first of the two polls between which it is looked at.
#[derive(Debug, Clone, Copy)]
struct PollsBegin {
    /// When that poll began.
    time: u64,
    /// The first line that can have made what was allocated between the two.
    from: usize,
    is_below: bool,
}

/// The calls of all threads.
#[derive(Debug, Default)]
pub(super) struct BufferAlignment {
    generated: GeneratedBuffers,
    calls: FxHashMap<ThreadId, GeneratedCall>,
    /// How an operator of PyTorch is called that generated code calls: the frame right below its line, as last seen.
    operator: Option<Frame>,
    made: Vec<(u64, Vec<MadeBuffer>)>,
}

impl BufferAlignment {
    /// Takes the change with this number, which one of `threads` has made: gives the changes whose lines are known now.
    pub(super) fn add(
        &mut self,
        number: u64,
        change: &FollowedChange,
        threads: &[ThreadId],
        text: ProgramText<'_>,
    ) -> Vec<(u64, Vec<MadeBuffer>)> {
        let mut makers = Vec::new();
        for listed in &change.threads {
            // Several changes can lie between two polls: the first of them brought the stacks of both.
            let seen = self.calls.get(&listed.thread).map(|call| call.seen);
            if seen.is_none_or(|seen| seen < change.before.0) {
                let before = self.place(listed.before, text);
                self.see(listed.thread, before, (change.before.0, change.others_possible), text);
            }
            let after = self.place(listed.after, text);
            let is_in =
                matches!(after, SeenPlace::In(_)) || self.calls.contains_key(&listed.thread);
            // What it called made it, where it was in there all the time; of an operator the text says what that is.
            let stays_below = listed.before == listed.after
                && !change.others_possible
                && matches!(&after, SeenPlace::In(at) if at.is_below && !at.calls_operator());
            if is_in && !stays_below && threads.contains(&listed.thread) {
                makers.push(listed.thread);
                // It may have been called meanwhile.
                if let SeenPlace::In(at) = after {
                    self.calls.entry(listed.thread).or_insert_with(|| {
                        let at = GeneratedPlace { line: 0, is_below: false, ..at };
                        GeneratedCall::new(at, change.before.0, false)
                    });
                }
            }
            if let Some(call) = self.calls.get_mut(&listed.thread) {
                call.begin(change.before.0, matches!(listed.before, StackReading::Whole(_)));
            }
        }
        let counts = !change.counters_torn && !change.totals_reset;
        // Of two that can have made it nobody knows.
        if let [thread] = makers[..]
            && change.allocations() > 0
            && counts
            && let Some(call) = self.calls.get_mut(&thread)
        {
            call.wait(number, change);
            if call.waiting.len() == MAX_WAITING {
                call.align(thread, self.operator, text, &mut self.made);
            }
        }
        for listed in &change.threads {
            let after = self.place(listed.after, text);
            self.see(listed.thread, after, (change.after.0, false), text);
            if let Some(call) = self.calls.get_mut(&listed.thread) {
                // One that was not seen before began between the two polls.
                let time = change.before.0;
                call.began.get_or_insert(PollsBegin { time, from: 0, is_below: false });
            }
        }
        std::mem::take(&mut self.made)
    }

    /// What is known by now of all changes that wait.
    pub(super) fn settle(&mut self, text: ProgramText<'_>) -> Vec<(u64, Vec<MadeBuffer>)> {
        for (thread, call) in &mut self.calls {
            call.align(*thread, self.operator, text, &mut self.made);
        }
        std::mem::take(&mut self.made)
    }

    fn place(&mut self, reading: StackReading, text: ProgramText<'_>) -> SeenPlace {
        let mut next = match reading {
            StackReading::Whole(stack) => Some(stack),
            StackReading::NoFrames => None,
            StackReading::Torn | StackReading::NotRead => return SeenPlace::Unknown,
        };
        let mut called = None;
        for depth in 0..MAX_DEPTH {
            let Some(node) = next.and_then(|stack| text.stacks.get_stack(stack)) else { break };
            let Some(frame) = text.stacks.get_frame(node.frame) else { break };
            let Frame { function, line } = frame;
            if let Some(lines) = self.generated.of(function, text.sources) {
                let is_below = depth > 0;
                let parent = node.parent;
                let place = GeneratedPlace { parent, function, line, lines, is_below };
                if depth == 1 && place.calls_operator() {
                    self.operator = called;
                }
                return SeenPlace::In(place);
            }
            (called, next) = (Some(frame), node.parent);
        }
        SeenPlace::Elsewhere
    }

    /// A thread was seen at `time`, or late: then its stack may be of after the change that comes next.
    fn see(
        &mut self,
        thread: ThreadId,
        place: SeenPlace,
        (time, is_late): (u64, bool),
        text: ProgramText<'_>,
    ) {
        let known = self.calls.get_mut(&thread);
        match (known, place) {
            (_, SeenPlace::Unknown) | (None, SeenPlace::Elsewhere) => {}
            (Some(call), SeenPlace::In(at)) if call.at.goes_on_to(&at) => call.goes_on(at, time),
            (call, place) => {
                if let Some(call) = call {
                    call.align(thread, self.operator, text, &mut self.made);
                }
                match place {
                    SeenPlace::In(at) => {
                        self.calls.insert(thread, GeneratedCall::new(at, time, is_late))
                    }
                    _ => self.calls.remove(&thread),
                };
            }
        }
    }
}

impl GeneratedPlace {
    fn goes_on_to(&self, later: &GeneratedPlace) -> bool {
        (self.parent, self.function) == (later.parent, later.function) && self.line <= later.line
    }

    /// Whether its line calls an operator of PyTorch.
    fn calls_operator(&self) -> bool {
        self.lines.get(self.passed()).is_some_and(|of| of.line == self.line && of.is_operator())
    }

    /// How many of the lines lie before it.
    fn passed(&self) -> usize {
        self.lines.partition_point(|line| line.line < self.line)
    }
}

impl GeneratedCall {
    /// One seen for the first time; `is_late` if the stack may have been copied after the change that comes next.
    fn new(at: GeneratedPlace, seen: u64, is_late: bool) -> GeneratedCall {
        let passed = [at.passed(), if is_late { 0 } else { at.passed() }];
        GeneratedCall { at, seen, passed, began: None, next: 0, waiting: Vec::new() }
    }

    /// Takes the first of two polls; `was_seen` if the stack was. Of several changes between them the first brings the stacks of both.
    fn begin(&mut self, time: u64, was_seen: bool) {
        if self.began.is_none_or(|began| began.time != time) {
            let from = self.passed[usize::from(was_seen)];
            self.began = Some(PollsBegin { time, from, is_below: self.at.is_below });
        }
    }

    fn goes_on(&mut self, at: GeneratedPlace, time: u64) {
        // The poll after one change is often the poll before the next.
        if time > self.seen {
            self.passed[1] = self.passed[0];
        }
        let to = at.lines.partition_point(|line| line.line <= at.line);
        for waiting in &mut self.waiting {
            waiting.to.get_or_insert(to);
        }
        self.passed[0] = at.passed();
        (self.at, self.seen) = (at, time);
    }

    /// Takes a change that happened in it.
    fn wait(&mut self, number: u64, change: &FollowedChange) {
        let (from, is_below) = self.began.map_or((0, false), |began| (began.from, began.is_below));
        let (small, large) = (change.small, change.large);
        self.waiting.push(UnplacedChange { number, small, large, is_below, from, to: None });
    }

    /// Lays the changes that wait beside the lines.
    fn align(
        &mut self,
        thread: ThreadId,
        operator: Option<Frame>,
        text: ProgramText<'_>,
        made: &mut Vec<(u64, Vec<MadeBuffer>)>,
    ) {
        let waiting = std::mem::take(&mut self.waiting);
        let Some(first) = waiting.iter().map(|change| change.from).min() else { return };
        let first = first.max(self.next);
        let end = waiting.iter().map(|change| change.to.unwrap_or(usize::MAX)).max();
        let end = end.unwrap_or(0).min(self.at.lines.len()).min(first + MAX_LINES);
        let lines = self.at.lines.get(first..end).unwrap_or_default();
        let mut sizes = Vec::new();
        for (change, from, to) in pairs(&waiting, lines, first) {
            self.next = first + to;
            let lines = &lines[from..to];
            let made_by = |(line, bytes): (&BufferLine, u64)| {
                let frame = Frame { function: self.at.function, line: line.line };
                let line_stack = text.stacks.find_stack(self.at.parent, frame)?;
                let stack = match line.is_operator() {
                    true => text.stacks.find_stack(Some(line_stack), operator?)?,
                    false => line_stack,
                };
                Some((AllocationOrigin::Stack(thread, stack), bytes))
            };
            if !change.fits(lines, &mut sizes) {
                continue;
            }
            let sized = lines.iter().zip(sizes.iter().copied());
            // With one line that was never seen nothing can be said of the change.
            let buffers: Option<Vec<MadeBuffer>> = sized.map(made_by).collect();
            made.extend(buffers.map(|buffers| (change.number, buffers)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CounterDelta, FollowedThread, Function, Nanos, SourceText, StackTable};

    const MAIN: ThreadId = ThreadId(0);
    const TEXT: &str = "def call(self, args):
    buf0 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    triton_0.run(arg, buf0, stream=stream0)
    buf1 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    buf2 = empty_strided_cuda((8, ), (1, ), torch.int64)
    triton_1.run(buf0, buf1, buf2, stream=stream0)
    buf3 = torch.ops.aten.attention.default(buf1)
    buf4 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    extern_kernels.mm(buf3, out=buf4)
    buf5 = torch.ops.aten.sort.default(buf4)
    assert_size_stride(buf5[0], (9, 9), (9, 1))
    assert_size_stride(buf5, (1024, 1024), (1024, 1))
    buf6 = empty_strided_cuda((1024, 1024), (1024, 1), torch.float32)
    triton_2.run(buf5, buf6, stream=stream0)";
    const MIB4: (i64, i64) = (1, 4 << 20);

    /// The program's only function, called by nobody, and an operator that it calls.
    struct Scene {
        stacks: StackTable,
        sources: FxHashMap<FunctionId, SourceText>,
        call: FunctionId,
        operator: FunctionId,
        alignment: BufferAlignment,
        number: u64,
        now: u64,
    }

    impl Scene {
        fn new() -> Scene {
            let mut stacks = StackTable::new();
            let mut function = |name: &str| stacks.function(Function::of_test(name, 14));
            let (call, operator) = (function("call"), function("operator"));
            for line in 1..=14 {
                let frame = stacks.frame(Frame { function: call, line });
                stacks.stack(None, frame);
            }
            let source = SourceText { function: call, first_line: 1, text: TEXT.into() };
            Scene {
                stacks,
                sources: [(call, source)].into_iter().collect(),
                call,
                operator,
                alignment: BufferAlignment::default(),
                number: 0,
                now: 100_000,
            }
        }

        fn at(&mut self, line: u32) -> StackReading {
            let frame = self.stacks.frame(Frame { function: self.call, line });
            StackReading::Whole(self.stacks.stack(None, frame))
        }

        fn in_operator(&mut self, line: u32) -> StackReading {
            let StackReading::Whole(call) = self.at(line) else { panic!() };
            let frame = self.stacks.frame(Frame { function: self.operator, line: 1 });
            StackReading::Whole(self.stacks.stack(Some(call), frame))
        }

        /// One change: blocks and bytes of the small and the large pool; gives the lines that are known now, by change.
        fn change(
            &mut self,
            (small, large): ((i64, i64), (i64, i64)),
            before: StackReading,
            after: StackReading,
        ) -> Vec<(u64, Vec<u32>)> {
            let delta = |(allocations, bytes)| CounterDelta {
                allocations,
                allocated_bytes: bytes,
                requested_bytes: bytes,
                ..CounterDelta::default()
            };
            self.now += 50_000;
            self.number += 1;
            let thread = FollowedThread {
                thread: MAIN,
                before,
                after,
                held_lock: false,
                wait: Default::default(),
            };
            let change = FollowedChange {
                before: Nanos(self.now - 10_000),
                after: Nanos(self.now),
                small: delta(small),
                large: delta(large),
                threads: vec![thread],
                ..FollowedChange::empty()
            };
            let text = ProgramText { stacks: &self.stacks, sources: &self.sources };
            let made = self.alignment.add(self.number, &change, &[MAIN], text);
            self.lines(made)
        }

        fn end(&mut self) -> Vec<(u64, Vec<u32>)> {
            let text = ProgramText { stacks: &self.stacks, sources: &self.sources };
            let made = self.alignment.settle(text);
            self.lines(made)
        }

        fn lines(&self, made: Vec<(u64, Vec<MadeBuffer>)>) -> Vec<(u64, Vec<u32>)> {
            let line = |&(origin, _): &MadeBuffer| {
                let AllocationOrigin::Stack(MAIN, stack) = origin else { panic!("{origin:?}") };
                let mut frames = self.stacks.frames(stack);
                frames.find(|frame| frame.function == self.call).unwrap().line
            };
            made.iter().map(|(number, of)| (*number, of.iter().map(line).collect())).collect()
        }
    }

    /// Each line that makes a buffer is over before a poll sees it.
    #[test]
    fn buffers_made_by_lines_that_nobody_saw_are_found_by_their_sizes() {
        let mut scene = Scene::new();
        let [first, second, third] = [3, 6, 9].map(|line| scene.at(line));
        assert!(scene.change(((0, 0), MIB4), StackReading::NoFrames, first).is_empty());
        assert!(scene.change(((1, 64), MIB4), first, second).is_empty());
        assert!(scene.change(((0, 0), MIB4), second, third).is_empty());
        assert_eq!(scene.end(), [(1, vec![2]), (2, vec![4, 5]), (3, vec![8])]);
        assert!(scene.end().is_empty(), "each is told once");
    }

    /// A block was freed between the same two polls, before the buffer was made: that does not move the place where the first of them found the thread.
    #[test]
    fn what_was_freed_between_two_polls_hides_none_of_the_lines_that_were_passed_between_them() {
        let mut scene = Scene::new();
        let [first, second] = [3, 9].map(|line| scene.at(line));
        scene.change(((0, 0), MIB4), StackReading::NoFrames, first);
        scene.change(((0, 0), (0, 0)), StackReading::Torn, second);
        scene.now -= 50_000;
        scene.change(((0, 0), MIB4), StackReading::Torn, second);
        assert_eq!(scene.end(), [(1, vec![2]), (3, vec![4])]);
    }

    #[test]
    fn the_lines_are_known_when_the_function_returns_and_a_call_anew_begins_with_the_first() {
        let mut scene = Scene::new();
        let [first, second] = [3, 6].map(|line| scene.at(line));
        scene.change(((0, 0), MIB4), StackReading::NoFrames, first);
        let other = StackReading::NoFrames;
        assert_eq!(scene.change(((1, 8), (0, 0)), other, other), [(1, vec![2])]);
        scene.change(((0, 0), MIB4), StackReading::NoFrames, first);
        assert!(scene.change(((0, 0), MIB4), first, second).is_empty());
        // It is called again before it was seen elsewhere.
        let known = scene.change(((1, 64), MIB4), first, second);
        assert_eq!(known, [(3, vec![2]), (4, vec![4])]);
        assert_eq!(scene.end(), [(5, vec![4, 5])]);
    }

    /// A poll copies the counters first: the thread has gone on when its stack is copied.
    #[test]
    fn a_line_just_passed_may_have_made_what_is_counted_next() {
        let mut scene = Scene::new();
        let [first, second] = [3, 6].map(|line| scene.at(line));
        scene.change(((0, 0), MIB4), StackReading::NoFrames, first);
        scene.change(((0, 0), (0, 0)), first, second);
        // The poll after the one change is the poll before the other.
        scene.now -= 45_000;
        scene.change(((1, 64), MIB4), second, second);
        assert_eq!(scene.end(), [(1, vec![2]), (3, vec![4, 5])]);
    }

    #[test]
    fn what_an_operator_allocated_is_of_no_line() {
        let mut scene = Scene::new();
        let (operator, last) = (scene.in_operator(7), scene.at(9));
        scene.change(((0, 0), MIB4), operator, operator);
        scene.change(((0, 0), MIB4), operator, StackReading::Torn);
        scene.change(((0, 0), MIB4), StackReading::Torn, last);
        assert_eq!(scene.end(), [(3, vec![8])]);
        scene.change(((0, 0), (1, 5 << 20)), last, last);
        assert!(scene.end().is_empty(), "no line makes so many bytes");
        let first = scene.at(3);
        scene.change(((0, 0), (0, 0)), StackReading::NoFrames, first);
        scene.change(((0, 0), MIB4), operator, operator);
        assert!(scene.end().is_empty(), "it was in there all the time");
    }

    /// The text tells how much it makes; nobody has to be seen in it.
    #[test]
    fn what_an_operator_makes_is_not_given_to_the_next_line() {
        let mut scene = Scene::new();
        let (operator, matmul, last) = (scene.in_operator(10), scene.at(9), scene.at(14));
        scene.change(((0, 0), (0, 0)), StackReading::NoFrames, matmul);
        scene.change(((0, 0), MIB4), operator, operator);
        scene.change(((0, 0), MIB4), operator, StackReading::Torn);
        scene.change(((0, 0), (0, 0)), StackReading::Torn, last);
        assert_eq!(scene.end(), [(2, vec![10]), (3, vec![13])]);
        scene.change(((0, 0), (0, 0)), StackReading::NoFrames, matmul);
        scene.change(((0, 0), (2, 8 << 20)), matmul, last);
        assert_eq!(scene.end(), [(6, vec![10, 13])]);
    }

    #[test]
    fn several_changes_between_two_polls_are_one_step_of_the_thread() {
        let mut scene = Scene::new();
        let [first, second] = [3, 6].map(|line| scene.at(line));
        scene.change(((0, 0), MIB4), StackReading::NoFrames, first);
        scene.change(((0, 0), MIB4), first, second);
        scene.now -= 50_000;
        scene.change(((1, 64), (0, 0)), first, second);
        assert_eq!(scene.end(), [(1, vec![2]), (2, vec![4]), (3, vec![5])]);
    }
}
