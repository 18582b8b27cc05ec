//! What the allocator's counters reached while each line stood on a stack, from exact events.
//!
//! An event tells the stack of its thread and the level right after it. Between two events of one
//! thread, the lines that both stacks have in common stood, or were left and come back to: either way the
//! levels at the two events belong to them. A line that only the later stack has began somewhere in
//! between, one that only the earlier one has ended somewhere in between: for these the levels in between
//! are an upper limit, and where they never exceeded those at the line's own events, the limits meet.
//! Before a thread's first event any of its lines may have stood since the recording began.
//! Work of autograd threads counts to the thread that waits for it in `backward()`.
//! An execution of a line in which nothing was allocated (or, with their stacks, freed) is not seen.

use rustc_hash::FxHashMap;

use crate::model::{Levels, StackId, StackTable, ThreadId};

/// Allocated, reserved, active bytes.
pub(crate) const LEVELS: usize = 3;
pub(crate) type Level = [i64; LEVELS];

const NOTHING: Level = [i64::MIN; LEVELS];
/// No upper limit.
const ANYTHING: Level = [i64::MAX; LEVELS];

/// What was reached while a stack stood.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reached {
    pub(crate) lower: Level,
    pub(crate) upper: Level,
    /// Bytes freed by this stack.
    pub(crate) freed: u64,
}

impl Reached {
    const NEVER: Reached = Reached { lower: NOTHING, upper: NOTHING, freed: 0 };

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
    /// Greatest levels since then, that one's included and its thread's next one's not.
    since: Level,
    /// Whether it is not known where the thread was when they were raised.
    disturbed: bool,
}

/// Levels by stack, of one device.
#[derive(Debug, Default)]
pub(crate) struct LineLevels {
    reached: Vec<Reached>,
    threads: FxHashMap<ThreadId, Last>,
    common: FxHashMap<(StackId, StackId), Option<StackId>>,
    now: Option<Level>,
    /// Greatest levels since the recording began; `None` when those at its begin are not known.
    greatest: Option<Level>,
}

impl LineLevels {
    /// About how many bytes it takes.
    pub(crate) fn memory(&self) -> u64 {
        let stacks = self.reached.len() * size_of::<Reached>();
        (stacks + self.common.len() * 48 + self.threads.len() * 96) as u64
    }

    fn of_stack(&mut self, stack: StackId) -> &mut Reached {
        let index = stack.0 as usize;
        if index >= self.reached.len() {
            self.reached.resize(index + 1, Reached::NEVER);
        }
        &mut self.reached[index]
    }

    /// By stack number, what was reached while the stack, and nothing more, stood.
    pub(crate) fn by_stack(&self) -> Vec<Reached> {
        let mut reached = self.reached.clone();
        // Threads may still stand where they were last seen.
        for last in self.threads.values().filter(|last| last.disturbed) {
            reached[last.stack.0 as usize].raise(&NOTHING, &last.since);
        }
        reached
    }

    /// Events are missing: where threads stand now, and since when, is not known.
    pub(crate) fn interrupt(&mut self) {
        self.threads.clear();
        self.greatest = None;
    }

    /// The counters, read by themselves.
    pub(crate) fn saw(&mut self, levels: Levels) {
        let now = level(levels);
        if self.now.is_none() {
            self.greatest = Some(now);
        }
        self.rise(None, now);
    }

    /// An allocation by a thread at a stack, as far as they are known, after which the levels are `levels`.
    pub(crate) fn allocated(
        &mut self,
        who: Option<(ThreadId, Option<StackId>)>,
        levels: Levels,
        table: &StackTable,
    ) {
        let now = level(levels);
        match who {
            Some((thread, Some(stack))) => {
                self.stands(thread, stack, now, table);
                self.rise(Some(thread), now);
            }
            _ => self.rise(None, now),
        }
    }

    /// The levels are `now`; `by` is the thread that raised them, if it is known where it stands.
    fn rise(&mut self, by: Option<ThreadId>, now: Level) {
        self.now = Some(now);
        if let Some(greatest) = &mut self.greatest {
            *greatest = greater(greatest, &now);
        }
        for (thread, last) in &mut self.threads {
            let since = greater(&last.since, &now);
            last.disturbed |= since != last.since && Some(*thread) != by;
            last.since = since;
        }
    }

    /// A free of `size` bytes, before it takes effect.
    pub(crate) fn freed(
        &mut self,
        who: Option<(ThreadId, Option<StackId>)>,
        size: u64,
        table: &StackTable,
    ) {
        let Some(mut now) = self.now else { return };
        let Some((thread, Some(stack))) = who else { return };
        self.stands(thread, stack, now, table);
        self.of_stack(stack).freed += size;
        now[0] -= size as i64;
        now[2] -= size as i64;
        self.now = Some(now);
        if let Some(last) = self.threads.get_mut(&thread) {
            // From here on the thread is at the lower level.
            last.since = now;
        }
    }

    fn stands(&mut self, thread: ThreadId, stack: StackId, now: Level, table: &StackTable) {
        let before = self.threads.insert(thread, Last { stack, since: now, disturbed: false });
        let Some(last) = before else {
            let upper = self.greatest.unwrap_or(ANYTHING);
            self.of_stack(stack).raise(&now, &upper);
            return;
        };
        self.of_stack(stack).raise(&now, &now);
        if last.stack == stack && !last.disturbed {
            return;
        }
        let common = *self
            .common
            .entry((last.stack, stack))
            .or_insert_with(|| common_stack(table, last.stack, stack));
        if last.disturbed
            && let Some(common) = common
        {
            self.of_stack(common).raise(&NOTHING, &last.since);
        }
        if common != Some(stack) {
            self.of_stack(stack).raise(&now, &last.since);
        }
        if last.disturbed {
            // It may have stayed there while the level was raised elsewhere.
            self.of_stack(last.stack).raise(&NOTHING, &last.since);
        }
    }
}

fn level(levels: Levels) -> Level {
    [levels.allocated, levels.reserved, levels.active]
}

fn greater(a: &Level, b: &Level) -> Level {
    std::array::from_fn(|i| a[i].max(b[i]))
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
