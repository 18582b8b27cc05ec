//! Which lines of a loop made its blocks, where each of them makes one in every round.
//!
//! An optimizer makes the state of all parameters in one such loop, once: two blocks of one size for each of them, by two lines
//! (`_init_group` in torch/optim/adam.py). A poll often finds the thread at the first line before a block and at the second one after it; then either
//! can have made it. But the lines take turns, and other polls find the thread where only one of them is possible. So the blocks of one call are laid beside
//! the turns of its lines, with as few blocks out of turn as possible. That is likely, never certain, and said only where it fits nearly everywhere.
//! A function that is called again and again from one place looks like a loop, too; of such a one the other iterations tell more (`decoder`).

use rustc_hash::{FxHashMap, FxHashSet};

use super::buffer_alignment::MadeBuffer;
use super::pool_change::even_kind;
use crate::analysis::attribution::AllocationOrigin;
use crate::model::{FollowedChange, FunctionId, Pool, StackId, StackReading, StackTable, ThreadId};

/// Blocks of one call that are laid beside its lines at once.
const MAX_BLOCKS: usize = 1 << 14;
/// Fewer tell no loop.
const MIN_BLOCKS: usize = 8;
/// Lines that make blocks: with more of them it is seldom a loop that does nothing else.
const MAX_LINES: usize = 4;
/// A line that stood on both sides of so many blocks makes some.
const MIN_SEEN: u32 = 2;
/// What a block out of turn costs, where one that the polls contradict costs 1.
const OUT_OF_TURN: u32 = 2;
/// At least one block in so many has to be clear by itself, and of these at most one in so many may be against the turns: a poll that came late has
/// the next line already.
const CLEAR: usize = 4;
const AGAINST: usize = 4;
/// At most one change in so many may lie beside something that the function called.
const BELOW: usize = 8;
/// Levels of a stack that are searched for the call, innermost first.
const MAX_DEPTH: usize = 8;
/// Threads that are looked at, and calls under way of each.
const MAX_THREADS: usize = 1 << 4;
const MAX_CALLS: usize = 4;
/// Calls remembered that have ended.
const MAX_ENDED: usize = 1 << 14;

/// One call of a function.
type Call = (Option<StackId>, FunctionId);

/// What one change allocated in a call.
#[derive(Debug)]
struct LoopChange {
    number: u64,
    /// How many blocks of the small and of the large pool, and how many bytes each of these asked for, if they are alike.
    blocks: [usize; 2],
    sizes: [Option<u64>; 2],
    /// The lines at which the thread was seen before it and after it.
    before: Option<u32>,
    after: Option<u32>,
    is_told: bool,
}

/// The blocks of one call under way.
#[derive(Debug)]
struct LoopRun {
    call: Call,
    /// Whether no such call made blocks before.
    is_first: bool,
    changes: Vec<LoopChange>,
    /// How many blocks these are.
    blocks: usize,
    /// Changes beside which the thread was in something that the function called.
    below: usize,
    /// The stacks of its lines, and of how many blocks each stood on both sides.
    lines: FxHashMap<u32, (StackId, u32)>,
}

/// The calls of all threads.
#[derive(Debug, Default)]
pub(super) struct LoopOrder {
    /// Of each thread from the outermost to the innermost.
    runs: FxHashMap<ThreadId, Vec<LoopRun>>,
    /// Calls that made blocks before.
    ended: FxHashSet<(ThreadId, Call)>,
    made: Vec<(u64, Vec<MadeBuffer>)>,
}

impl LoopOrder {
    /// Takes the change with this number, which one of `threads` has made: gives the changes whose lines are known now.
    pub(super) fn add(
        &mut self,
        number: u64,
        change: &FollowedChange,
        threads: &[ThreadId],
        stacks: &StackTable,
    ) -> Vec<(u64, Vec<MadeBuffer>)> {
        let Some(thread) = self.only_of(threads) else { return Vec::new() };
        let listed = change.threads.iter().find(|listed| listed.thread == thread);
        let Some(listed) = listed.filter(|_| change.allocations() > 0) else { return Vec::new() };
        if self.runs.len() >= MAX_THREADS && !self.runs.contains_key(&thread) {
            return Vec::new();
        }
        let sides = listed.sides();
        let runs = self.runs.entry(thread).or_default();
        let goes_on = |run: &LoopRun| {
            let is_in = |side| is_unknown(side) || place(run.call, side, stacks).is_some();
            sides.into_iter().all(is_in) && run.blocks < MAX_BLOCKS
        };
        let ended = runs.iter().position(|run| !goes_on(run)).unwrap_or(runs.len());
        for mut run in runs.drain(ended..) {
            run.tell(thread, &mut self.made);
            if run.blocks >= MIN_BLOCKS && self.ended.len() < MAX_ENDED {
                self.ended.insert((thread, run.call));
            }
        }
        if let Some(call) = common_call(sides, stacks) {
            let known = runs.iter().position(|run| run.call == call);
            if known.is_none() && runs.len() < MAX_CALLS {
                let is_first = !self.ended.contains(&(thread, call));
                runs.push(LoopRun::new(call, is_first));
            }
            let at = known.unwrap_or(runs.len() - 1);
            // Of one that is not the first nothing is told.
            if let Some(run) = runs.get_mut(at).filter(|run| run.is_first && run.call == call) {
                run.take(number, change, sides, stacks);
            }
        }
        std::mem::take(&mut self.made)
    }

