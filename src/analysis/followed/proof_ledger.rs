//! What `proof.rs` needs of a device: the last consistent snapshot, and all deltas since. Where a
//! snapshot lies among the deltas is told by its time and its bytes.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::analysis::attribution::{AllocationOrigin, BlockGroup};
use crate::analysis::followed::proof::{ProofBase, ProofDelta, ProvenBlock, live_bytes, prove};
use crate::analysis::followed::repeated_steps::{LiveBytes, live_before};
use crate::model::{FollowedAddresses, FollowedChange};

/// A snapshot's time may be later than what it shows by so many nanoseconds (`torch/blocks.rs`).
const SNAPSHOT_LATE: u64 = 1_000_000;
/// Deltas kept; with more, proofs begin anew at the next snapshot.
const MAX_DELTAS: usize = 1 << 17;

/// The last consistent snapshot of a device, and all deltas since.
#[derive(Debug, Default)]
pub(super) struct ProofLedger {
    base: Option<ProofBase>,
    deltas: Vec<ProofDelta>,
}

impl ProofLedger {
    /// Begins with the blocks of the last snapshot, if they add up to what was alive before the
    /// first delta.
    pub(super) fn begin(
        &mut self,
        first: &FollowedChange,
        blocks: impl Iterator<Item = (u64, BlockGroup)>,
    ) {
        let blocks = blocks.map(|(at, group)| (at, (group, None))).collect();
        let level = live_bytes(&blocks);
        if level == live_before(first.live, &[first.small, first.large]) {
            self.base = Some(ProofBase { time: 0, level, blocks, latest: 0 });
        }
    }

    /// Deltas are missing, or may be.
    pub(super) fn clear(&mut self) {
        *self = ProofLedger::default();
    }

    /// Takes a delta. `true`: the last snapshot may show it, or a part of it, although as many bytes
    /// were alive before: no block that it may have allocated is proven there.
    pub(super) fn push(
        &mut self,
        change: &FollowedChange,
        maker: Option<AllocationOrigin>,
        addresses: Option<Arc<FollowedAddresses>>,
    ) -> bool {
        if self.deltas.len() >= MAX_DELTAS {
            self.clear();
        }
        let delta = ProofDelta::new(change, maker, addresses);
        let is_shown = self.base.as_ref().is_some_and(|base| {
            change.before.0 <= base.time && (delta.live == base.level || delta.may_pass(base.level))
        });
        self.deltas.push(delta);
        if let Some(base) = self.base.as_mut().filter(|_| is_shown) {
            let shown = &self.deltas[base.latest..];
            for (group, maker) in base.blocks.values_mut().filter(|block| block.1.is_some()) {
                *maker = maker.filter(|_| !shown.iter().any(|of| of.may_allocate(group.size)));
            }
            base.latest = self.deltas.len();
        }
        is_shown
    }

    /// Whether a block of the last snapshot is still proven after a delta that it may show.
    pub(super) fn is_proven(&self, at: u64) -> bool {
        let block = self.base.as_ref().and_then(|base| base.blocks.get(&at));
        block.is_some_and(|block| block.1.is_some())
    }

    /// Whether no block of this size was freed from the last snapshot until `time`.
    pub(super) fn none_freed(&self, size: u64, time: u64) -> bool {
        let until = self.deltas.partition_point(|delta| delta.to <= time);
        let is_placed = self.base.as_ref().is_some_and(|base| base.latest == 0);
        is_placed && !self.deltas[..until].iter().any(|delta| delta.may_free(size))
    }

    /// Who is proven to have made the blocks of a consistent snapshot, by address.
    pub(super) fn snapshot(
        &mut self,
        time: u64,
        blocks: impl Iterator<Item = (u64, BlockGroup)>,
    ) -> FxHashMap<u64, AllocationOrigin> {
        let mut found: FxHashMap<u64, ProvenBlock> =
            blocks.map(|(at, group)| (at, (group, None))).collect();
        // Read in the midst of a delta: it shows no state that the deltas tell.
        let level = live_bytes(&found);
        let Some((earliest, latest)) = self.place(time, level) else { return Default::default() };
        if let Some(base) = &self.base {
            prove(base, &self.deltas[..latest], earliest, &mut found);
        }
        let proven = |(at, block): (&u64, &ProvenBlock)| Some((*at, block.1?));
        let proven = found.iter().filter_map(proven).collect();
        self.deltas.drain(..earliest);
        self.base = Some(ProofBase { time, level, blocks: found, latest: latest - earliest });
        proven
    }

    /// After how many deltas at least and at most a snapshot was read: by its time, and its bytes.
    fn place(&self, time: u64, level: LiveBytes) -> Option<(usize, usize)> {
        let is_after = |count: usize| match (count.checked_sub(1), &self.deltas[..]) {
            (Some(last), deltas) => deltas[last].live == level,
            (None, [first, ..]) => live_before(first.live, &first.pools) == level,
            (None, []) => self.base.as_ref().is_none_or(|base| base.level == level),
        };
        let sure = time.saturating_sub(SNAPSHOT_LATE);
        let surely = self.deltas.partition_point(|delta| delta.to <= sure);
        let ambiguous = surely..self.deltas.len();
        let fits = |at: &usize| {
            let delta = &self.deltas[*at];
            delta.live == level || delta.may_pass(level)
        };
        let ahead = |at: usize| if self.deltas[at].may_pass(level) { at } else { at + 1 };
        let first = ambiguous.clone().find(fits).map(ahead);
        let last = ambiguous.rev().find(fits).map(|at| at + 1);
        match is_after(surely) {
            true => Some((surely, last.unwrap_or(surely))),
            // It may show a part of the first.
            false => first.zip(last),
        }
    }
}
