//! Which blocks a statement drops: `q, k = rotate(q, k)` frees what `q` and `k` were, which earlier statements allocated.
//!
//! Where several blocks of one group are alive, the source text tells which of them a function gives up: an assignment (or `del`) drops
//! what the last assignments to its names had made, as its last act before the statement is left. So of what was freed while the program stood
//! there, the last blocks are these, as many as there are names, if nothing was allocated after them; those before were intermediate results.
//! With one name, as in `x = x + f(y) * s`, that holds only if the statement itself was executed last: what a function that it called gives
//! up are that function's own variables. A statement is left, too, where its function returns: most go on with `return x`, in which nothing
//! is allocated that could be seen. All of this is likely, never certain: a caller may hold it, too, and autograd.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::assignment_index::{AssignmentIndex, MAX_NAMES};
use crate::model::{
    FollowedChange, FollowedThread, FunctionId, SourceText, StackId, StackReading, StackTable,
    ThreadId,
};

/// The bit of what the statement itself allocated.
pub(super) const OWN: u16 = 1 << MAX_NAMES;
/// Statements remembered, and stacks beneath each.
const MAX_STATEMENTS: usize = 1 << 14;
const MAX_BENEATH: usize = 1 << 12;
/// Changes that wait for the next stack of their thread.
const MAX_WAITING: usize = 64;
/// Levels of a stack that are searched.
const MAX_DEPTH: usize = 512;

/// What the recording knows of the program's code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramText<'a> {
    pub(crate) stacks: &'a StackTable,
    pub(crate) sources: &'a FxHashMap<FunctionId, SourceText>,
}

/// A thread went on from one line of a function to another: the node of the stack whose frame has the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::analysis) struct LineStep {
    thread: ThreadId,
    from: StackId,
    to_line: u32,
    /// Whether that frame was the innermost: it executed the line itself, and nothing that the line calls.
    is_innermost: bool,
    /// The innermost frame that it was in before, if that has returned since.
    returned: Option<StackId>,
    /// How many blocks were freed after this change until it went on.
    later: usize,
}

/// From which line to which a thread went between two stacks, in the innermost function that both are in; and whether it left the line.
fn line_step(
    thread: ThreadId,
    before: StackId,
    after: StackId,
    stacks: &StackTable,
) -> Option<(LineStep, bool)> {
    let levels = |stack| {
        let next = |at: &StackId| stacks.get_stack(*at)?.parent;
        std::iter::successors(Some(stack), next).take(MAX_DEPTH)
    };
    let level = |stack: StackId| {
        let node = stacks.get_stack(stack)?;
        let frame = stacks.get_frame(node.frame)?;
        Some(((node.parent, frame.function), frame.line))
    };
    // The innermost function that both stacks are in: what is deeper was called and has returned, or is called next.
    let ahead: Vec<_> = levels(after).filter_map(level).collect();
    levels(before).find_map(|from| {
        let (function, line) = level(from)?;
        let &(_, to_line) = ahead.iter().find(|(other, _)| *other == function)?;
        let is_innermost = from == before;
        let returned = (!is_innermost).then_some(before);
        let step = LineStep { thread, from, to_line, is_innermost, returned, later: 0 };
        Some((step, line != to_line))
    })
}

/// The last stacks seen of each thread, and the changes that wait for the next.
#[derive(Debug, Default)]
pub(super) struct LineSteps {
    last: FxHashMap<ThreadId, StackId>,
    /// Changes whose thread was not seen elsewhere since.
    waiting: Vec<WaitingChange>,
}

/// A change that freed something, in a thread that was not seen elsewhere since.
#[derive(Debug, Clone, Copy)]
struct WaitingChange {
    number: u64,
    thread: ThreadId,
    /// Where the thread stood before it, as far as it has not returned from there.
    stack: StackId,
    /// Where it stood, if it has returned from there since.
    returned: Option<StackId>,
    frees: usize,
}

impl LineStep {
    /// The thread that made it.
    pub(in crate::analysis) fn thread(&self) -> ThreadId {
        self.thread
    }
}

