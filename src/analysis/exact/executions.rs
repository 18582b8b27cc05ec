//! Single executions of lines: the level at their end, and what one of them allocated and freed.
//!
//! A line begins to be executed with the first event that has it on its thread's stack, and has ended when the next event
//! has it no more. In between it may have been left and come back to, as in a loop, which no event tells: what all
//! events in between come to is the most that one execution did, and what a single one did is the least.

use rustc_hash::FxHashMap;

use super::extent::{BlockSizes, BlockStatistics};
use super::line_levels::LevelRange;
use crate::model::{StackId, StackTable, ThreadId};

/// What was allocated and what was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AllocatedAndFreed {
    pub(crate) allocated: BlockStatistics,
    pub(crate) freed: BlockStatistics,
}

impl AllocatedAndFreed {
    fn raise(&mut self, other: &AllocatedAndFreed) {
        self.allocated.raise(&other.allocated);
        self.freed.raise(&other.freed);
    }
}

/// What is known of the executions of a stack's innermost line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LineExecutions {
    /// Greatest level at the end of one.
    pub(crate) end: LevelRange,
    /// Levels at which this line and its callers may have ended and begun again.
    pub(crate) again: LevelRange,
    /// The greatest of single events, of this line alone.
    pub(crate) least: AllocatedAndFreed,
    /// The greatest of all events of one stay.
    pub(crate) most: AllocatedAndFreed,
}

impl LineExecutions {
    const NEVER: LineExecutions = LineExecutions {
        end: LevelRange::NEVER,
        again: LevelRange::NEVER,
        least: AllocatedAndFreed {
            allocated: BlockStatistics([0; 9]),
            freed: BlockStatistics([0; 9]),
        },
        most: AllocatedAndFreed {
            allocated: BlockStatistics([0; 9]),
            freed: BlockStatistics([0; 9]),
        },
    };
}

/// The lines on a thread's stack, from the outermost to the innermost, and what the thread had done when each began.
#[derive(Debug, Clone, Default)]
struct ThreadLines {
    lines: Vec<(StackId, AllocatedAndFreed)>,
    done: AllocatedAndFreed,
}

/// What stacks have in common that were executed alike so far.
#[derive(Debug, Clone)]
struct SharedExecutions {
    executed: LineExecutions,
    /// How many stacks it stands for.
    stacks: u32,
}

/// The executions of all lines on one device.
///
/// Of a program that never comes to a stack again, the many callers of one event begin and end together and differ in
/// nothing: they share one entry, until something tells them apart.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExecutionTable {
    /// Place in `entries` plus 1, by stack number.
    places: Vec<u32>,
    entries: Vec<SharedExecutions>,
    threads: FxHashMap<ThreadId, ThreadLines>,
    /// Lines that began: what it has cost.
    pub(crate) begun: u64,
}

impl ExecutionTable {
    /// About how many bytes they take.
    pub(crate) fn memory(&self) -> u64 {
        let standing =
            self.threads.values().map(|standing| standing.lines.capacity()).sum::<usize>();
        let standing = standing * size_of::<(StackId, AllocatedAndFreed)>();
        let entries = self.entries.capacity() * size_of::<SharedExecutions>();
        (standing + entries + self.places.capacity() * size_of::<u32>()) as u64
    }

    /// Of a stack; `None` where nothing is known.
    pub(crate) fn get(&self, stack: StackId) -> Option<&LineExecutions> {
        Some(&self.entries.get(self.place(stack)?)?.executed)
    }

    fn place(&self, stack: StackId) -> Option<usize> {
        (*self.places.get(stack.0 as usize)? as usize).checked_sub(1)
    }

    fn set_place(&mut self, stack: StackId, place: usize) {
        let index = stack.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        self.places[index] = place as u32 + 1;
    }

    /// The entry of a stack, shared with no other.
    fn entry(&mut self, stack: StackId) -> Option<&mut LineExecutions> {
        let executed = match self.place(stack) {
            Some(place) if self.entries.get(place)?.stacks == 1 => {
                return Some(&mut self.entries.get_mut(place)?.executed);
            }
            Some(place) => {
                let shared = self.entries.get_mut(place)?;
                shared.stacks -= 1;
                shared.executed
            }
            None => LineExecutions::NEVER,
        };
        self.set_place(stack, self.entries.len());
        self.entries.push(SharedExecutions { executed, stacks: 1 });
        Some(&mut self.entries.last_mut()?.executed)
    }

    /// The lines of `stack` beyond `common` begin.
    pub(crate) fn enter(
        &mut self,
        thread: ThreadId,
        common: Option<StackId>,
        stack: StackId,
        table: &StackTable,
    ) {
        let standing = self.threads.entry(thread).or_default();
        let (from, done) = (standing.lines.len(), standing.done);
        let mut next = Some(stack);
        while let Some(line) = next.filter(|line| Some(*line) != common) {
            standing.lines.push((line, done));
            next = table.get_stack(line).and_then(|node| node.parent);
        }
        standing.lines[from..].reverse();
        self.begun += (standing.lines.len() - from) as u64;
    }

    /// The lines beyond `common` have ended, at a level in `ended`.
    pub(crate) fn leave(&mut self, thread: ThreadId, common: Option<StackId>, ended: &LevelRange) {
        let Some(mut standing) = self.threads.remove(&thread) else { return };
        // The last line with what it had done when it began, where that was its first execution, and its entry.
        let mut callee: Option<(AllocatedAndFreed, usize)> = None;
        while let Some((line, began)) = standing.lines.pop_if(|(line, _)| Some(*line) != common) {
            let is_first = self.place(line).is_none();
            if let Some((_, place)) = callee.filter(|callee| is_first && callee.0 == began)
                && let Some(shared) = self.entries.get_mut(place)
            {
                shared.stacks += 1;
                self.set_place(line, place);
                continue;
            }
            let did = AllocatedAndFreed {
                allocated: standing.done.allocated.since(&began.allocated),
                freed: standing.done.freed.since(&began.freed),
            };
            if let Some(executed) = self.entry(line) {
                executed.end.raise(ended);
                executed.most.raise(&did);
            }
            callee = self.place(line).filter(|_| is_first).map(|place| (began, place));
        }
        self.threads.insert(thread, standing);
    }

    /// The lines of `stack` stood on, or ended at a level in `ended` and began again.
    pub(crate) fn stay(&mut self, stack: StackId, ended: &LevelRange) {
        if let Some(executed) = self.entry(stack) {
            executed.again.raise(ended);
        }
    }

    pub(crate) fn allocated(&mut self, thread: ThreadId, stack: StackId, extent: BlockSizes) {
        let did = AllocatedAndFreed {
            allocated: BlockStatistics::new(extent),
            ..AllocatedAndFreed::default()
        };
        self.did(thread, stack, &did);
    }

    pub(crate) fn freed(&mut self, thread: ThreadId, stack: StackId, extent: BlockSizes) {
        let did = AllocatedAndFreed {
            freed: BlockStatistics::new(extent),
            ..AllocatedAndFreed::default()
        };
        self.did(thread, stack, &did);
    }

    fn did(&mut self, thread: ThreadId, stack: StackId, did: &AllocatedAndFreed) {
        if let Some(standing) = self.threads.get_mut(&thread) {
            standing.done.allocated.add(&did.allocated);
            standing.done.freed.add(&did.freed);
        }
        if let Some(executed) = self.entry(stack) {
            executed.least.raise(did);
        }
    }
}