    /// The only one of these threads, or the only one of them that is in such a call.
    fn only_of(&self, threads: &[ThreadId]) -> Option<ThreadId> {
        if let &[thread] = threads {
            return Some(thread);
        }
        let is_within = |thread: &&ThreadId| self.runs.get(thread).is_some_and(|of| !of.is_empty());
        let mut within = threads.iter().filter(is_within);
        within.next().copied().filter(|_| within.next().is_none())
    }

    /// What is known by now.
    pub(super) fn settle(&mut self) -> Vec<(u64, Vec<MadeBuffer>)> {
        for (thread, runs) in &mut self.runs {
            runs.iter_mut().for_each(|run| run.tell(*thread, &mut self.made));
        }
        std::mem::take(&mut self.made)
    }
}

impl LoopRun {
    fn new(call: Call, is_first: bool) -> LoopRun {
        LoopRun {
            call,
            is_first,
            changes: Vec::new(),
            blocks: 0,
            below: 0,
            lines: FxHashMap::default(),
        }
    }

    fn take(
        &mut self,
        number: u64,
        change: &FollowedChange,
        sides: [StackReading; 2],
        stacks: &StackTable,
    ) {
        let counts = !change.counters_torn && !change.totals_reset;
        let places = sides.map(|side| place(self.call, side, stacks));
        let [before, after] = places.map(|place| place.map(|(line, _)| line));
        let mut is_below = false;
        for ((line, stack), side) in
            places.into_iter().zip(sides).filter_map(|(p, s)| Some((p?, s)))
        {
            self.lines.entry(line).or_insert((stack, 0));
            is_below |= side.stack() != Some(stack);
        }
        self.below += usize::from(is_below);
        let pools = [(Pool::Small, &change.small), (Pool::Large, &change.large)];
        let blocks = pools.map(|(_, delta)| delta.allocations.max(0) as usize);
        let sizes = pools.map(|(pool, delta)| {
            even_kind(pool, delta).filter(|_| counts).map(|kind| kind.requested)
        });
        let taken = LoopChange { number, blocks, sizes, before, after, is_told: false };
        if let Some((_, seen)) = before.and_then(|line| self.lines.get_mut(&line))
            && before == after
            && taken.count() == 1
            && !is_below
        {
            *seen = seen.saturating_add(1);
        }
        self.blocks = self.blocks.saturating_add(taken.count());
        self.changes.push(taken);
    }

    /// Tells who made the blocks, if that is clear.
    fn tell(&mut self, thread: ThreadId, made: &mut Vec<(u64, Vec<MadeBuffer>)>) {
        let mut lines: Vec<(u32, StackId)> = self
            .lines
            .iter()
            .filter(|(_, (_, seen))| *seen >= MIN_SEEN)
            .map(|(line, (stack, _))| (*line, *stack))
            .collect();
        lines.sort_unstable();
        let is_loop = self.is_first
            && self.below * BELOW <= self.changes.len()
            && (MIN_BLOCKS..2 * MAX_BLOCKS).contains(&self.blocks)
            && (2..=MAX_LINES).contains(&lines.len());
        let Some(turns) = is_loop.then(|| self.turns(&lines)).flatten() else { return };
        let mut all = turns.into_iter();
        let turns: Vec<Vec<usize>> =
            self.changes.iter().map(|change| all.by_ref().take(change.count()).collect()).collect();
        let mut seen_in = [[false; 2]; MAX_LINES];
        for (change, of_change) in self.changes.iter().zip(&turns) {
            if let Some(pool) = change.only_pool() {
                of_change.iter().for_each(|line| seen_in[*line][pool] = true);
            }
        }
        for (change, of_change) in self.changes.iter_mut().zip(turns) {
            let sizes = change.sizes_of(&of_change, &seen_in);
            let Some(sizes) = sizes.filter(|_| !change.is_told) else { continue };
            change.is_told = true;
            let origin = |line: usize| AllocationOrigin::Stack(thread, lines[line].1);
            made.push((change.number, of_change.into_iter().map(origin).zip(sizes).collect()));
        }
    }

