//! Private pools of CUDA graphs and `torch.cuda.MemPool`s.

use std::collections::BTreeMap;

use crate::analysis::blocks::fragmentation::SegmentSum;
use crate::model::{CudaIndex, OwnershipSnapshot, PoolId, PoolUser};

/// A private pool and its users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivatePool {
    /// The device.
    pub device: CudaIndex,
    /// The pool.
    pub pool: PoolId,
    /// Its segments.
    pub sums: SegmentSum,
    /// The CUDA graphs or the `MemPool` that use it.
    pub users: Vec<PoolUser>,
}

impl PrivatePool {
    /// A CUDA graph is known to use it.
    pub fn is_of_graphs(&self) -> bool {
        self.users.iter().any(|user| &*user.class != "MemPool")
    }
}

/// Private pools in use, the largest first.
pub fn private_pools(snapshot: &OwnershipSnapshot) -> Vec<PrivatePool> {
    let mut sums: BTreeMap<(CudaIndex, PoolId), SegmentSum> = BTreeMap::new();
    for map in &snapshot.blocks {
        for segment in map.segments.iter().filter(|segment| segment.is_private()) {
            sums.entry((map.device, segment.pool)).or_default().add(segment);
        }
    }
    let users = |pool| snapshot.pool_users.iter().filter(move |user| user.pool == pool).cloned();
    let pool =
        |((device, pool), sums)| PrivatePool { device, pool, sums, users: users(pool).collect() };
    let mut pools: Vec<PrivatePool> = sums.into_iter().map(pool).collect();
    pools.sort_by_key(|pool| std::cmp::Reverse(pool.sums.bytes));
    pools
}