impl LineSteps {
    /// Takes the change with this number, in which `freeing` freed something, the first between its polls if `is_next`: gives the steps of changes
    /// that are now known.
    pub(super) fn add(
        &mut self,
        number: u64,
        change: &FollowedChange,
        is_next: bool,
        freeing: Option<ThreadId>,
        stacks: &StackTable,
    ) -> Vec<(u64, LineStep)> {
        let mut known = match is_next {
            true => self.see(change, |thread| thread.before, stacks),
            false => Vec::new(),
        };
        if change.allocations() > 0 {
            // A statement that goes on to allocate has not come to its assignment.
            self.waiting.clear();
        }
        let stood = |thread: ThreadId| {
            let listed = change.threads.iter().find(|listed| listed.thread == thread);
            let before = listed.and_then(|listed| listed.before.stack()).filter(|_| !is_next);
            before.or_else(|| self.last.get(&thread).copied())
        };
        if let Some(thread) = freeing.filter(|_| self.waiting.len() < MAX_WAITING)
            && let Some(stack) = stood(thread)
        {
            let frees = change.frees().max(0) as usize;
            self.waiting.push(WaitingChange { number, thread, stack, returned: None, frees });
        }
        known.append(&mut self.see(change, |thread| thread.after, stacks));
        known
    }

    /// Takes the stacks of one side of a change: the changes that waited for them are known.
    fn see(
        &mut self,
        change: &FollowedChange,
        side: fn(&FollowedThread) -> StackReading,
        stacks: &StackTable,
    ) -> Vec<(u64, LineStep)> {
        let mut known = Vec::new();
        for thread in &change.threads {
            let (of, Some(stack)) = (thread.thread, side(thread).stack()) else { continue };
            self.last.insert(of, stack);
            let went = |it: &mut WaitingChange| it.thread == of && it.stack != stack;
            let mut left: Vec<WaitingChange> = self.waiting.extract_if(.., went).collect();
            let mut later = 0;
            while let Some(change) = left.pop() {
                if let Some((step, is_left)) = line_step(of, change.stack, stack, stacks) {
                    let is_innermost = step.is_innermost && change.returned.is_none();
                    let returned = change.returned.or(step.returned);
                    if is_left || step.returned.is_some() {
                        let step = LineStep { is_innermost, returned, later, ..step };
                        known.push((change.number, step));
                    }
                    if !is_left {
                        // The statement that called what has returned may be about to assign.
                        self.waiting.push(WaitingChange { stack: step.from, returned, ..change });
                    }
                }
                later += change.frees;
            }
            self.waiting.sort_unstable_by_key(|change| change.number);
        }
        known
    }
}

/// What a statement drops.
#[derive(Debug)]
pub(super) struct DroppedVariables {
    thread: ThreadId,
    parent: Option<StackId>,
    function: FunctionId,
    /// Its own lines.
    lines: (u32, u32),
    /// Which statement of the function it is.
    statement: usize,
    /// The names that it and other statements assign.
    names: Vec<u32>,
    index: Arc<AssignmentIndex>,
    /// Which of the names each stack may have allocated for, a bit each.
    beneath: FxHashMap<StackId, u16>,
}

impl DroppedVariables {
    fn new(
        thread: ThreadId,
        from: StackId,
        text: ProgramText<'_>,
        functions: &mut FxHashMap<FunctionId, Arc<AssignmentIndex>>,
    ) -> Option<DroppedVariables> {
        let stack = text.stacks.get_stack(from)?;
        let frame = text.stacks.get_frame(stack.frame)?;
        let source = text.sources.get(&frame.function)?;
        let new = || Arc::new(AssignmentIndex::new(source));
        let index = functions.entry(frame.function).or_insert_with(new);
        let (statement, lines) = index.statement(frame.line)?;
        let names = index.names_shared_with_others(statement);
        (!names.is_empty()).then(|| DroppedVariables {
            thread,
            lines,
            statement,
            parent: stack.parent,
            function: frame.function,
            names,
            index: Arc::clone(index),
            beneath: FxHashMap::default(),
        })
    }

