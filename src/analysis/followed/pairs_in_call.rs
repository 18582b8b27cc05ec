//! Two blocks of one kind, one right after the other, by two lines of one call: the keys and the values of a cache, for instance.
//!
//! After the first block a poll often finds the thread on the second line already. Where both seem to be made there, and one line ahead of it in
//! this call makes such blocks as well, the first one is that line's. That is likely, never certain.

use std::sync::Arc;

use super::follow_replay::charged_to;
use super::followed_step::{PastStep, made_by};
use super::kind_origins::KindOrigins;
use super::repeated_steps::{PastPart, allocates};
use crate::analysis::attribution::block_attribution::AllocationOrigin;
use crate::analysis::attribution::rules::BlockGroup;

/// The blocks of one kind that were made in one call, with no other between them.
#[derive(Debug, Clone, Copy)]
struct Row {
    kind: BlockGroup,
    /// The number of the last one's change, and the line that it is charged to.
    number: u64,
    origin: AllocationOrigin,
    /// Whether a line ahead may have made it.
    may_be_ahead: bool,
    blocks: u32,
}

/// Follows the blocks that are allocated one by one.
#[derive(Debug, Default)]
pub(super) struct PairsInCall(Option<Row>);

impl PairsInCall {
    /// Something else was allocated.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Takes a change that allocated one block, and whether a line ahead may have made it; tells which earlier change a line ahead made, and which line.
    pub(super) fn add(
        &mut self,
        number: u64,
        (kind, origin): (BlockGroup, AllocationOrigin),
        may_be_ahead: bool,
        origins: &KindOrigins,
    ) -> Option<(u64, AllocationOrigin)> {
        let is_next = |row: &Row| row.kind == kind && origins.calls.are_in_one(row.origin, origin);
        let row = self.0.filter(is_next);
        let blocks = row.map_or(0, |row| row.blocks) + 1;
        self.0 = Some(Row { kind, number, origin, may_be_ahead, blocks });
        let first = row.filter(|row| blocks == 2 && row.may_be_ahead && row.origin == origin)?;
        Some((first.number, origins.line_ahead(kind, origin)?))
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
        && let Some(ahead) = origins.line_ahead(kind, origin)
    {
        let first = &mut Arc::make_mut(first).1;
        first.charge = charged_to(ahead, &first.charge);
    }
}
