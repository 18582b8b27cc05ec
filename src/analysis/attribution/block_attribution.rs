//! Whom a block's bytes are charged to, and how bytes are split without losing one.

use std::sync::Arc;

use crate::model::{OwnerId, StackId, ThreadId};

/// Who is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum AllocationOrigin {
    /// Allocated before the recording saw its birth.
    Before,
    /// The same, of which is known who owns it.
    BeforeOwned(OwnerId),
    /// Allocated while no Python stack was seen.
    NoStack,
    /// Allocated between two polls or samples, at which no thread was seen that can have done it.
    NotSeen,
    /// A thread's stack.
    Stack(ThreadId, StackId),
    /// Something that a thread called from this stack, not seen what.
    Below(ThreadId, StackId),
}

impl AllocationOrigin {
    /// Whether a thread was seen where it allocated.
    pub(crate) fn is_stack(&self) -> bool {
        matches!(self, AllocationOrigin::Stack(..))
    }
}

/// How a block's bytes are charged. Blocks born alike share one.
#[derive(Debug, Clone)]
pub(crate) struct BlockAttribution {
    /// Who, and with what weight; never empty, weights never all 0.
    pub(crate) shares: Vec<(AllocationOrigin, u64)>,
    /// Length of the time in which the birth may lie, in nanoseconds; `None` when it is unknown.
    pub(crate) span: Option<u64>,
    /// End of that time: nanoseconds since the recording began; 0 when unknown.
    pub(crate) allocated_at: u64,
    /// Whether it is proven that the one who is charged allocated.
    pub(crate) certain: bool,
    /// Whether more than one thread can have allocated it: what others of its size show chose one.
    pub(crate) contested: bool,
}

impl BlockAttribution {
    /// Everything to the time before the recording.
    pub(crate) fn before() -> Arc<BlockAttribution> {
        Arc::new(BlockAttribution {
            shares: vec![(AllocationOrigin::Before, 1)],
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
        })
    }

    /// Everything to the time before the recording, of which is known whose it is.
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

    /// Whether all of it is older than the recording.
    pub(crate) fn is_before(&self) -> bool {
        let is_before = |origin: &AllocationOrigin| {
            matches!(origin, AllocationOrigin::Before | AllocationOrigin::BeforeOwned(_))
        };
        self.shares.iter().all(|(origin, _)| is_before(origin))
    }

    /// Whether nobody is known who can have allocated it.
    pub(crate) fn is_not_seen(&self) -> bool {
        matches!(self.shares[..], [(AllocationOrigin::NotSeen, _)])
    }

    /// Calls `take` with the whole bytes each origin gets; their sum is `bytes`.
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
    fn a_split_loses_no_byte_and_gives_the_rest_to_the_largest() {
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
