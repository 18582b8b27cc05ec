//! Which blocks a statement drops: `q, k = rotate(q, k)` frees what `q` and `k` were, which earlier statements allocated.
//!
//! Where several blocks of one group are alive, the source text tells which of them a function gives up: an assignment (or `del`) of several names
//! drops what the last assignments to them had made, as soon as the statement is left. That is likely, never certain: a caller may hold it, too.

use rustc_hash::FxHashMap;

use crate::analysis::lines::statements::StatementLines;
use crate::model::{
    FollowedChange, FollowedThread, FunctionId, SourceText, StackId, StackReading, StackTable,
    ThreadId,
};

/// Names of one statement that are told apart.
const MAX_NAMES: usize = 15;
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

/// For each name, the first and last lines of statements.
type NameLines = Vec<Vec<(u32, u32)>>;

/// A thread went on from one line of a function to another: the node of the stack whose frame has the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::analysis) struct LineStep {
    thread: ThreadId,
    from: StackId,
    to_line: u32,
}

/// From which line to which a thread went between two stacks, in the innermost function that both are in.
fn line_step(
    thread: ThreadId,
    before: StackId,
    after: StackId,
    stacks: &StackTable,
) -> Option<LineStep> {
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
    levels(before)
        .find_map(|from| {
            let (function, line) = level(from)?;
            let (_, to_line) = ahead.iter().find(|(other, _)| *other == function)?;
            Some((line, LineStep { thread, from, to_line: *to_line }))
        })
        .filter(|(line, step)| *line != step.to_line)
        .map(|(_, step)| step)
}

/// The last stacks seen of each thread, and the changes that wait for the next.
#[derive(Debug, Default)]
pub(super) struct LineSteps {
    last: FxHashMap<ThreadId, StackId>,
    /// Changes, by number, whose thread was not seen since, with its stack before.
    waiting: Vec<(u64, ThreadId, StackId)>,
}

impl LineSteps {
    /// Takes the change with this number, in which `freeing` freed something: gives the steps of changes that are now known.
    pub(super) fn add(
        &mut self,
        number: u64,
        change: &FollowedChange,
        freeing: Option<ThreadId>,
        stacks: &StackTable,
    ) -> Vec<(u64, LineStep)> {
        let mut known = self.see(change, |thread| thread.before, stacks);
        if let Some(thread) = freeing.filter(|_| self.waiting.len() < MAX_WAITING)
            && let Some(stack) = self.last.get(&thread)
        {
            self.waiting.push((number, thread, *stack));
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
            let arrived = self.waiting.extract_if(.., |(_, waiting, _)| *waiting == of);
            known.extend(arrived.filter_map(|(number, _, before)| {
                Some((number, line_step(of, before, stack, stacks)?))
            }));
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
    /// For each name that it assigns, the lines of the other statements that assign it.
    names: NameLines,
    /// Which of the names each stack may have allocated for, a bit each.
    beneath: FxHashMap<StackId, u16>,
}

impl DroppedVariables {
    fn new(thread: ThreadId, from: StackId, text: ProgramText<'_>) -> Option<DroppedVariables> {
        let stack = text.stacks.get_stack(from)?;
        let frame = text.stacks.get_frame(stack.frame)?;
        let source = text.sources.get(&frame.function)?;
        let (lines, names) = other_assignments(source, frame.line)?;
        // What one name was is usually the youngest block, as other rules say; or it is still held, by autograd for one.
        (names.len() > 1).then(|| DroppedVariables {
            thread,
            lines,
            parent: stack.parent,
            function: frame.function,
            names,
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
                let has = |ranges: &Vec<(u32, u32)>| {
                    ranges.iter().any(|(first, last)| (*first..=*last).contains(&frame.line))
                };
                let own = (self.lines.0..=self.lines.1).contains(&frame.line);
                let bits = self.names.iter().enumerate().filter(|(_, ranges)| has(ranges));
                return bits.fold(if own { OWN } else { 0 }, |bits, (name, _)| bits | 1 << name);
            }
            next = node.parent;
        }
        0
    }
}

/// What each statement drops, found out once.
#[derive(Debug, Default)]
pub(in crate::analysis) struct DroppedByStatement(
    FxHashMap<(ThreadId, StackId), Option<DroppedVariables>>,
);

impl DroppedByStatement {
    /// What the statement that was left drops, if it drops anything: until it is left, what is freed are its own intermediate results.
    pub(super) fn get(
        &mut self,
        step: LineStep,
        text: ProgramText<'_>,
    ) -> Option<&mut DroppedVariables> {
        let node = (step.thread, step.from);
        if self.0.len() >= MAX_STATEMENTS && !self.0.contains_key(&node) {
            self.0.clear();
        }
        let new = || DroppedVariables::new(step.thread, step.from, text);
        let dropped = self.0.entry(node).or_insert_with(new).as_mut();
        dropped.filter(|dropped| !(dropped.lines.0..=dropped.lines.1).contains(&step.to_line))
    }
}

/// The lines of the statement at `line`, and for each name that it assigns or deletes those of the other statements that assign
/// it; none where no other does.
fn other_assignments(source: &SourceText, line: u32) -> Option<((u32, u32), NameLines)> {
    let statements = StatementLines::new(&source.text, source.first_line);
    let lines: Vec<&str> = source.text.lines().collect();
    let here = statements.range(line)?;
    let text_of = |first: u32| {
        let index = first.checked_sub(source.first_line).map(|index| index as usize);
        index.and_then(|index| lines.get(index)).copied().unwrap_or_default()
    };
    let dropped = assigned_names(text_of(here.0));
    let mut names: NameLines = vec![Vec::new(); dropped.len()];
    let mut at = source.first_line;
    while let Some(range) = statements.range(at) {
        if range != here {
            for name in assigned_names(text_of(range.0)) {
                let of_name = dropped.iter().position(|known| *known == name);
                of_name.into_iter().for_each(|index| names[index].push(range));
            }
        }
        at = range.1 + 1;
    }
    names.retain(|ranges| !ranges.is_empty());
    Some((here, names))
}

/// The names that a statement beginning with this line assigns or deletes, from left to right.
fn assigned_names(line: &str) -> Vec<&str> {
    let line = line.trim();
    let targets = if let Some(rest) = line.strip_prefix("del ") {
        Some(rest)
    } else if let Some(rest) = line.strip_prefix("for ") {
        rest.split_once(" in ").map(|(targets, _)| targets)
    } else {
        before_assignment(line)
    };
    let is_name = |name: &&str| {
        !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
    };
    let targets = targets.unwrap_or_default();
    let of_target =
        |target: &str| target.split_once(':').map_or(target.len(), |(name, _)| name.len());
    targets
        .trim_matches(|c| matches!(c, ' ' | '(' | ')' | '[' | ']'))
        .split(',')
        .map(|target| target[..of_target(target)].trim().trim_start_matches('*'))
        .filter(is_name)
        .take(MAX_NAMES)
        .collect()
}

/// What stands before the `=` of an assignment, or before its operator (`+=`).
fn before_assignment(line: &str) -> Option<&str> {
    let mut depth = 0usize;
    let bytes = line.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'\'' | b'"' | b'#' => return None,
            b'=' if depth == 0 => {
                let before = at.checked_sub(1).and_then(|at| bytes.get(at));
                if bytes.get(at + 1) == Some(&b'=') || matches!(before, Some(b'=' | b'!' | b':')) {
                    return None;
                }
                let target = line[..at].trim_end_matches(|c| "+-*/%&|^@<>".contains(c));
                // `a <= b` compares, `a <<= b` assigns.
                let operator = &line[target.len()..at];
                return (!matches!(operator, "<" | ">")).then_some(target);
            }
            _ => {}
        }
    }
    None
}