    /// How many names it assigns.
    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    /// Which of the names a block allocated with this stack may have had, a bit each, and [`OWN`].
    pub(super) fn of(&mut self, thread: ThreadId, stack: StackId, stacks: &StackTable) -> u16 {
        if thread != self.thread {
            return 0;
        }
        if let Some(known) = self.beneath.get(&stack) {
            return *known;
        }
        let found = self.search(stack, stacks);
        if self.beneath.len() < MAX_BENEATH {
            self.beneath.insert(stack, found);
        }
        found
    }

    fn search(&self, stack: StackId, stacks: &StackTable) -> u16 {
        let mut next = Some(stack);
        for _ in 0..MAX_DEPTH {
            let Some(node) = next.and_then(|at| stacks.get_stack(at)) else { return 0 };
            if node.parent == self.parent {
                let Some(frame) = stacks.get_frame(node.frame) else { return 0 };
                if frame.function != self.function {
                    return 0;
                }
                let Some((statement, _)) = self.index.statement(frame.line) else { return 0 };
                if statement == self.statement {
                    return OWN;
                }
                let assigned = self.index.names_of(statement);
                let bits = self.names.iter().enumerate().filter(|(_, it)| assigned.contains(it));
                return bits.fold(0, |bits, (name, _)| bits | 1 << name);
            }
            next = node.parent;
        }
        0
    }
}

/// What each statement drops, found out once.
#[derive(Debug, Default)]
pub(in crate::analysis) struct DroppedByStatement {
    statements: FxHashMap<(ThreadId, StackId), Option<DroppedVariables>>,
    /// A function has many statements, and a statement many stacks: its text is read once for all of them.
    functions: FxHashMap<FunctionId, Arc<AssignmentIndex>>,
}

impl DroppedByStatement {
    /// What the statement that was left drops, if it drops anything, and its node of the stack: until it is left, what is freed are its own
    /// intermediate results.
    pub(super) fn get(
        &mut self,
        step: LineStep,
        text: ProgramText<'_>,
    ) -> Option<(StackId, &mut DroppedVariables)> {
        let is_left = |dropped: &DroppedVariables| {
            !(dropped.lines.0..=dropped.lines.1).contains(&step.to_line)
                && step.later < dropped.names()
                && (dropped.names() > 1 || step.is_innermost)
        };
        // A function that has returned left its last statement, too.
        let is_last = |dropped: &DroppedVariables| dropped.names() == 1 && step.later == 0;
        let node = match self.of(step.thread, step.from, text) {
            Some(dropped) if is_left(dropped) => step.from,
            _ => step.returned.filter(|node| {
                self.of(step.thread, *node, text).is_some_and(|dropped| is_last(dropped))
            })?,
        };
        Some((node, self.of(step.thread, node, text)?))
    }

    /// What the statement drops at which this node of a stack is.
    fn of(
        &mut self,
        thread: ThreadId,
        node: StackId,
        text: ProgramText<'_>,
    ) -> Option<&mut DroppedVariables> {
        if self.statements.len() >= MAX_STATEMENTS && !self.statements.contains_key(&(thread, node))
        {
            self.statements.clear();
        }
        let functions = &mut self.functions;
        let new = || DroppedVariables::new(thread, node, text, functions);
        self.statements.entry((thread, node)).or_insert_with(new).as_mut()
    }
}

/// A statement's variables while its frees are replayed: which of the names comes next.
#[derive(Debug, Default)]
pub(super) struct StatementVisit {
    from: Option<(ThreadId, StackId)>,
    frees: usize,
}

impl StatementVisit {
    /// How many of its variables the statement at this node has dropped already since the program came to it.
    pub(super) fn dropped(&mut self, thread: ThreadId, node: StackId) -> usize {
        if self.from.replace((thread, node)) != Some((thread, node)) {
            self.frees = 0;
        }
        self.frees
    }

    /// It has dropped another one.
    pub(super) fn drops(&mut self) {
        self.frees += 1;
    }
}
