//! Decodes a recording in which several threads allocate.
//!
//! A delta does not say whose it is. Three things tell: where polls saw each thread ([`stays`]),
//! how many allocations a stay at that site usually makes, and how large a block is beside those
//! that the thread allocated before ([`tables`]): threads that answer requests of different lengths
//! allocate different sizes, in one ratio. What one thread did between two polls leaves less for
//! the others, so hypotheses say it of all threads at once; the likeliest are kept from delta to
//! delta ([`beam`]). A burst is explained by allocations of known ratios that have its bytes
//! together ([`bursts`]). The tables are counted from the posteriors of the round before.

mod beam;
mod bursts;
mod stays;
mod tables;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use rustc_hash::FxHashMap;

use self::beam::{Explanation, ThreadLattice, ThreadSearch};
use self::stays::{ContestedDelta, Passages, StaySpan, ThreadStays};
use self::tables::{Slot, ThreadTables};
use super::decoded::{DecodedPart, PROBABLE};
use super::delta_log::{DeltaLog, LoggedDelta, SeenStack, SeenThread};
use crate::analysis::attribution::AllocationOrigin;
use crate::analysis::followed::pool_change::MAX_SMALL_BLOCK;
use crate::model::{StackId, ThreadId};

/// Rounds of decoding and counting.
const ROUNDS: usize = 8;
/// The tables are counted from so many deltas, the first.
const LEARNED_DELTAS: usize = 3_000;
/// Only single allocations are explained while tables are counted, longer bursts never.
const LEARNED_BURST: usize = 1;
const LONGEST_BURST: usize = 8;
/// So many deltas are answered at once, by what came up to so many later.
const ANSWERED: usize = 256;
const LATER: usize = 128;
/// With more threads nothing is decoded: each hypothesis says where all of them are.
const MOST_THREADS: usize = 256;

/// A site: [`NO_SITE`], [`ENGINE`], or the number of a stack behind these.
type SiteNumber = u32;
/// A thread without Python.
const NO_SITE: SiteNumber = 0;
/// A thread without Python, while another waits for the autograd engine.
const ENGINE: SiteNumber = 1;

/// One allocation of an explanation.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PlacedAllocation {
    thread: usize,
    stay: usize,
    slot: Slot,
    size: u64,
}

impl PlacedAllocation {
    fn is_large(&self) -> bool {
        self.size > MAX_SMALL_BLOCK
    }
}

/// What polls saw of all threads.
#[derive(Default)]
struct SeenThreads {
    deltas: Vec<ContestedDelta>,
    stays: Vec<ThreadStays>,
    threads: Vec<ThreadId>,
    stacks: Vec<StackId>,
}

impl SeenThreads {
    fn of(log: &DeltaLog) -> SeenThreads {
        let mut found = SeenThreads::default();
        let mut numbers: FxHashMap<ThreadId, usize> = FxHashMap::default();
        let mut labels: FxHashMap<StackId, SiteNumber> = FxHashMap::default();
        for delta in &log.deltas {
            let listed = log.threads(delta);
            for seen in listed {
                let number = *numbers.entry(seen.thread).or_insert(found.stays.len());
                if number == found.stays.len() {
                    found.stays.push(ThreadStays::default());
                    found.threads.push(seen.thread);
                }
                for (side, time) in [delta.before, delta.after].into_iter().enumerate() {
                    let site = match seen.sides[side] {
                        SeenStack::Stack(stack) | SeenStack::WaitsForEngine(stack) => {
                            *labels.entry(stack).or_insert_with(|| {
                                found.stacks.push(stack);
                                ENGINE + found.stacks.len() as SiteNumber
                            })
                        }
                        SeenStack::NoFrames if waits_for_engine(listed, side).is_some() => ENGINE,
                        SeenStack::NoFrames => NO_SITE,
                        SeenStack::Unread => continue,
                    };
                    found.stays[number].see(time, site);
                }
            }
        }
        let allocating = log.deltas.iter().enumerate().filter(|of| of.1.allocations() > 0);
        found.deltas = allocating
            .map(|(number, delta)| {
                let can = log.threads(delta).iter().filter(|seen| !seen.waited());
                let spans = can.filter_map(|seen| {
                    let thread = *numbers.get(&seen.thread)?;
                    let (first, last) = found.stays[thread].between(delta.before, delta.after)?;
                    let waited = seen.wait.sides().into_iter().filter(|waits| *waits).count();
                    Some(StaySpan { thread, first, last, held_lock: seen.held_lock, waited })
                });
                ContestedDelta {
                    number,
                    counts: delta.pools.map(|pool| pool.allocations),
                    sums: delta.pools.map(|pool| pool.requested_bytes),
                    spans: spans.collect(),
                    others_possible: delta.others_possible,
                }
            })
            .collect();
        found
    }

