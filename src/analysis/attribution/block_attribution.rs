//! Whom a block's bytes are charged to, and how bytes are split without losing one.

use std::borrow::Cow;
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
    /// Whether the stacks seen do not say which of them allocated it: more than one thread can
    /// have, or there were many allocations between two samples.
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

    /// What is shown of it. Where it is [contested](Self::contested), or samples saw several
    /// threads, the stack is unknown: what the stacks of one sampled thread have in `common` is
    /// shown, and else nothing.
    pub(crate) fn shown(
        &self,
        followed: bool,
        common: impl Fn(StackId, StackId) -> Option<StackId>,
    ) -> Cow<'_, BlockAttribution> {
        if self.certain || !(self.contested || !followed && self.has_several_threads()) {
            return Cow::Borrowed(self);
        }
        let mut shares = Vec::new();
        let mut weight = 0;
        let mut known: Option<(ThreadId, Option<StackId>)> = None;
        let is_one_thread = !followed && !self.has_several_threads();
        for &share in &self.shares {
            let (AllocationOrigin::Stack(thread, stack) | AllocationOrigin::Below(thread, stack)) =
                share.0
            else {
                shares.push(share);
                continue;
            };
            weight += share.1;
            let stack = match known {
                None => Some(stack),
                Some((_, so_far)) => so_far.and_then(|so_far| common(so_far, stack)),
            };
            known = Some((thread, stack));
        }
        let origin = match known {
            Some((thread, Some(stack))) if is_one_thread => AllocationOrigin::Below(thread, stack),
            _ => AllocationOrigin::NotSeen,
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
    fn several_stacks_show_what_they_share_and_several_threads_show_nothing() {
        use AllocationOrigin::{Below, NotSeen, Stack};
        let shown = |shares: &[(AllocationOrigin, u64)], followed, contested| {
            let charge = BlockAttribution {
                shares: shares.to_vec(),
                span: None,
                allocated_at: 0,
                certain: false,
                contested,
            };
            let common = |a: StackId, b: StackId| (a.0 > 0 && b.0 > 0).then_some(StackId(1));
            charge.shown(followed, common).shares.clone()
        };
        let stack = |thread, stack| Stack(ThreadId(thread), StackId(stack));
        let two = [(stack(0, 2), 3), (stack(0, 3), 4)];
        assert_eq!(shown(&two, false, true), [(Below(ThreadId(0), StackId(1)), 7)]);
        assert_eq!(shown(&two, false, false), two);
        assert_eq!(shown(&two, true, false), two);
        let unlike = [(stack(0, 0), 3), (stack(0, 3), 4)];
        assert_eq!(shown(&unlike, false, true), [(NotSeen, 7)]);
        let threads = [(stack(0, 2), 3), (stack(1, 3), 4), (AllocationOrigin::NoStack, 1)];
        assert_eq!(shown(&threads, false, false), [(AllocationOrigin::NoStack, 1), (NotSeen, 7)]);
        assert_eq!(shown(&two[..1], true, true), [(NotSeen, 3)]);
    }

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
