//! Attribution of a block's bytes, and an exact split among its sites.

use std::sync::Arc;

use crate::model::{OwnerId, StackId, ThreadId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum AllocationOrigin {
    /// Allocated before the recording.
    Before,
    /// The same, with a known owner.
    BeforeOwned(OwnerId),
    /// Allocated while no Python stack was read.
    NoStack,
    /// No thread at the polls or samples around can have allocated it.
    NotSeen,
    /// A thread's stack.
    Stack(ThreadId, StackId),
    /// An unknown call below this stack.
    Below(ThreadId, StackId),
}

impl AllocationOrigin {
    pub(crate) fn is_stack(&self) -> bool {
        matches!(self, AllocationOrigin::Stack(..))
    }
}

/// The sites of a block; blocks allocated alike share one.
#[derive(Debug, Clone)]
pub(crate) struct BlockAttribution {
    /// Sites with weights; never empty, never all 0.
    pub(crate) shares: Vec<(AllocationOrigin, u64)>,
    /// In nanoseconds: length of the interval in which it was allocated.
    pub(crate) span: Option<u64>,
    /// End of that interval, in nanoseconds since the recording began; 0 if unknown.
    pub(crate) allocated_at: u64,
    /// The site is proven.
    pub(crate) certain: bool,
    /// Several threads can have allocated it; other blocks of the size class decided.
    pub(crate) contested: bool,
}

impl BlockAttribution {
    pub(crate) fn before() -> Arc<BlockAttribution> {
        Arc::new(BlockAttribution {
            shares: vec![(AllocationOrigin::Before, 1)],
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
        })
    }

    pub(crate) fn before_owned(owners: &[(OwnerId, u64)]) -> Arc<BlockAttribution> {
        let share = |&(owner, weight): &_| (AllocationOrigin::BeforeOwned(owner), weight);
        let shares = owners.iter().map(share).collect();
        Arc::new(BlockAttribution {
            shares,
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
        })
    }

    pub(crate) fn is_before(&self) -> bool {
        let is_before = |origin: &AllocationOrigin| {
            matches!(origin, AllocationOrigin::Before | AllocationOrigin::BeforeOwned(_))
        };
        self.shares.iter().all(|(origin, _)| is_before(origin))
    }

    pub(crate) fn is_not_seen(&self) -> bool {
        matches!(self.shares[..], [(AllocationOrigin::NotSeen, _)])
    }

    /// Calls `take` with the whole bytes of each site; their sum is `bytes`.
    pub(crate) fn split(&self, bytes: u64, mut take: impl FnMut(AllocationOrigin, u64)) {
        if let [(origin, _)] = self.shares[..] {
            take(origin, bytes);
            return;
        }
        let total: u128 = self.shares.iter().map(|&(_, w)| u128::from(w)).sum();
        let portion = |weight: u64| (u128::from(bytes) * u128::from(weight) / total.max(1)) as u64;
        let given: u64 = self.shares.iter().map(|&(_, w)| portion(w)).sum();
        let largest = self
            .shares
            .iter()
            .enumerate()
            .max_by_key(|(i, s)| (s.1, std::cmp::Reverse(*i)))
            .map_or(0, |(i, _)| i);
        for (i, &(origin, weight)) in self.shares.iter().enumerate() {
            let rest = if i == largest { bytes - given } else { 0 };
            let part = portion(weight) + rest;
            if part > 0 {
                take(origin, part);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_loses_no_byte() {
        let stack = |i| AllocationOrigin::Stack(ThreadId(0), StackId(i));
        let charge = BlockAttribution {
            shares: vec![(stack(0), 1), (stack(1), 2), (stack(2), 4)],
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
        };
        let mut parts = Vec::new();
        charge.split(1000, |_, bytes| parts.push(bytes));
        assert_eq!(parts, [142, 285, 573]);
        let mut sum = 0;
        charge.split(3, |_, bytes| sum += bytes);
        assert_eq!(sum, 3);
    }
}
