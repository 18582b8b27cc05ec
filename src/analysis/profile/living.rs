//! Blocks of the last snapshot, with their attribution.

use std::borrow::Cow;
use std::sync::Arc;

use super::Profile;
use crate::analysis::attribution::BlockAttribution;
use crate::model::CudaIndex;

#[derive(Debug, Clone)]
pub(crate) struct ChargedBlock {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// `None` if older than the recording.
    pub(crate) charge: Option<Arc<BlockAttribution>>,
}

impl Profile {
    pub(crate) fn shown<'a>(&self, charge: &'a BlockAttribution) -> Cow<'a, BlockAttribution> {
        charge.shown(self.is_followed(), |stack| self.stacks().get_stack(stack)?.parent)
    }

    /// Whether the block is surplus in an inconsistent snapshot.
    pub(crate) fn is_surplus(&self, device: CudaIndex, address: u64) -> bool {
        self.profiles.get(&device).is_some_and(|profile| profile.is_surplus(address))
    }

    /// The last snapshot's allocated blocks, without surplus.
    pub(crate) fn charged_blocks(&self, device: CudaIndex) -> Vec<ChargedBlock> {
        let Some(profile) = self.profiles.get(&device) else { return Vec::new() };
        let block = |(address, group, charge): (u64, _, Option<&Arc<BlockAttribution>>)| {
            let group: crate::analysis::attribution::BlockGroup = group;
            ChargedBlock { address, size: group.size, charge: charge.cloned() }
        };
        let mut blocks: Vec<ChargedBlock> = profile
            .live_blocks()
            .filter(|(address, ..)| !profile.is_surplus(*address))
            .map(block)
            .collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }
}
