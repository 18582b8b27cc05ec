//! Single executions of lines: the level at their end, allocations and frees.
//!
//! An execution begins with the first event in the line, and ends with the next outside. The line
//! may have run repeatedly in between: all events are an upper limit for one execution, and one
//! event is a lower limit.

use rustc_hash::FxHashMap;

use super::extent::{BlockSizes, BlockStatistics};
use super::line_levels::LevelRange;
use crate::model::{StackId, StackTable, ThreadId};

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

#[derive(Debug, Clone, Copy)]
pub(crate) struct LineExecutions {
    pub(crate) end: LevelRange,
    /// Levels at which this line and its callers may have ended and begun again.
    pub(crate) again: LevelRange,
    /// Maximum of one event.
    pub(crate) least: AllocatedAndFreed,
    /// Maximum of all events between begin and end.
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

/// Lines outermost first, with the thread's totals at their begin.
#[derive(Debug, Clone, Default)]
struct ThreadLines {
    lines: Vec<(StackId, AllocatedAndFreed)>,
    done: AllocatedAndFreed,
}

/// Stacks with equal executions share an entry.
#[derive(Debug, Clone)]
struct SharedExecutions {
    executed: LineExecutions,
    stacks: u32,
}

/// The executions of all lines on one device.
///
/// Callers of one event often stay equal, and share an entry until they differ.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExecutionTable {
    /// Index in `entries` plus 1, by stack number.
    places: Vec<u32>,
    entries: Vec<SharedExecutions>,
    threads: FxHashMap<ThreadId, ThreadLines>,
    /// A measure of the work.
    pub(crate) begun: u64,
}

impl ExecutionTable {
    pub(crate) fn memory(&self) -> u64 {
        let standing =
            self.threads.values().map(|standing| standing.lines.capacity()).sum::<usize>();
        let standing = standing * size_of::<(StackId, AllocatedAndFreed)>();
        let entries = self.entries.capacity() * size_of::<SharedExecutions>();
        (standing + entries + self.places.capacity() * size_of::<u32>()) as u64
    }

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

    /// Splits a shared entry.
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

    /// `ended`: limits of the level then.
    pub(crate) fn leave(&mut self, thread: ThreadId, common: Option<StackId>, ended: &LevelRange) {
        let Some(mut standing) = self.threads.remove(&thread) else { return };
        // The previous line's totals at its begin and entry, if this was its first execution.
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

    /// The lines continue, or ended at a level in `ended` and began again.
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
