//! Single executions of lines: the level at their end, and what one of them allocated and freed.
//!
//! A line begins to be executed with the first event that has it on its thread's stack, and has ended when the next event
//! has it no more. In between it may have been left and come back to, as in a loop, which no event tells: what all
//! events in between come to is the most that one execution did, and what a single one did is the least.

use rustc_hash::FxHashMap;

use super::extent::{Extent, Statistics};
use super::line_levels::Span;
use crate::model::{StackId, StackTable, ThreadId};

/// What was allocated and what was freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Flow {
    pub(crate) allocated: Statistics,
    pub(crate) freed: Statistics,
}

impl Flow {
    fn raise(&mut self, other: &Flow) {
        self.allocated.raise(&other.allocated);
        self.freed.raise(&other.freed);
    }
}

/// What is known of the executions of a stack's innermost line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Executed {
    /// Greatest level at the end of one.
    pub(crate) end: Span,
    /// Levels at which this line and its callers may have ended and begun again.
    pub(crate) again: Span,
    /// The greatest of single events, of this line alone.
    pub(crate) least: Flow,
    /// The greatest of all events of one stay.
    pub(crate) most: Flow,
}

impl Executed {
    const NEVER: Executed = Executed {
        end: Span::NEVER,
        again: Span::NEVER,
        least: Flow { allocated: Statistics([0; 9]), freed: Statistics([0; 9]) },
        most: Flow { allocated: Statistics([0; 9]), freed: Statistics([0; 9]) },
    };
}

/// The lines on a thread's stack, from the outermost to the innermost, and what the thread had done when each began.
#[derive(Debug, Clone, Default)]
struct Standing {
    lines: Vec<(StackId, Flow)>,
    done: Flow,
}

/// The executions of all lines on one device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Executions {
    /// Place in `executed` plus 1, by stack number.
    places: Vec<u32>,
    executed: Vec<Executed>,
    threads: FxHashMap<ThreadId, Standing>,
}

impl Executions {
    /// Of a stack; `None` where nothing is known.
    pub(crate) fn of(&self, stack: StackId) -> Option<&Executed> {
        let place = *self.places.get(stack.0 as usize)?;
        self.executed.get((place as usize).checked_sub(1)?)
    }

    fn entry(&mut self, stack: StackId) -> Option<&mut Executed> {
        let index = stack.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.executed.push(Executed::NEVER);
            self.places[index] = self.executed.len() as u32;
        }
        self.executed.get_mut(self.places[index] as usize - 1)
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
    }

    /// The lines beyond `common` have ended, at a level in `ended`.
    pub(crate) fn leave(&mut self, thread: ThreadId, common: Option<StackId>, ended: &Span) {
        let Some(mut standing) = self.threads.remove(&thread) else { return };
        while let Some((line, began)) = standing.lines.pop_if(|(line, _)| Some(*line) != common) {
            let did = Flow {
                allocated: standing.done.allocated.since(&began.allocated),
                freed: standing.done.freed.since(&began.freed),
            };
            if let Some(executed) = self.entry(line) {
                executed.end.raise(ended);
                executed.most.raise(&did);
            }
        }
        self.threads.insert(thread, standing);
    }

    /// The lines of `stack` stood on, or ended at a level in `ended` and began again.
    pub(crate) fn stay(&mut self, stack: StackId, ended: &Span) {
        if let Some(executed) = self.entry(stack) {
            executed.again.raise(ended);
        }
    }

    pub(crate) fn allocated(&mut self, thread: ThreadId, stack: StackId, extent: Extent) {
        let did = Flow { allocated: Statistics::of(extent), ..Flow::default() };
        self.did(thread, stack, &did);
    }

    pub(crate) fn freed(&mut self, thread: ThreadId, stack: StackId, extent: Extent) {
        let did = Flow { freed: Statistics::of(extent), ..Flow::default() };
        self.did(thread, stack, &did);
    }

    fn did(&mut self, thread: ThreadId, stack: StackId, did: &Flow) {
        if let Some(standing) = self.threads.get_mut(&thread) {
            standing.done.allocated.add(&did.allocated);
            standing.done.freed.add(&did.freed);
        }
        if let Some(executed) = self.entry(stack) {
            executed.least.raise(did);
        }
    }
}
