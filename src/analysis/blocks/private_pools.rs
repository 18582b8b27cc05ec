//! Private pools of CUDA graphs and `torch.cuda.MemPool`s.

use std::collections::BTreeMap;

use crate::analysis::blocks::fragmentation::SegmentSum;
use crate::model::{CudaIndex, OwnershipSnapshot, PoolId, PoolUser};
use crate::ownership::name_pattern;

/// A private pool, its segments, and the CUDA graphs or `MemPool` that use it.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivatePool {
    pub device: CudaIndex,
    pub pool: PoolId,
    pub sums: SegmentSum,
    pub users: Vec<PoolUser>,
}

impl PrivatePool {
    /// Whether a CUDA graph is known to use it.
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

/// `runners[4096].graph`, `12 of step: graphs[0] sharing it`.
pub fn users_label(users: &[PoolUser]) -> String {
    let name = |user: &PoolUser| match &user.name {
        Some(name) => name.to_string(),
        None => format!("a {} without a name", user.class),
    };
    match users {
        [] => "of no CUDA graph or MemPool that was found".to_owned(),
        [only] => name(only),
        [first, ..] => format!("{} of {} sharing it", users.len(), name_pattern(&name(first))),
    }
}