/// A statement's variables while its frees are replayed: which of the names comes next.
#[derive(Debug, Default)]
pub(super) struct StatementVisit {
    from: Option<(ThreadId, StackId)>,
    frees: usize,
}

impl StatementVisit {
    /// How many blocks this statement has freed already since the program came to it.
    pub(super) fn next(&mut self, step: LineStep) -> usize {
        let from = (step.thread, step.from);
        if self.from.replace(from) != Some(from) {
            self.frees = 0;
        }
        self.frees += 1;
        self.frees - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_that_a_statement_assigns() {
        let names = |line| assigned_names(line).join(" ");
        assert_eq!(names("    q, k = rotate(q, k, cos=c)"), "q k");
        assert_eq!(names("x += f(y)"), "x");
        assert_eq!(names("x <<= 2"), "x");
        assert_eq!(names("(a, *b) = f("), "a b");
        assert_eq!(names("x: torch.Tensor = f(x)"), "x");
        assert_eq!(names("self.cache = f(a == b)"), "self.cache");
        assert_eq!(names("del q, k"), "q k");
        assert_eq!(names("for x, y in zip(a, b):"), "x y");
        for other in ["if x == y:", "x <= y", "f(a=b)", "return f(x)", "h[0] = x", "# x = y"] {
            assert_eq!(names(other), "", "{other}");
        }
    }

    #[test]
    fn the_other_statements_that_assign_the_same_names() {
        let text = concat!(
            "def forward(self, x):\n", // 1
            "    q = self.q(x)\n",     // 2
            "    k = self.k(\n",       // 3
            "        x)\n",            // 4
            "    v = self.v(x)\n",     // 5
            "    q, k = rotate(q,\n",  // 6
            "        k)\n",            // 7
            "    return q @ k @ v\n",  // 8
        );
        let source = SourceText { function: FunctionId(0), first_line: 1, text: text.into() };
        let at_rotate = Some(((6, 7), vec![vec![(2, 2)], vec![(3, 4)]]));
        assert_eq!(other_assignments(&source, 6), at_rotate);
        assert_eq!(other_assignments(&source, 7), at_rotate);
        assert_eq!(other_assignments(&source, 5), Some(((5, 5), Vec::new())));
        assert_eq!(other_assignments(&source, 8), Some(((8, 8), Vec::new())));
        assert_eq!(other_assignments(&source, 9), None);
    }
}
