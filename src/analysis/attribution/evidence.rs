//! How a block's allocation site is known.

use super::block_attribution::{AllocationOrigin, BlockAttribution};

/// In nanoseconds: polls are closer together than this, samples are not.
const SAMPLED_SPAN: u64 = 1_000_000;

/// How a block's allocation site is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Evidence {
    /// No other stack can have allocated it.
    Proven,
    /// The polls leave one stack.
    Probable,
    /// One stack was sampled around the allocation; no poll saw it.
    Sampled,
    /// Several stacks or threads are possible: stacks share the bytes, of threads one is chosen.
    Shared,
    /// No stack is known.
    NotSeen,
    /// The block is older than the recording.
    Older,
}

impl BlockAttribution {
    /// `followed`: the allocator was polled.
    pub(in crate::analysis) fn evidence(&self, followed: bool) -> Evidence {
        let by_polls = followed && self.span.is_some_and(|span| span <= SAMPLED_SPAN);
        match self.shares[..] {
            _ if self.certain => Evidence::Proven,
            _ if self.is_before() => Evidence::Older,
            [(AllocationOrigin::Stack(..), _)] if self.contested || self.doubted => {
                Evidence::Shared
            }
            [(AllocationOrigin::Stack(..), _)] if by_polls => Evidence::Probable,
            [(AllocationOrigin::Stack(..), _)] => Evidence::Sampled,
            [(_, _)] => Evidence::NotSeen,
            _ => Evidence::Shared,
        }
    }
}
