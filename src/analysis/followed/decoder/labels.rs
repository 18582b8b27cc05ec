//! Who may allocate at each poll.

use rustc_hash::{FxHashMap, FxHashSet};

use super::delta_log::{DeltaLog, LoggedDelta, SeenStack};
use super::sites::NOT_SEEN;
use super::visits::{Label, Weights, add, weight};
use crate::analysis::attribution::{AllocationOrigin, WaitingPlaces};
use crate::model::{StackId, ThreadId};

/// Numbers of possible sites.
#[derive(Debug, Default)]
pub(super) struct Labels {
    /// With a thread that it was seen in.
    stacks: Vec<(StackId, ThreadId)>,
    numbers: FxHashMap<StackId, Label>,
}

impl Labels {
    fn of(&mut self, stack: StackId, thread: ThreadId) -> Label {
        let stacks = &mut self.stacks;
        *self.numbers.entry(stack).or_insert_with(|| {
            stacks.push((stack, thread));
            stacks.len() as Label + NOT_SEEN
        })
    }

    /// What a label of a delta stands for.
    pub(super) fn origin(
        &self,
        label: Label,
        log: &DeltaLog,
        of: &LoggedDelta,
    ) -> AllocationOrigin {
        let stack = label.checked_sub(NOT_SEEN + 1).and_then(|at| self.stacks.get(at as usize));
        stack.map_or(AllocationOrigin::NotSeen, |(stack, thread)| log.origin(*stack, of, *thread))
    }
}

/// How often threads held the allocator's lock, and which execute no Python at times.
struct ThreadHabits<'a> {
    held: FxHashMap<ThreadId, u32>,
    of_engine: FxHashSet<ThreadId>,
    waiting: &'a WaitingPlaces,
}

impl<'a> ThreadHabits<'a> {
    fn of(log: &DeltaLog, waiting: &'a WaitingPlaces) -> ThreadHabits<'a> {
        let (mut held, mut of_engine) = (FxHashMap::default(), FxHashSet::default());
        for thread in log.all_threads() {
            if thread.held_lock {
                *held.entry(thread.thread).or_default() += 1;
            }
            if thread.sides.contains(&SeenStack::NoFrames) {
                of_engine.insert(thread.thread);
            }
        }
        ThreadHabits { held, of_engine, waiting }
    }

    fn held(&self, thread: ThreadId) -> u32 {
        self.held.get(&thread).copied().unwrap_or(0)
    }

    /// Who may allocate at the poll before a delta (0) or after it (1), by how often its thread
    /// held the allocator's lock.
    fn labels(&self, log: &DeltaLog, delta: &LoggedDelta, side: usize, to: &mut Labels) -> Weights {
        let mut found = Weights::new();
        // Stacks that wait for the autograd engine stand for its threads, which execute no Python.
        let mut waiting = Vec::new();
        let mut executes = false;
        for thread in log.threads(delta) {
            let stack = match thread.sides[side] {
                SeenStack::Stack(stack) => stack,
                SeenStack::WaitsForEngine(stack) => {
                    waiting.push((stack, thread.thread));
                    continue;
                }
                SeenStack::NoFrames | SeenStack::Unread => continue,
            };
            let is_engine = self.of_engine.contains(&thread.thread);
            let held = self.held(thread.thread);
            if thread.waited()
                || self.waiting.has(stack)
                || log.only_calls(stack)
                || !self.held.is_empty() && held == 0 && !is_engine
            {
                continue;
            }
            add(&mut found, to.of(stack, thread.thread), f64::from(held + 1));
            executes |= is_engine;
        }
        let held = self.of_engine.iter().map(|thread| self.held(*thread)).max().unwrap_or(0);
        for (stack, thread) in waiting.into_iter().filter(|_| !executes) {
            add(&mut found, to.of(stack, thread), f64::from(held + 1));
        }
        let sum: f64 = found.iter().map(|it| it.1).sum();
        found.iter_mut().for_each(|it| it.1 /= sum);
        found
    }
}

fn is_same(a: &Weights, b: &Weights) -> bool {
    a.len() == b.len() && a.iter().all(|&(label, by)| weight(b, label) == by)
}

/// What polls saw before the first delta, between each two, and after the last.
pub(super) fn seen_between(
    log: &DeltaLog,
    waiting: &WaitingPlaces,
    labels: &mut Labels,
) -> Vec<Vec<Weights>> {
    let habits = ThreadHabits::of(log, waiting);
    let deltas = &log.deltas;
    let mut found = vec![Vec::new(); deltas.len() + 1];
    for (number, delta) in deltas.iter().enumerate() {
        let last = number.checked_sub(1).map(|last| &deltas[last]);
        let next = deltas.get(number + 1);
        // Deltas between the same two polls: the first has the stacks before, the last those after.
        if last.is_none_or(|last| last.before != delta.before) {
            let before = habits.labels(log, delta, 0, labels);
            let is_known = last.is_some_and(|last| {
                delta.before < last.after && is_same(&before, &habits.labels(log, last, 1, labels))
            });
            if !before.is_empty() && !is_known {
                found[number].push(before);
            }
        }
        if next.is_none_or(|next| next.after != delta.after) {
            let after = habits.labels(log, delta, 1, labels);
            if !after.is_empty() {
                found[number + 1].push(after);
            }
        }
    }
    found
}
