//! What happened in a change of several allocations and frees, if the same was seen before change
//! by change.
//!
//! Now and then the poller loses its processor, and a change has dozens of blocks. The program most
//! likely did what it does in each iteration: the changes are taken that followed where as much was
//! alive in an earlier iteration or layer, if they add up to exactly the same counts and bytes.
//! First comes the place behind one where the last change happened, too. That is likely, never
//! certain.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::CounterDelta;

/// Changes remembered.
const MAX_PAST: usize = 1 << 16;
/// Changes tried that began with as many bytes alive, the last ones first.
const MAX_AT_LEVEL: usize = 256;
/// Changes that one is divided into.
const MAX_PARTS: usize = 512;

/// The bytes alive in the small and in the large pool.
pub(in crate::analysis) type LiveBytes = [i64; 2];
/// Both pools of a change.
pub(in crate::analysis) type PoolDeltas = [CounterDelta; 2];

/// A change, and what is kept of it. It is shared by all changes that it is taken for: where polls
/// rest, a job that makes 40,000 blocks a second goes through the same thousands of them each
/// second.
pub(in crate::analysis) type PastPart<T> = Arc<(PoolDeltas, T)>;

/// The last changes, by what was allocated before them.
#[derive(Debug)]
pub(in crate::analysis) struct PastSteps<T> {
    steps: VecDeque<PastChange<T>>,
    /// The number of the first.
    first: u64,
    /// The last change that began with so many bytes alive: in an iteration most numbers come only
    /// a few times, also in layers that allocate alike.
    at_level: FxHashMap<LiveBytes, u64>,
    /// The change that followed, in an earlier iteration, the one that was like the last: the
    /// program most likely goes on as it did there.
    next: Option<u64>,
}

/// One of them.
#[derive(Debug)]
struct PastChange<T> {
    part: PastPart<T>,
    /// The one before it that began with as many bytes alive.
    same_level: Option<u64>,
}

impl<T> Default for PastSteps<T> {
    fn default() -> PastSteps<T> {
        PastSteps { steps: VecDeque::new(), first: 0, at_level: FxHashMap::default(), next: None }
    }
}

impl<T: Clone> PastSteps<T> {
    /// Takes the next change; `level` was alive before it.
    pub(in crate::analysis) fn push(&mut self, level: LiveBytes, part: PastPart<T>) {
        let pools = part.0;
        let is_like = |number| {
            Some(number).filter(|_| self.change(number).is_some_and(|past| past.part.0 == pools))
        };
        self.next = self.going_on(level, is_like).map(|like| like + 1);
        self.keep(level, part);
    }

    /// Keeps a change as the last one.
    fn keep(&mut self, level: LiveBytes, part: PastPart<T>) {
        if self.steps.len() == MAX_PAST {
            self.steps.pop_front();
            self.first += 1;
        }
        let number = self.first + self.steps.len() as u64;
        if self.at_level.len() >= 4 * MAX_PAST {
            let first = self.first;
            self.at_level.retain(|_, number| *number >= first);
        }
        let same_level = self.at_level.insert(level, number);
        self.steps.push_back(PastChange { part, same_level });
    }

    fn index(&self, number: u64) -> Option<usize> {
        Some(number.checked_sub(self.first)? as usize)
    }

    fn change(&self, number: u64) -> Option<&PastChange<T>> {
        self.steps.get(self.index(number)?)
    }

    /// The first answer about a change like which the program may go on from where so much is
    /// alive: the one behind that was like the last comes first, then the youngest.
    fn going_on<R>(&self, level: LiveBytes, answer: impl Fn(u64) -> Option<R>) -> Option<R> {
        let last = self.at_level.get(&level).copied();
        let before = |number: &u64| self.change(*number)?.same_level;
        let at_level = std::iter::successors(last, before).take(MAX_AT_LEVEL);
        self.next.into_iter().chain(at_level).find_map(answer)
    }

    /// Changes are missing: those known so far are no beginning of what follows.
    pub(in crate::analysis) fn interrupt(&mut self) {
        self.steps.clear();
        self.at_level.clear();
        self.next = None;
    }

    /// The changes that this one most likely was, in order.
    pub(in crate::analysis) fn divide(
        &self,
        level: LiveBytes,
        pools: &PoolDeltas,
    ) -> Option<Vec<PastPart<T>>> {
        self.going_on(level, |number| self.parts(self.index(number)?, pools))
    }

    /// The steps from this one on that add up to `pools`.
    fn parts(&self, from: usize, pools: &PoolDeltas) -> Option<Vec<PastPart<T>>> {
        let mut left = *pools;
        let mut parts: Vec<PastPart<T>> = Vec::new();
        let from = from.min(self.steps.len());
        for PastChange { part, .. } in self.steps.range(from..).take(MAX_PARTS) {
            if part.0 == PoolDeltas::default() {
                continue;
            }
            for (left, past) in left.iter_mut().zip(&part.0) {
                *left = minus(left, past);
                if [left.allocations, left.frees, left.allocated_bytes, left.freed_bytes]
                    .iter()
                    .any(|left| *left < 0)
                {
                    return None;
                }
            }
            parts.push(part.clone());
            if left.iter().all(is_nothing) {
                let last = parts.last_mut()?;
                for (pool, left) in left.iter().enumerate() {
                    // Some bytes asked for are told by the change after.
                    if left.freed_requested_bytes != 0 {
                        let last = &mut Arc::make_mut(last).0[pool];
                        last.freed_requested_bytes += left.freed_requested_bytes;
                    }
                }
                return (parts.len() > 1).then_some(parts);
            }
        }
        None
    }
}

