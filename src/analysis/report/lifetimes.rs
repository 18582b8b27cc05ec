//! Lifetimes of blocks, from successive key moments.

use rustc_hash::FxHashMap;

use crate::model::Nanos;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReportedBlock {
    pub(super) address: u64,
    pub(super) size: u64,
    /// Bytes that it represents, if stacks are sampled.
    pub(super) stands_for: u64,
    /// Number of its allocation site.
    pub(super) source: u32,
    /// In nanoseconds; 0 if not seen.
    pub(super) allocated_at: u64,
    pub(super) is_from_before: bool,
}

impl ReportedBlock {
    /// Whether `later` at this address is the same block. If it is older than the recording, its
    /// owner may have become known since.
    fn is_still(&self, later: &ReportedBlock) -> bool {
        let are_from_before = self.is_from_before && later.is_from_before;
        self.allocated_at == later.allocated_at && (self.source == later.source || are_from_before)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct BlockSum {
    pub(super) bytes: u64,
    pub(super) stands_for: u64,
    pub(super) count: u64,
}

impl BlockSum {
    pub(super) fn add(&mut self, other: BlockSum) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.stands_for = self.stands_for.saturating_add(other.stands_for);
        self.count = self.count.saturating_add(other.count);
    }

    pub(super) fn without(self, other: BlockSum) -> BlockSum {
        BlockSum {
            bytes: self.bytes.saturating_sub(other.bytes),
            stands_for: self.stands_for.saturating_sub(other.stands_for),
            count: self.count.saturating_sub(other.count),
        }
    }
}

impl From<&ReportedBlock> for BlockSum {
    fn from(block: &ReportedBlock) -> BlockSum {
        BlockSum { bytes: block.size, stands_for: block.stands_for, count: 1 }
    }
}

/// Allocation site, first moment live, first moment gone.
pub(super) type SpanKey = (u32, u32, u32);

#[derive(Debug, Default)]
pub(super) struct BlockLifetimes {
    /// Blocks may arrive after moments at which they lived: events do, snapshots do not.
    arrive_late: bool,
    times: Vec<Nanos>,
    /// Blocks live at the last moment by address, with their first moment.
    living: Vec<(ReportedBlock, u32)>,
    ended: FxHashMap<SpanKey, BlockSum>,
}

impl BlockLifetimes {
    pub(super) fn new(is_exact: bool) -> BlockLifetimes {
        BlockLifetimes { arrive_late: is_exact, ..BlockLifetimes::default() }
    }

    /// Takes live blocks sorted by address; returns the new ones by allocation site.
    pub(super) fn advance(
        &mut self,
        time: Nanos,
        blocks: &[ReportedBlock],
    ) -> FxHashMap<u32, BlockSum> {
        self.times.push(time);
        let now = self.times.len() as u32 - 1;
        let before = std::mem::take(&mut self.living);
        let mut appeared: FxHashMap<u32, BlockSum> = FxHashMap::default();
        let mut next = Vec::with_capacity(blocks.len());
        let mut old = before.into_iter().peekable();
        for block in blocks {
            while let Some((gone, from)) = old.next_if(|(old, _)| old.address < block.address) {
                self.end(&gone, from, now);
            }
            let known = old.next_if(|(old, _)| old.address == block.address);
            let may_grow = self.arrive_late;
            let lived_on = known
                .filter(|(old, _)| old.is_still(block) && (may_grow || old.size == block.size));
            if let (Some((gone, from)), None) = (known, lived_on) {
                self.end(&gone, from, now);
            }
            if lived_on.is_some_and(|(old, _)| old.source != block.source) {
                appeared.entry(block.source).or_default().add(block.into());
            }
            // A size or owner learned late holds from the start.
            let from = lived_on.map(|(_, from)| from).unwrap_or_else(|| {
                appeared.entry(block.source).or_default().add(block.into());
                self.first_moment(block, now)
            });
            next.push((*block, from));
        }
        for (gone, from) in old {
            self.end(&gone, from, now);
        }
        self.living = next;
        appeared
    }

    fn first_moment(&self, block: &ReportedBlock, now: u32) -> u32 {
        match block.allocated_at {
            _ if !self.arrive_late => now,
            _ if block.is_from_before => 0,
            0 => now,
            // Events may be decoded late.
            at => (self.times.partition_point(|time| time.0 < at) as u32).min(now),
        }
    }

    fn end(&mut self, block: &ReportedBlock, from: u32, to: u32) {
        self.ended.entry((block.source, from, to)).or_default().add(block.into());
    }

    pub(super) fn times(&self) -> &[Nanos] {
        &self.times
    }

    /// Blocks still live end one behind the last moment.
    pub(super) fn finish(mut self) -> FxHashMap<SpanKey, BlockSum> {
        let end = self.times.len() as u32;
        for (block, from) in std::mem::take(&mut self.living) {
            self.end(&block, from, end);
        }
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, size: u64, allocated_at: u64) -> ReportedBlock {
        let is_from_before = allocated_at == 0;
        ReportedBlock { address, size, stands_for: size, source: 7, allocated_at, is_from_before }
    }

    #[test]
    fn blocks_live_from_allocation_to_the_first_moment_without_them() {
        let mut lifetimes = BlockLifetimes::new(true);
        lifetimes.advance(Nanos(10), &[block(1, 100, 5)]);
        let appeared = lifetimes.advance(Nanos(20), &[block(1, 40, 15), block(3, 30, 8)]);
        assert_eq!(appeared[&7], BlockSum { bytes: 70, stands_for: 70, count: 2 });
        lifetimes.advance(Nanos(30), &[block(1, 50, 15), block(9, 2, 0)]);
        let mut spans: Vec<_> = lifetimes.finish().into_iter().map(|(k, s)| (k, s.bytes)).collect();
        spans.sort_unstable();
        assert_eq!(spans, [((7, 0, 1), 100), ((7, 0, 2), 30), ((7, 0, 3), 2), ((7, 1, 3), 50)]);
    }

    /// A block counts only where a snapshot has it.
    #[test]
    fn sampled_block_counts_only_where_a_snapshot_shows_it() {
        let mut lifetimes = BlockLifetimes::new(false);
        lifetimes.advance(Nanos(10), &[block(1, 100, 5), block(2, 30, 4)]);
        lifetimes.advance(Nanos(20), &[block(2, 30, 8)]);
        lifetimes.advance(Nanos(30), &[block(1, 100, 5), block(2, 30, 8), block(3, 7, 0)]);
        let mut at = [0; 3];
        for ((_, from, to), sum) in lifetimes.finish() {
            (from..to).for_each(|moment| at[moment as usize] += sum.bytes);
        }
        assert_eq!(at, [130, 30, 137]);
    }

    /// Counted twice, it raised a report's peak above the allocator's.
    #[test]
    fn older_block_with_a_late_owner_counts_once() {
        let mut lifetimes = BlockLifetimes::new(true);
        let block = |source| ReportedBlock {
            address: 10,
            size: 512,
            stands_for: 512,
            source,
            allocated_at: 0,
            is_from_before: true,
        };
        lifetimes.advance(Nanos(1), &[block(1)]);
        lifetimes.advance(Nanos(2), &[block(1)]);
        let appeared = lifetimes.advance(Nanos(3), &[block(2)]);
        let once = BlockSum { bytes: 512, stands_for: 512, count: 1 };
        assert_eq!(appeared.get(&2), Some(&once), "nothing of it came and went");
        lifetimes.advance(Nanos(4), &[block(2)]);
        assert_eq!(lifetimes.finish(), FxHashMap::from_iter([((2, 0, 4), once)]));
    }
}
