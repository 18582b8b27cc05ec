//! Two blocks of one kind, one right after the other, by two lines of one call: the keys and the values of a cache, for instance.
//!
//! After the first block a poll often finds the thread on the second line already. Where both seem to be made there, and one line ahead of it in
//! this call makes such blocks as well that the thread had not left, the first one is that line's. That is likely, never certain.

use std::sync::Arc;

use super::followed_step::{PastStep, made_by};
use super::kind_origins::KindOrigins;
use super::repeated_steps::{PastPart, allocates};
use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::rules::BlockGroup;

/// A block that was made by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct SingleBlock {
    /// The number of its change.
    pub(super) number: u64,
    pub(super) kind: BlockGroup,
    /// The line that it is charged to.
    pub(super) origin: AllocationOrigin,
    /// Whether a line ahead may have made it.
    pub(super) may_be_ahead: bool,
    /// Where the thread was seen before it.
    pub(super) seen: Option<AllocationOrigin>,
}

/// Follows the blocks of one kind that are made in one call, with no other between them: the last of them, and how many they are.
#[derive(Debug, Default)]
pub(super) struct PairsInCall(Option<(SingleBlock, u32)>);

impl PairsInCall {
    /// Something else was allocated.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Takes the next block; tells which earlier change a line ahead made, and which line.
    pub(super) fn add(
        &mut self,
        block: SingleBlock,
        origins: &KindOrigins,
    ) -> Option<(u64, AllocationOrigin)> {
        let SingleBlock { kind, origin, .. } = block;
        let last = self
            .0
            .filter(|(last, _)| last.kind == kind && origins.calls.are_in_one(last.origin, origin));
        let blocks = last.map_or(0, |(_, blocks)| blocks) + 1;
        self.0 = Some((block, blocks));
        let is_first =
            |first: &SingleBlock| blocks == 2 && first.may_be_ahead && first.origin == origin;
        let (first, _) = last.filter(|(last, _)| is_first(last))?;
        Some((first.number, origins.line_ahead(kind, origin, first.seen)?))
    }
}

/// The same of what a change of several most likely was.
pub(super) fn divide_pair(parts: &mut [PastPart<PastStep>], origins: &KindOrigins) {
    let mut blocks = parts.iter_mut().filter(|part| allocates(&part.0));
    let (Some(first), Some(second), None) = (blocks.next(), blocks.next(), blocks.next()) else {
        return;
    };
    if let Some((kind, origin)) = made_by(first)
        && made_by(second) == Some((kind, origin))
        && let Some(ahead) = origins.line_ahead(kind, origin, None)
    {
        let first = &mut Arc::make_mut(first).1;
        first.charge = first.charge.attributed_to(ahead);
    }
}
