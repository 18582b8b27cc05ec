//! Finds private pools (CUDA graphs, `torch.cuda.MemPool`): `graph_pools` leads to `PrivatePool`s,
//! whose two `BlockPool`s point back (c10/cuda/CUDACachingAllocator.cpp).

use super::containers::{FlatTable, TreeHeader};
use super::discovery::{chunk_size, is_tree};
use super::layout::{PoolsLayout, PrivateLayout};
use crate::target::{Addr, Field, Memory};

const SEARCHED: usize = 0x400;
const MAX_SLOTS: u64 = 1 << 16;

pub(super) fn find(
    memory: &dyn Memory,
    object: &[u8],
    layout: &PoolsLayout,
    searched: &mut Vec<(usize, u64)>,
) -> Option<PrivateLayout> {
    layout.tables.iter().find_map(|at| {
        let table = FlatTable::decode(object.get(*at..)?)?;
        if table.count == 0 || table.slots > MAX_SLOTS || searched.contains(&(*at, table.count)) {
            return None;
        }
        searched.retain(|(known, _)| known != at);
        searched.push((*at, table.count));
        let len = FlatTable::PAIR_ENTRY * table.slots as usize;
        let entries = memory.vec(table.entries, len).ok()?;
        let mut pools = entries
            .chunks_exact(FlatTable::PAIR_ENTRY)
            .filter(|entry| FlatTable::is_used(entry[0]))
            .filter_map(|entry| Field::<Addr>::at(0x18).get(entry));
        pools
            .find_map(|pool| pools_in(memory, pool, layout))
            .map(|pools| PrivateLayout { table: *at, pools })
    })
}

fn pools_in(memory: &dyn Memory, addr: Addr, layout: &PoolsLayout) -> Option<[usize; 2]> {
    if !addr.is_plausible() || !addr.0.is_multiple_of(16) {
        return None;
    }
    let len = chunk_size(memory, addr).unwrap_or(SEARCHED).min(SEARCHED);
    let copy = memory.vec(addr, len).ok()?;
    let is_pool = |at: &usize| {
        let owner = copy.get(*at..).and_then(|bytes| layout.pool.owner().get(bytes));
        owner == Some(addr)
            && (0..layout.pool.sets).all(|set| {
                is_tree(memory, &copy, addr, at + set * TreeHeader::SET + TreeHeader::IN_SET)
            })
    };
    let mut found = (0..copy.len()).step_by(8).filter(is_pool);
    match (found.next(), found.next(), found.next()) {
        (Some(large), Some(small), None) => Some([large, small]),
        _ => None,
    }
}