    /// For each block which of the lines made it, by its number.
    fn turns(&self, lines: &[(u32, StackId)]) -> Option<Vec<usize>> {
        let count = lines.len();
        let before = |line: usize| (line + count - 1) % count;
        let changes =
            || self.changes.iter().flat_map(|change| std::iter::repeat_n(change, change.count()));
        // What the best order up to each block costs that ends with each line, and the line before it.
        let mut costs = [0_u32; MAX_LINES];
        let mut from: Vec<[usize; MAX_LINES]> = Vec::with_capacity(self.blocks);
        for (nth, change) in changes().enumerate() {
            let last = costs;
            let cheapest = (0..count).min_by_key(|line| last[*line])?;
            let mut came = [0; MAX_LINES];
            for (line, (at, _)) in lines.iter().enumerate() {
                let in_turn = (last[before(line)], before(line));
                let skips = (last[cheapest].saturating_add(OUT_OF_TURN), cheapest);
                let (cost, origin) = if nth == 0 { (0, line) } else { in_turn.min(skips) };
                costs[line] = cost.saturating_add(u32::from(!change.may_be_at(*at, lines)));
                came[line] = origin;
            }
            from.push(came);
        }
        let mut line = (0..count).min_by_key(|line| costs[*line])?;
        let mut turns = Vec::with_capacity(self.blocks);
        for came in from.iter().rev() {
            turns.push(line);
            line = came[line];
        }
        turns.reverse();
        let out_of_turn = turns.windows(2).filter(|pair| pair[0] != before(pair[1])).count();
        let only = |change: &LoopChange| {
            let mut possible = (0..count).filter(|line| change.may_be_at(lines[*line].0, lines));
            possible.next().filter(|_| possible.next().is_none())
        };
        let clear: Vec<bool> =
            changes().zip(&turns).filter_map(|(of, turn)| Some(only(of)? == *turn)).collect();
        let against = clear.iter().filter(|agrees| !**agrees).count() + out_of_turn;
        let fits = clear.len() * CLEAR >= turns.len() && against * AGAINST <= clear.len();
        fits.then_some(turns)
    }
}

impl LoopChange {
    fn count(&self) -> usize {
        self.blocks[0] + self.blocks[1]
    }

    /// The number of the pool that all of its blocks are of.
    fn only_pool(&self) -> Option<usize> {
        match self.blocks {
            [0, _] => Some(1),
            [_, 0] => Some(0),
            _ => None,
        }
    }

    /// Whether the thread can have been at this one of the lines in between.
    fn may_be_at(&self, line: u32, lines: &[(u32, StackId)]) -> bool {
        let (Some(before), Some(after)) = (self.before, self.after) else { return true };
        let is_between = |line: u32| match before > after {
            true => line >= before || line <= after,
            false => (before..=after).contains(&line),
        };
        // With more blocks than lines in between it has come round.
        let between = lines.iter().filter(|(line, _)| is_between(*line)).count();
        is_between(line) || self.count() > between.max(1)
    }

    /// How many bytes each block asked for that these lines made one after the other, by the pools of which they make blocks where they make one
    /// pool's only.
    fn sizes_of(&self, lines: &[usize], seen_in: &[[bool; 2]; MAX_LINES]) -> Option<Vec<u64>> {
        let mut left = self.blocks;
        let pool_of = |line: &usize| match seen_in[*line] {
            [true, false] => Some(0),
            [false, true] => Some(1),
            _ => None,
        };
        for pool in lines.iter().filter_map(pool_of) {
            left[pool] = left[pool].checked_sub(1)?;
        }
        let rest = match left {
            [_, 0] => 0,
            [0, _] => 1,
            _ => return None,
        };
        lines.iter().map(|line| self.sizes[pool_of(line).unwrap_or(rest)]).collect()
    }
}

fn is_unknown(reading: StackReading) -> bool {
    matches!(reading, StackReading::Torn | StackReading::NotRead)
}

/// The innermost call in which a thread stood on both sides, as far as its stack could be read.
fn common_call(sides: [StackReading; 2], stacks: &StackTable) -> Option<Call> {
    let readable = |side: &&StackReading| !is_unknown(**side);
    let mut next = sides.iter().rfind(readable)?.stack();
    for _ in 0..MAX_DEPTH {
        let node = stacks.get_stack(next?)?;
        let call = (node.parent, stacks.get_frame(node.frame)?.function);
        let mut known = sides.iter().filter(readable);
        if known.all(|side| place(call, *side, stacks).is_some()) {
            return Some(call);
        }
        next = node.parent;
    }
    None
}

/// Where in a call a thread stood: the line, and the stack with it.
fn place(call: Call, reading: StackReading, stacks: &StackTable) -> Option<(u32, StackId)> {
    let mut next = reading.stack();
    for _ in 0..MAX_DEPTH {
        let stack = next?;
        let node = stacks.get_stack(stack)?;
        let frame = stacks.get_frame(node.frame)?;
        if (node.parent, frame.function) == call {
            return Some((frame.line, stack));
        }
        next = node.parent;
    }
    None
}

#[cfg(test)]
#[path = "loop_order_tests.rs"]
mod tests;