    /// What an allocation's site is.
    fn origin(
        &self,
        of: &PlacedAllocation,
        log: &DeltaLog,
        delta: &LoggedDelta,
    ) -> AllocationOrigin {
        let (site, listed) = (of.slot.0, log.threads(delta));
        let waiting = || waits_for_engine(listed, 0).or_else(|| waits_for_engine(listed, 1));
        let stack = || {
            let stack = site.checked_sub(ENGINE + 1).and_then(|at| self.stacks.get(at as usize));
            stack.map(|stack| AllocationOrigin::Stack(self.threads[of.thread], *stack))
        };
        let origin = if site == ENGINE { waiting() } else { stack() };
        origin.unwrap_or(AllocationOrigin::NotSeen)
    }

    /// The likeliest allocations of a delta, with probabilities.
    fn parts(
        &self,
        delta: &LoggedDelta,
        log: &DeltaLog,
        explanations: &[(Rc<Explanation>, f64)],
    ) -> Vec<DecodedPart> {
        let placed = |of: &PlacedAllocation| (of.size, self.origin(of, log, delta));
        let mut ways: Vec<(Vec<PlacedSize>, f64)> = Vec::new();
        for (explanation, chance) in explanations {
            let way: Vec<_> = explanation.made.iter().map(placed).collect();
            match ways.iter_mut().find(|known| known.0 == way) {
                Some(known) => known.1 += chance,
                None => ways.push((way, *chance)),
            }
        }
        let explained = ways.iter().filter(|way| !way.0.is_empty());
        let Some((best, _)) = explained.max_by(|a, b| a.1.total_cmp(&b.1)) else {
            return Vec::new();
        };
        let part = |(at, &(size, origin)): (usize, &PlacedSize)| {
            let alike = |way: &[PlacedSize]| {
                way.iter().filter(|of| of.0 == size && is_alike(&of.1, &origin)).count()
            };
            let needed = alike(&best[..=at]);
            let having = ways.iter().filter(|way| alike(&way.0) >= needed);
            let chance: f64 = having.map(|way| way.1).sum();
            DecodedPart {
                is_large: size > MAX_SMALL_BLOCK,
                requested: (chance >= PROBABLE).then_some(size),
                size: size as f64,
                sites: vec![(origin, chance), (AllocationOrigin::NotSeen, 1.0 - chance)],
            }
        };
        best.iter().enumerate().map(part).collect()
    }
}

/// The bytes of an allocation, and where it was made.
type PlacedSize = (u64, AllocationOrigin);

/// Which of several threads was at a stack matters less than which stack it was.
fn is_alike(a: &AllocationOrigin, b: &AllocationOrigin) -> bool {
    match (a, b) {
        (AllocationOrigin::Stack(_, a), AllocationOrigin::Stack(_, b)) => a == b,
        _ => a == b,
    }
}

/// A thread that waits for the autograd engine at the poll before (0) or after (1).
fn waits_for_engine(listed: &[SeenThread], side: usize) -> Option<AllocationOrigin> {
    listed.iter().find_map(|seen| match seen.sides[side] {
        SeenStack::WaitsForEngine(stack) => Some(AllocationOrigin::Stack(seen.thread, stack)),
        _ => None,
    })
}

/// The allocations of each delta of a log; empty where nothing is known.
pub(super) fn decode(log: &DeltaLog) -> Vec<Vec<DecodedPart>> {
    let seen = SeenThreads::of(log);
    let mut found = vec![Vec::new(); log.deltas.len()];
    if seen.stays.len() > MOST_THREADS {
        return found;
    }
    let passages = Passages::of(&seen.stays);
    let learned = &seen.deltas[..seen.deltas.len().min(LEARNED_DELTAS)];
    let mut tables = ThreadTables::default();
    for _ in 0..ROUNDS {
        let search = ThreadSearch::new(&tables, &passages, &seen.stays, LEARNED_BURST);
        let mut lattice = ThreadLattice::new(seen.stays.len());
        learned.iter().for_each(|delta| lattice.push(delta, &search));
        tables = ThreadTables::learn(&lattice, learned, &seen.stays);
    }
    let search = ThreadSearch::new(&tables, &passages, &seen.stays, LONGEST_BURST);
    let mut lattice = ThreadLattice::new(seen.stays.len());
    let mut answered = 0;
    for (number, delta) in seen.deltas.iter().enumerate() {
        lattice.push(delta, &search);
        let count = match lattice.len() {
            all if number + 1 == seen.deltas.len() => all,
            all if all == ANSWERED + LATER => ANSWERED,
            _ => continue,
        };
        let mut explanations = vec![Vec::new(); count];
        lattice.edges(|nth, edge| {
            if let Some(of) = explanations.get_mut(nth) {
                of.push((Rc::clone(edge.explanation), edge.chance));
            }
        });
        lattice.drop_first(count);
        for of in explanations {
            let number = seen.deltas[answered].number;
            found[number] = seen.parts(&log.deltas[number], log, &of);
            answered += 1;
        }
    }
    found
}