/// What a change freed comes with the last of the parts that it is divided into.
pub(super) fn set_frees(last: &mut PoolDeltas, whole: &PoolDeltas) {
    for (last, whole) in last.iter_mut().zip(whole) {
        (last.frees, last.freed_bytes) = (whole.frees, whole.freed_bytes);
        last.freed_requested_bytes = whole.freed_requested_bytes;
    }
}

/// What is alive after a change before which so much was.
pub(super) fn live_after(live: LiveBytes, pools: &PoolDeltas) -> LiveBytes {
    let after = |of: usize| {
        live[of].saturating_add(pools[of].allocated_bytes).saturating_sub(pools[of].freed_bytes)
    };
    [after(0), after(1)]
}

/// What was alive before a change after which so much is.
pub(super) fn live_before(live: LiveBytes, pools: &PoolDeltas) -> LiveBytes {
    let before = |of: usize| {
        live[of].saturating_sub(pools[of].allocated_bytes).saturating_add(pools[of].freed_bytes)
    };
    [before(0), before(1)]
}

fn is_nothing(left: &CounterDelta) -> bool {
    *left
        == CounterDelta { freed_requested_bytes: left.freed_requested_bytes, ..Default::default() }
}

fn minus(a: &CounterDelta, b: &CounterDelta) -> CounterDelta {
    CounterDelta {
        allocations: a.allocations.saturating_sub(b.allocations),
        frees: a.frees.saturating_sub(b.frees),
        allocated_bytes: a.allocated_bytes.saturating_sub(b.allocated_bytes),
        freed_bytes: a.freed_bytes.saturating_sub(b.freed_bytes),
        requested_bytes: a.requested_bytes.saturating_sub(b.requested_bytes),
        freed_requested_bytes: a.freed_requested_bytes.saturating_sub(b.freed_requested_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocates(count: i64) -> PoolDeltas {
        let bytes = 4 * count;
        let large = CounterDelta {
            allocations: count,
            allocated_bytes: bytes,
            requested_bytes: bytes,
            ..CounterDelta::default()
        };
        [CounterDelta::default(), large]
    }

    fn push<T: Clone>(past: &mut PastSteps<T>, level: LiveBytes, pools: PoolDeltas, what: T) {
        past.push(level, Arc::new((pools, what)));
    }

    /// What comes before them is the same in all layers, but not how much is alive.
    #[test]
    fn layers_that_allocate_alike_are_told_apart_by_what_was_alive() {
        let mut past = PastSteps::default();
        for layer in 0..6 {
            push(&mut past, [0, 8 * layer], allocates(1), (layer, "first"));
            push(&mut past, [0, 8 * layer + 4], allocates(1), (layer, "second"));
        }
        let divided = past.divide([0, 8 * 2], &allocates(2)).unwrap();
        let made: Vec<_> = divided.iter().map(|part| part.1).collect();
        assert_eq!(made, [(2, "first"), (2, "second")]);
    }

    /// Twice in each iteration as much is alive, and other blocks follow.
    #[test]
    fn of_two_places_at_the_same_level_the_one_is_taken_before_which_the_same_happened() {
        let frees = |count: i64| -> PoolDeltas {
            let [small, large] = allocates(count);
            let large = CounterDelta {
                allocations: 0,
                frees: large.allocations,
                allocated_bytes: 0,
                freed_bytes: large.allocated_bytes,
                requested_bytes: 0,
                freed_requested_bytes: large.requested_bytes,
            };
            [small, large]
        };
        let mut past = PastSteps::default();
        let iteration = |past: &mut PastSteps<&'static str>| {
            push(past, [0, 0], allocates(3), "large");
            push(past, [0, 12], frees(3), "first free");
            push(past, [0, 0], allocates(1), "one");
            push(past, [0, 4], allocates(1), "two");
            push(past, [0, 8], frees(2), "second free");
            push(past, [0, 0], allocates(1), "three");
            push(past, [0, 4], allocates(1), "four");
            push(past, [0, 8], frees(2), "last free");
        };
        (0..3).for_each(|_| iteration(&mut past));
        push(&mut past, [0, 0], allocates(3), "large");
        push(&mut past, [0, 12], frees(3), "first free");
        let made = |past: &PastSteps<&'static str>| -> Vec<_> {
            let divided = past.divide([0, 0], &allocates(2)).unwrap();
            divided.iter().map(|part| part.1).collect()
        };
        assert_eq!(made(&past), ["one", "two"]);
        push(&mut past, [0, 0], allocates(1), "one");
        push(&mut past, [0, 4], allocates(1), "two");
        push(&mut past, [0, 8], frees(2), "second free");
        assert_eq!(made(&past), ["three", "four"]);
    }
}
