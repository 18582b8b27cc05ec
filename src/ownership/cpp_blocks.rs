//! Which C++ structure keeps a block in which no known tensor lies.

use rustc_hash::FxHashMap;

use super::active_blocks::cuda;
use crate::model::{CppKeeper, OwnershipSnapshot, PoolId, TensorDevice};

/// What is known of blocks in no tensor.
pub(super) struct CppBlocks {
    /// By device and block address.
    keepers: FxHashMap<(TensorDevice, u64), CppKeeper>,
}

impl CppBlocks {
    pub(super) fn new(snapshot: &OwnershipSnapshot) -> CppBlocks {
        let mut keepers = FxHashMap::default();
        let is_of_graph = |pool: PoolId| {
            snapshot.pool_users.iter().any(|user| user.pool == pool && &*user.class != "MemPool")
        };
        for map in &snapshot.blocks {
            for (segment, block) in map.blocks().filter(|(s, _)| s.pool != PoolId::default()) {
                let keeper = match is_of_graph(segment.pool) {
                    true => CppKeeper::GraphPools,
                    false => CppKeeper::OtherPools,
                };
                keepers.insert((cuda(map.device), block.address), keeper);
            }
        }
        // A structure says more than a pool.
        let mut known: Vec<_> = snapshot.cpp.iter().collect();
        known.sort_unstable();
        keepers.extend(known.iter().rev().map(|held| ((held.device, held.data), held.keeper)));
        CppBlocks { keepers }
    }

    pub(super) fn keeper(&self, device: TensorDevice, block: u64) -> Option<CppKeeper> {
        self.keepers.get(&(device, block)).copied()
    }
}
