//! Finds the deltas between copies of the counters.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::model::{CounterDelta, CudaIndex};
use crate::target::AddressRange;
use crate::torch::{AllocationTotals, CounterPoller, PolledCounters, PoolCounters};

use super::PollSignals;

/// After this many copies, inconsistent counters are accepted.
const MAX_INCONSISTENT: u32 = 2000;
/// If few stacks were copied this fast (nanoseconds), a thread inside the allocator has not reached
/// another line: generated code goes on within 3 µs.
const FEW_THREADS: usize = 2;
const SHORT_COPY: u64 = 3_000;

#[derive(Debug, Clone)]
pub(super) struct CounterChange {
    pub(super) device: CudaIndex,
    pub(super) small: CounterDelta,
    pub(super) large: CounterDelta,
    pub(super) live: [i64; 2],
    pub(super) totals: AllocationTotals,
    /// Owner of the allocator's lock at the copies before and after the delta.
    pub(super) owners: [Option<u32>; 2],
    /// The delta came while the stacks before it were copied: they may be from after it. With
    /// few stacks, a thread inside the allocator has not gone on yet.
    pub(super) was_under_way: bool,
    pub(super) counters_torn: bool,
    pub(super) totals_reset: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyMoment {
    CountersOnly,
    BeforeStacks(StackCopies),
    AfterStacks(StackCopies),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StackCopies {
    pub(super) threads: usize,
    /// In nanoseconds.
    pub(super) took: u64,
}

struct WatchedDevice {
    device: CudaIndex,
    /// The last consistent counters, and the bytes in which deltas show.
    counters: Option<PolledCounters>,
    changing_part: Vec<u8>,
    owner: Option<u32>,
    inconsistent: u32,
    /// How the stacks were copied after the counters were found half updated.
    half_changed_beside: Option<StackCopies>,
}

pub(super) struct CounterWatch {
    counters: Option<CounterPoller>,
    devices: Vec<WatchedDevice>,
    signals: Arc<PollSignals>,
    blocks: u64,
    deltas: u64,
}

impl CounterWatch {
    pub(super) fn new(signals: Arc<PollSignals>) -> CounterWatch {
        CounterWatch { counters: None, devices: Vec::new(), signals, blocks: 0, deltas: 0 }
    }

    pub(super) fn set(&mut self, counters: Option<CounterPoller>) {
        let mut old = std::mem::take(&mut self.devices);
        self.counters = counters;
        self.devices = self
            .counters
            .iter()
            .flat_map(CounterPoller::devices)
            .map(|device| match old.iter().position(|known| known.device == device) {
                Some(at) => old.swap_remove(at),
                None => WatchedDevice {
                    device,
                    counters: None,
                    changing_part: Vec::new(),
                    owner: None,
                    inconsistent: 0,
                    half_changed_beside: None,
                },
            })
            .collect();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Blocks allocated and freed, and deltas, since the start.
    pub(super) fn seen(&self) -> (u64, u64) {
        (self.blocks, self.deltas)
    }

    pub(super) fn spans(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.counters.iter().flat_map(CounterPoller::poll_spans)
    }

    /// Returns `true` after a delta, or near one: a thread is inside an allocator.
    pub(super) fn see(
        &mut self,
        mut copies: &[u8],
        moment: CopyMoment,
        found: &mut Vec<CounterChange>,
    ) -> bool {
        let Some(counters) = &self.counters else { return false };
        let known = found.len();
        let mut moves = false;
        for state in &mut self.devices {
            let Some((copy, rest)) = copies.split_at_checked(counters.poll_len()) else { break };
            copies = rest;
            moves |= state.see(counters, copy, moment, found);
        }
        if found.len() > known {
            let deltas = (found.len() - known) as u64;
            self.signals.changes.fetch_add(deltas, Ordering::Release);
            self.deltas += deltas;
            let blocks = found.iter().skip(known).map(CounterChange::blocks);
            self.blocks = blocks.fold(self.blocks, u64::saturating_add);
        }
        moves
    }
}

impl WatchedDevice {
    fn see(
        &mut self,
        counters: &CounterPoller,
        copy: &[u8],
        moment: CopyMoment,
        found: &mut Vec<CounterChange>,
    ) -> bool {
        let owner = counters.lock_owner(copy);
        let owners = [std::mem::replace(&mut self.owner, owner), owner];
        let part = counters.changing_part(copy).unwrap_or_default();
        if self.counters.is_some() && part == self.changing_part {
            return owner.is_some();
        }
        let Some(new) = counters.decode(copy) else { return true };
        let was_inconsistent = self.inconsistent > 0;
        self.inconsistent += 1;
        let is_half = self.counters.is_some_and(|old| is_half_counted(&old, &new));
        if (!new.fit || is_half) && self.inconsistent < MAX_INCONSISTENT {
            // A delta in progress will be complete before all stacks are copied.
            if let CopyMoment::BeforeStacks(copies) | CopyMoment::AfterStacks(copies) = moment {
                self.half_changed_beside = Some(copies);
            }
            return true;
        }
        self.inconsistent = 0;
        let half_changed_beside = self.half_changed_beside.take();
        let beside = match moment {
            CopyMoment::AfterStacks(copies) => Some(copies),
            CopyMoment::CountersOnly | CopyMoment::BeforeStacks(_) => half_changed_beside,
        };
        self.changing_part.clear();
        self.changing_part.extend_from_slice(part);
        let Some(old) = self.counters.replace(new) else { return true };
        let [small, large] = [delta(&old.small, &new.small), delta(&old.large, &new.large)];
        // Of several blocks, half-updated counters show only the last one's stack.
        let misses_first = was_inconsistent && blocks(&small) + blocks(&large) != 1;
        found.push(CounterChange {
            device: self.device,
            totals_reset: was_reset(&old.small, &new.small) || was_reset(&old.large, &new.large),
            small,
            large,
            live: [new.small.live, new.large.live],
            totals: new.totals(),
            owners,
            was_under_way: misses_first
                || beside.is_some_and(|copies| stacks_may_be_later(owners[0], copies)),
            counters_torn: !new.fit || is_half,
        });
        true
    }
}

impl CounterChange {
    fn blocks(&self) -> u64 {
        blocks(&self.small).saturating_add(blocks(&self.large)).max(0) as u64
    }

    pub(super) fn join(&mut self, next: &CounterChange) {
        self.live = next.live;
        self.totals = next.totals;
        add(&mut self.small, &next.small);
        add(&mut self.large, &next.large);
        self.totals_reset |= next.totals_reset;
        self.counters_torn |= next.counters_torn;
    }
}

/// `owner` was inside the allocator when the counters were copied.
fn stacks_may_be_later(owner: Option<u32>, copies: StackCopies) -> bool {
    owner.is_none() || copies.threads > FEW_THREADS || copies.took > SHORT_COPY
}

fn blocks(delta: &CounterDelta) -> i64 {
    delta.allocations.saturating_add(delta.frees)
}

fn delta(old: &PoolCounters, new: &PoolCounters) -> CounterDelta {
    // After a reset the totals restart at 0.
    let since = |old: i64, new: i64| if new < old { new } else { new - old };
    CounterDelta {
        allocations: since(old.allocations, new.allocations),
        frees: since(old.frees, new.frees),
        allocated_bytes: since(old.allocated_bytes, new.allocated_bytes),
        freed_bytes: since(old.freed_bytes, new.freed_bytes),
        requested_bytes: since(old.requested_bytes, new.requested_bytes),
        freed_requested_bytes: since(old.freed_requested_bytes, new.freed_requested_bytes),
    }
}

fn was_reset(old: &PoolCounters, new: &PoolCounters) -> bool {
    new.allocations < old.allocations
        || new.frees < old.frees
        || new.allocated_bytes < old.allocated_bytes
        || new.freed_bytes < old.freed_bytes
}

/// The allocator updates blocks, then bytes, then requested bytes; a copy can fall between any two.
fn is_half_counted(old: &PolledCounters, new: &PolledCounters) -> bool {
    [(&old.small, &new.small), (&old.large, &new.large)].into_iter().any(|(old, new)| {
        let delta = delta(old, new);
        let differ = |count: i64, bytes: i64| (count > 0) != (bytes > 0);
        differ(delta.allocations, delta.allocated_bytes)
            || differ(delta.frees, delta.freed_bytes)
            // Requested bytes stay after a free while another stream may use the block.
            || differ(delta.allocations, delta.requested_bytes)
    })
}

fn add(sum: &mut CounterDelta, more: &CounterDelta) {
    sum.allocations += more.allocations;
    sum.frees += more.frees;
    sum.allocated_bytes += more.allocated_bytes;
    sum.freed_bytes += more.freed_bytes;
    sum.requested_bytes += more.requested_bytes;
    sum.freed_requested_bytes += more.freed_requested_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_copied_during_a_change_count_only_inside_the_allocator() {
        let copies = |threads, took| StackCopies { threads, took };
        assert!(!stacks_may_be_later(Some(7), copies(1, 1_000)));
        assert!(!stacks_may_be_later(Some(7), copies(FEW_THREADS, SHORT_COPY)));
        assert!(stacks_may_be_later(Some(7), copies(FEW_THREADS + 1, 1_000)), "they take long");
        assert!(stacks_may_be_later(Some(7), copies(1, SHORT_COPY + 1)), "it was held up");
        assert!(stacks_may_be_later(None, copies(1, 1_000)), "it came and went meanwhile");
    }

    #[test]
    fn counters_of_two_moments_are_found_half_changed() {
        let counters = |count: i64, bytes: i64, requested: i64| PolledCounters {
            small: PoolCounters {
                allocations: count,
                allocated_bytes: bytes,
                requested_bytes: requested,
                ..PoolCounters::default()
            },
            ..PolledCounters::default()
        };
        let old = counters(7, 7 * 512, 7 * 500);
        let is_half =
            |count, bytes, requested| is_half_counted(&old, &counters(count, bytes, requested));
        assert!(is_half(8, 7 * 512, 7 * 500) && is_half(8, 8 * 512, 7 * 500));
        assert!(is_half(7, 7 * 512, 8 * 500), "the copy of the count is older");
        assert!(!is_half(8, 8 * 512, 8 * 500));
        let freed = |frees, freed_bytes| PolledCounters {
            small: PoolCounters { frees, freed_bytes, ..old.small },
            ..old
        };
        assert!(is_half_counted(&old, &freed(1, 0)));
        assert!(!is_half_counted(&old, &freed(1, 512)), "another stream may use it still");
    }
}
