//! What the allocator's counters reached while each line stood on a stack, from exact events.
//!
//! An event tells the stack of its thread and the level right after it. Between two events of one
//! thread, the lines that both stacks have in common stood all the time. A line that only the later stack has began
//! somewhere in between, one that only the earlier one has ended somewhere in between: the levels in between
//! are an upper limit for these, and where they never exceeded those at the two events, the limits meet.
//! Work of autograd threads counts to the thread that waits for it in `backward()`.

use rustc_hash::FxHashMap;

use crate::model::{Levels, StackId, StackTable, ThreadId};

/// Allocated, reserved, active bytes.
pub(crate) const LEVELS: usize = 3;
pub(crate) type Level = [i64; LEVELS];

/// What was reached while a stack stood.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached {
    pub(crate) lower: Level,
    pub(crate) upper: Level,
}

impl Reached {
    const NOTHING: Reached = Reached { lower: [i64::MIN; LEVELS], upper: [i64::MIN; LEVELS] };

    fn raise(&mut self, lower: &Level, upper: &Level) {
        for i in 0..LEVELS {
            self.lower[i] = self.lower[i].max(lower[i]);
            self.upper[i] = self.upper[i].max(upper[i]).max(lower[i]);
        }
    }
}

/// A thread's last event.
#[derive(Debug, Clone, Copy)]
struct Last {
    stack: StackId,
    /// Greatest levels since then, that one's included.
    since: Level,
    /// Whether another thread raised them.
    disturbed: bool,
}

/// Levels by stack, of one device.
#[derive(Debug, Default)]
pub(crate) struct LineLevels {
    reached: Vec<Reached>,
    threads: FxHashMap<ThreadId, Last>,
    common: FxHashMap<(StackId, StackId), Option<StackId>>,
    now: Option<Level>,
}

impl LineLevels {
    fn of_stack(&mut self, stack: StackId) -> &mut Reached {
        let index = stack.0 as usize;
        if index >= self.reached.len() {
            self.reached.resize(index + 1, Reached::NOTHING);
        }
        &mut self.reached[index]
    }

    /// What was reached while `stack`, and nothing more, stood.
    pub(crate) fn get(&self, stack: u32) -> Option<&Reached> {
        self.reached.get(stack as usize).filter(|r| r.lower[0] != i64::MIN)
    }

    /// An allocation by `thread` at `stack`, after which the levels are `levels`.
    pub(crate) fn allocated(
        &mut self,
        thread: ThreadId,
        stack: Option<StackId>,
        levels: Levels,
        table: &StackTable,
    ) {
        let now = [levels.allocated, levels.reserved, levels.active];
        self.now = Some(now);
        for (other, last) in &mut self.threads {
            for (since, now) in last.since.iter_mut().zip(now) {
                let raises = now > *since;
                *since = (*since).max(now);
                last.disturbed |= raises && *other != thread;
            }
        }
        if let Some(stack) = stack {
            self.stands(thread, stack, now, table);
        }
    }

    /// A free by `thread` at `stack`, before it takes effect; known only where frees have stacks.
    pub(crate) fn freed(
        &mut self,
        thread: ThreadId,
        stack: Option<StackId>,
        size: u64,
        table: &StackTable,
    ) {
        let Some(mut now) = self.now else { return };
        if let Some(stack) = stack {
            self.stands(thread, stack, now, table);
        }
        now[0] -= size as i64;
        now[2] -= size as i64;
        self.now = Some(now);
        if let Some(last) = self.threads.get_mut(&thread) {
            // From here on the thread is at the lower level.
            last.since = now;
        }
    }

    fn stands(&mut self, thread: ThreadId, stack: StackId, now: Level, table: &StackTable) {
        let before = self.threads.get(&thread).copied();
        self.of_stack(stack).raise(&now, &now);
        if let Some(last) = before {
            let common = *self
                .common
                .entry((last.stack, stack))
                .or_insert_with(|| common_stack(table, last.stack, stack));
            if let Some(common) = common {
                let nothing = [i64::MIN; LEVELS];
                let lower = if last.disturbed { &nothing } else { &last.since };
                let lower = *lower;
                self.of_stack(common).raise(&lower, &last.since);
            }
            // The callees that came or went since the last event.
            if common != Some(stack) {
                self.of_stack(stack).raise(&now, &last.since);
            }
            if common != Some(last.stack) {
                let own = self.of_stack(last.stack).lower;
                let upper = if last.disturbed { last.since } else { own };
                self.of_stack(last.stack).raise(&own, &upper);
            }
        }
        self.threads.insert(thread, Last { stack, since: now, disturbed: false });
    }
}

/// The innermost stack that two stacks have in common.
fn common_stack(table: &StackTable, a: StackId, b: StackId) -> Option<StackId> {
    let up = |s: StackId| table.get_stack(s).and_then(|n| n.parent);
    let depth = |mut s: StackId| {
        let mut depth = 0u32;
        while let Some(parent) = up(s) {
            (s, depth) = (parent, depth + 1);
        }
        depth
    };
    let (mut a, mut b, mut deep_a, mut deep_b) = (a, b, depth(a), depth(b));
    while a != b {
        if deep_a >= deep_b {
            (a, deep_a) = (up(a)?, deep_a.saturating_sub(1));
            if a == b {
                break;
            }
        }
        if deep_b > deep_a {
            (b, deep_b) = (up(b)?, deep_b.saturating_sub(1));
        }
    }
    Some(a)
}
