//! A block's attribution: an exact split among its sites.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::model::{OwnerId, StackId, ThreadId};

/// A frame that at least this share of the samples has, in per cent, stands for all.
const SHOWN_PERCENT: u32 = 95;

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
    /// Length of the interval in which it was allocated, in nanoseconds.
    pub(crate) span: Option<u64>,
    /// End of that interval, in nanoseconds since the recording began; 0 if unknown.
    pub(crate) allocated_at: u64,
    /// The site is proven.
    pub(crate) certain: bool,
    /// The stacks seen do not decide: several threads can have allocated it, or many allocations
    /// lie between two samples.
    pub(crate) contested: bool,
    /// It is a guess that this block lives, and not one of its size from another site.
    pub(crate) doubted: bool,
}

impl BlockAttribution {
    pub(crate) fn before() -> Arc<BlockAttribution> {
        Arc::new(BlockAttribution {
            shares: vec![(AllocationOrigin::Before, 1)],
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
            doubted: false,
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
            doubted: false,
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

    pub(in crate::analysis) fn only_stack(&self) -> Option<AllocationOrigin> {
        match self.shares[..] {
            [(origin @ AllocationOrigin::Stack(..), _)] => Some(origin),
            _ => None,
        }
    }

    /// The site, if proven.
    pub(in crate::analysis) fn certain_origin(&self) -> Option<AllocationOrigin> {
        match self.shares[..] {
            [(origin, _)] if self.certain => Some(origin),
            _ => None,
        }
    }

    /// All stacks that can have allocated; none if something else can have.
    pub(in crate::analysis) fn possible_stacks(&self) -> Vec<AllocationOrigin> {
        match self.shares.iter().all(|(origin, _)| origin.is_stack()) {
            true => self.shares.iter().map(|(origin, _)| *origin).collect(),
            false => Vec::new(),
        }
    }

    /// The same, not proven.
    pub(in crate::analysis) fn uncertain(&self) -> Arc<BlockAttribution> {
        Arc::new(BlockAttribution { shares: self.shares.clone(), certain: false, ..*self })
    }

    /// The same, of a block of which it is a guess that it lives.
    pub(in crate::analysis) fn in_doubt(&self) -> Arc<BlockAttribution> {
        Arc::new(BlockAttribution { shares: self.shares.clone(), doubted: true, ..*self })
    }

    /// A copy that names `origin` as its only site, proven.
    pub(in crate::analysis) fn proven_of(&self, origin: AllocationOrigin) -> Arc<BlockAttribution> {
        let shares = vec![(origin, 1)];
        let attribution = BlockAttribution { shares, certain: true, contested: false, ..*self };
        Arc::new(BlockAttribution { doubted: false, ..attribution })
    }

    /// What is shown of it: all, unless [contested](Self::contested) or sampled in several threads.
    /// Then samples show the innermost frame that [`SHOWN_PERCENT`] of them share, if any; polls,
    /// nothing.
    pub(crate) fn shown(
        &self,
        followed: bool,
        parent: impl Fn(StackId) -> Option<StackId>,
    ) -> Cow<'_, BlockAttribution> {
        if self.certain || !(self.contested || !followed && self.has_several_threads()) {
            return Cow::Borrowed(self);
        }
        let mut shares = Vec::new();
        let mut weight = 0;
        let mut below: FxHashMap<(ThreadId, StackId), (u64, usize)> = FxHashMap::default();
        for &share in &self.shares {
            let (AllocationOrigin::Stack(thread, stack) | AllocationOrigin::Below(thread, stack)) =
                share.0
            else {
                shares.push(share);
                continue;
            };
            weight += share.1;
            let path: Vec<_> = std::iter::successors(Some(stack), |stack| parent(*stack)).collect();
            for (depth, stack) in path.iter().rev().enumerate() {
                below.entry((thread, *stack)).or_insert((0, depth)).0 += share.1;
            }
        }
        let all: u64 = self.shares.iter().map(|share| share.1).sum();
        let has_most = |(sum, _): (u64, usize)| {
            u128::from(sum) * 100 >= u128::from(all) * u128::from(SHOWN_PERCENT)
        };
        let innermost = below.into_iter().filter(|(_, of)| !followed && has_most(*of));
        let origin = match innermost.max_by_key(|(_, (_, depth))| *depth) {
            Some(((thread, stack), _)) => AllocationOrigin::Below(thread, stack),
            None => AllocationOrigin::NotSeen,
        };
        if weight > 0 {
            shares.push((origin, weight));
        }
        Cow::Owned(BlockAttribution { shares, ..*self })
    }

    fn has_several_threads(&self) -> bool {
        let thread = |share: &(AllocationOrigin, u64)| match share.0 {
            AllocationOrigin::Stack(thread, _) | AllocationOrigin::Below(thread, _) => Some(thread),
            _ => None,
        };
        let mut threads = self.shares.iter().filter_map(thread);
        threads.next().is_some_and(|first| threads.any(|thread| thread != first))
    }

    /// Calls `take` with the whole bytes of each site, `bytes` in all.
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
    fn several_stacks_show_what_they_share_and_several_threads_show_nothing() {
        use AllocationOrigin::{Below, NotSeen, Stack};
        let shown = |shares: &[(AllocationOrigin, u64)], followed, contested| {
            let charge = BlockAttribution {
                shares: shares.to_vec(),
                span: None,
                allocated_at: 0,
                certain: false,
                contested,
                doubted: false,
            };
            charge.shown(followed, |stack| (stack.0 > 1).then_some(StackId(1))).shares.clone()
        };
        let stack = |thread, stack| Stack(ThreadId(thread), StackId(stack));
        let below = |stack| Below(ThreadId(0), StackId(stack));
        let two = [(stack(0, 2), 3), (stack(0, 3), 4)];
        assert_eq!(shown(&two, false, true), [(below(1), 7)]);
        assert_eq!(shown(&two, false, false), two);
        assert_eq!(shown(&two, true, false), two);
        assert_eq!(shown(&[(stack(0, 0), 3), (stack(0, 3), 4)], false, true), [(NotSeen, 7)]);
        assert_eq!(shown(&[(stack(1, 0), 1), (stack(0, 3), 99)], false, true), [(below(3), 100)]);
        let threads = [(stack(0, 2), 3), (stack(1, 3), 4), (AllocationOrigin::NoStack, 1)];
        assert_eq!(shown(&threads, false, false), [(AllocationOrigin::NoStack, 1), (NotSeen, 7)]);
        assert_eq!(shown(&two[..1], true, true), [(NotSeen, 3)]);
    }

    #[test]
    fn a_split_loses_no_byte() {
        let stack = |i| AllocationOrigin::Stack(ThreadId(0), StackId(i));
        let charge = BlockAttribution {
            shares: vec![(stack(0), 1), (stack(1), 2), (stack(2), 4)],
            span: None,
            allocated_at: 0,
            certain: false,
            contested: false,
            doubted: false,
        };
        let mut parts = Vec::new();
        charge.split(1000, |_, bytes| parts.push(bytes));
        assert_eq!(parts, [142, 285, 573]);
        let mut sum = 0;
        charge.split(3, |_, bytes| sum += bytes);
        assert_eq!(sum, 3);
    }
}
