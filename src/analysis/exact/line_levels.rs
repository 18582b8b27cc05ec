//! Levels of the allocator while each line was executed, from exact events.
//!
//! An event has its thread's stack and the level after it. Lines common to two events of a thread
//! get both levels. A line in only one of them began or ended in between: the levels in between are
//! its upper limit, those at its own events the lower. Before a thread's first event, any of its
//! lines may run.
//!
//! Autograd threads count for the thread waiting in `backward()`. Executions without an event are
//! not seen.

use rustc_hash::FxHashMap;

use super::executions::ExecutionTable;
use super::extent::{BlockSizes, BlockStatistics, STATISTICS};
use crate::model::{Metric, Pool, StackId, StackTable, ThreadId};

/// Allocated, reserved, active bytes, then block statistics, which repeat allocated bytes as a sum
/// of blocks.
pub(crate) const LEVELS: usize = 3 + STATISTICS;
pub(crate) type LevelVector = [i64; LEVELS];

/// Not reached, or unknown.
pub(crate) const NOTHING: i64 = i64::MIN;
/// No upper limit.
pub(crate) const ANYTHING: i64 = i64::MAX;

pub(crate) fn level_index(metric: Metric, pool: Pool) -> Option<usize> {
    match (metric, pool) {
        (Metric::AllocatedBytes, Pool::All) => Some(0),
        (Metric::ReservedBytes, Pool::All) => Some(1),
        (Metric::ActiveBytes, Pool::All) => Some(2),
        _ => BlockStatistics::index(metric, pool).map(|index| 3 + index),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LevelRange {
    pub(crate) lower: LevelVector,
    pub(crate) upper: LevelVector,
}

impl LevelRange {
    pub(crate) const UNKNOWN: LevelRange =
        LevelRange { lower: [NOTHING; LEVELS], upper: [ANYTHING; LEVELS] };
    pub(crate) const NEVER: LevelRange =
        LevelRange { lower: [NOTHING; LEVELS], upper: [NOTHING; LEVELS] };

    pub(crate) fn exactly(counted: [i64; 3], held: Option<&BlockStatistics>) -> LevelRange {
        let mut span = LevelRange::UNKNOWN;
        for (i, value) in counted.into_iter().enumerate() {
            (span.lower[i], span.upper[i]) = (value, value);
        }
        span.set_held(held);
        span
    }

    pub(crate) fn set_held(&mut self, held: Option<&BlockStatistics>) {
        let Some(held) = held else { return };
        self.lower[3..].copy_from_slice(&held.0);
        self.upper[3..].copy_from_slice(&held.0);
    }

    fn after_free(mut self, extent: BlockSizes) -> LevelRange {
        let of_block = BlockStatistics::new(extent);
        let mut less: LevelVector = [0; LEVELS];
        (less[0], less[2]) = (extent.size as i64, extent.size as i64);
        less[3..].copy_from_slice(&of_block.0);
        for limit in [&mut self.lower, &mut self.upper] {
            for (value, less) in limit.iter_mut().zip(less) {
                if *value != NOTHING && *value != ANYTHING {
                    *value -= less;
                }
            }
        }
        self
    }

    pub(crate) fn raise(&mut self, other: &LevelRange) {
        self.lower = greater(&self.lower, &other.lower);
        self.upper = greater(&self.upper, &other.upper);
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct StackPeak {
    pub(crate) levels: LevelRange,
    pub(crate) freed: BlockStatistics,
}

impl StackPeak {
    const NEVER: StackPeak =
        StackPeak { levels: LevelRange::NEVER, freed: BlockStatistics([0; STATISTICS]) };

    fn raise(&mut self, lower: &LevelVector, upper: &LevelVector) {
        self.levels.lower = greater(&self.levels.lower, lower);
        self.levels.upper = greater(&greater(&self.levels.upper, upper), lower);
    }
}

#[derive(Debug, Clone, Copy)]
struct LastEvent {
    stack: StackId,
    /// Greatest and least levels up to the thread's next event.
    since: LevelVector,
    low: LevelVector,
    /// The level rose while the thread's position was unknown.
    disturbed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct LineLevels {
    /// Index in `reached` plus 1: most stacks only call others.
    places: Vec<u32>,
    reached: Vec<StackPeak>,
    threads: FxHashMap<ThreadId, LastEvent>,
    common: FxHashMap<(StackId, StackId), Option<StackId>>,
    pub(crate) executions: ExecutionTable,
    now: Option<LevelRange>,
    /// In steps of some nanoseconds, without `executions`.
    work: u64,
    /// `None` if the first levels are unknown.
    greatest: Option<LevelVector>,
}

const NO_LEVEL: LevelVector = [NOTHING; LEVELS];
const ANY_LEVEL: LevelVector = [ANYTHING; LEVELS];

impl LineLevels {
    pub(crate) fn memory(&self) -> u64 {
        let stacks = self.reached.capacity() * size_of::<StackPeak>()
            + self.places.capacity() * size_of::<u32>();
        (stacks + self.common.len() * 48 + self.threads.len() * 96) as u64
            + self.executions.memory()
    }

    /// In steps of some nanoseconds.
    pub(crate) fn work(&self) -> u64 {
        self.work.saturating_add(128 * self.executions.begun)
    }

    fn of_stack(&mut self, stack: StackId) -> &mut StackPeak {
        let index = stack.0 as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.reached.push(StackPeak::NEVER);
            self.places[index] = self.reached.len() as u32;
        }
        &mut self.reached[self.places[index] as usize - 1]
    }

    pub(crate) fn by_stack(&self) -> FxHashMap<StackId, StackPeak> {
        let place = |(stack, place): (usize, &u32)| {
            let reached = self.reached.get((*place as usize).checked_sub(1)?)?;
            Some((StackId(stack as u32), *reached))
        };
        let mut reached: FxHashMap<StackId, StackPeak> =
            self.places.iter().enumerate().filter_map(place).collect();
        // Threads may still be there.
        for last in self.threads.values().filter(|last| last.disturbed) {
            reached.entry(last.stack).or_insert(StackPeak::NEVER).raise(&NO_LEVEL, &last.since);
        }
        reached
    }

    /// The threads' positions are unknown now.
    pub(crate) fn interrupt(&mut self) {
        self.threads.clear();
        self.greatest = None;
    }

    /// With those not finished.
    pub(crate) fn ended(&self) -> ExecutionTable {
        let mut executions = self.executions.clone();
        for (thread, last) in &self.threads {
            let now = LevelRange { lower: last.low, upper: last.since };
            executions.leave(*thread, None, &now);
        }
        executions
    }

    /// Counters outside an event.
    pub(crate) fn on_counters(&mut self, now: LevelRange) {
        if self.now.is_none() {
            self.greatest = Some(now.upper);
        }
        self.rise(None, now);
    }

    /// `now`: levels after the allocation.
    pub(crate) fn allocated(
        &mut self,
        who: Option<(ThreadId, Option<StackId>)>,
        extent: BlockSizes,
        now: LevelRange,
        table: &StackTable,
    ) {
        match who {
            Some((thread, Some(stack))) => {
                self.move_to(thread, stack, now, table);
                self.executions.allocated(thread, stack, extent);
                self.rise(Some(thread), now);
            }
            _ => self.rise(None, now),
        }
    }

    /// `by`: the thread that raised them, if known.
    fn rise(&mut self, by: Option<ThreadId>, now: LevelRange) {
        self.now = Some(now);
        if let Some(greatest) = &mut self.greatest {
            *greatest = greater(greatest, &now.upper);
        }
        self.work += 8 * self.threads.len() as u64;
        for (thread, last) in &mut self.threads {
            let since = greater(&last.since, &now.upper);
            last.disturbed |= since != last.since && Some(*thread) != by;
            last.since = since;
            last.low = lesser(&last.low, &now.lower);
        }
    }

    /// Call before the free takes effect.
    pub(crate) fn freed(
        &mut self,
        who: Option<(ThreadId, Option<StackId>)>,
        extent: BlockSizes,
        table: &StackTable,
    ) {
        let before = self.now.unwrap_or(LevelRange::UNKNOWN);
        let now = before.after_free(extent);
        self.now = self.now.map(|_| now);
        let Some((thread, Some(stack))) = who else {
            for last in self.threads.values_mut() {
                last.low = lesser(&last.low, &now.lower);
            }
            return;
        };
        self.move_to(thread, stack, before, table);
        self.of_stack(stack).freed.add(&BlockStatistics::new(extent));
        self.executions.freed(thread, stack, extent);
        for last in self.threads.values_mut() {
            last.low = lesser(&last.low, &now.lower);
        }
        if let Some(last) = self.threads.get_mut(&thread) {
            // The thread continues at the lower level.
            (last.since, last.low) = (now.upper, now.lower);
        }
    }

    /// Removes `less` excess bytes.
    pub(crate) fn freed_less(&mut self, stack: StackId, extent: BlockSizes, less: u64) {
        let freed = &mut self.of_stack(stack).freed;
        freed.subtract(&BlockStatistics::new(extent));
        freed.add(&BlockStatistics::new(BlockSizes { size: extent.size - less, ..extent }));
    }

    fn move_to(&mut self, thread: ThreadId, stack: StackId, now: LevelRange, table: &StackTable) {
        let here = LastEvent { stack, since: now.upper, low: now.lower, disturbed: false };
        let before = self.threads.insert(thread, here);
        let Some(last) = before else {
            let upper = self.greatest.unwrap_or(ANY_LEVEL);
            self.of_stack(stack).raise(&now.lower, &greater(&upper, &now.upper));
            self.executions.enter(thread, None, stack, table);
            return;
        };
        self.of_stack(stack).raise(&now.lower, &now.upper);
        let ended = LevelRange { lower: last.low, upper: last.since };
        if last.stack == stack && !last.disturbed {
            self.executions.stay(stack, &ended);
            return;
        }
        let common = *self.common.entry((last.stack, stack)).or_insert_with(|| {
            let depths = (depth(table, last.stack), depth(table, stack));
            self.work += 2 * (depths.0 + depths.1);
            common_stack(table, (last.stack, depths.0), (stack, depths.1))
        });
        self.executions.leave(thread, common, &ended);
        if let Some(common) = common {
            self.executions.stay(common, &ended);
        }
        self.executions.enter(thread, common, stack, table);
        if last.disturbed
            && let Some(common) = common
        {
            self.of_stack(common).raise(&NO_LEVEL, &last.since);
        }
        if common != Some(stack) {
            self.of_stack(stack).raise(&now.lower, &last.since);
        }
        if last.disturbed {
            // It may have stayed while others raised the level.
            self.of_stack(last.stack).raise(&NO_LEVEL, &last.since);
        }
    }
}

fn greater(a: &LevelVector, b: &LevelVector) -> LevelVector {
    std::array::from_fn(|i| a[i].max(b[i]))
}

fn lesser(a: &LevelVector, b: &LevelVector) -> LevelVector {
    std::array::from_fn(|i| a[i].min(b[i]))
}

fn depth(table: &StackTable, mut stack: StackId) -> u64 {
    let mut depth = 0;
    while let Some(parent) = table.get_stack(stack).and_then(|n| n.parent) {
        (stack, depth) = (parent, depth + 1);
    }
    depth
}

fn common_stack(table: &StackTable, a: (StackId, u64), b: (StackId, u64)) -> Option<StackId> {
    let up = |s: StackId| table.get_stack(s).and_then(|n| n.parent);
    let ((mut a, mut deep_a), (mut b, mut deep_b)) = (a, b);
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
