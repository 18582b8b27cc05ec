//! The blocks of a sampled recording's last snapshot, each with whom it is charged to.

use std::sync::Arc;

use super::Profile;
use crate::analysis::attribution::block_attribution::BlockAttribution;
use crate::model::CudaIndex;

/// A block of the last snapshot.
#[derive(Debug, Clone)]
pub(crate) struct ChargedBlock {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// `None` where it is older than the recording.
    pub(crate) charge: Option<Arc<BlockAttribution>>,
}

impl Profile {
    /// The allocated blocks of a device's last snapshot, by address.
    pub(crate) fn charged_blocks(&self, device: CudaIndex) -> Vec<ChargedBlock> {
        let Some(profile) = self.profiles.get(&device) else { return Vec::new() };
        let block = |(address, group, charge): (u64, _, Option<&Arc<BlockAttribution>>)| {
            let group: crate::analysis::attribution::rules::BlockGroup = group;
            ChargedBlock { address, size: group.size, charge: charge.cloned() }
        };
        let mut blocks: Vec<ChargedBlock> = profile.live_blocks().map(block).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }
}
