//! Leaves blocks out of an inconsistent snapshot whose sum exceeds the counter: it can list a block
//! freed during the read beside one allocated after that.

use rustc_hash::{FxHashMap, FxHashSet};

use super::LiveBlock;

/// Blocks to leave out, so that the others take at most `allocated` bytes: first the youngest,
/// which are freed soonest; the smallest possible block covers the rest.
pub(super) fn surplus(blocks: &FxHashMap<u64, LiveBlock>, allocated: u64) -> FxHashSet<u64> {
    let sum: u64 = blocks.values().map(|block| block.kind.size).sum();
    let mut over = sum.saturating_sub(allocated);
    let mut left_out = FxHashSet::default();
    if over == 0 {
        return left_out;
    }
    let mut youngest: Vec<(bool, u64, u64, u64)> = blocks
        .iter()
        .map(|(&address, block)| {
            let (is_certain, at) =
                block.charge().map_or((false, 0), |charge| (charge.certain, charge.allocated_at));
            (is_certain, u64::MAX - at, address, block.kind.size)
        })
        .collect();
    youngest.sort_unstable();
    for &(_, _, address, size) in &youngest {
        if size <= over {
            over -= size;
            left_out.insert(address);
        }
    }
    let rest = youngest.iter().filter(|(_, _, address, _)| !left_out.contains(address));
    let smallest =
        rest.min_by_key(|(is_certain, .., size)| (*is_certain, *size)).filter(|_| over > 0);
    left_out.extend(smallest.map(|(_, _, address, _)| *address));
    left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::attribution::{BlockAttribution, BlockGroup};
    use crate::model::Pool;
    use std::sync::Arc;

    fn blocks(of: &[(u64, u64, bool)]) -> FxHashMap<u64, LiveBlock> {
        let block = |(number, &(size, allocated_at, certain)): (u64, &(u64, u64, bool))| {
            let kind = BlockGroup { size, requested: size, pool: Pool::Large };
            let attribution = BlockAttribution {
                allocated_at,
                certain,
                ..BlockAttribution::clone(&BlockAttribution::before())
            };
            (number, LiveBlock { attribution: Some(Arc::new(attribution)), ..LiveBlock::new(kind) })
        };
        (0..).zip(of).map(block).collect()
    }

    fn left_out(of: &[(u64, u64, bool)], allocated: u64) -> Vec<u64> {
        let mut addresses: Vec<u64> = surplus(&blocks(of), allocated).into_iter().collect();
        addresses.sort_unstable();
        addresses
    }

    #[test]
    fn the_youngest_blocks_are_left_out_until_the_sum_fits() {
        let map = [(10, 1, false), (20, 5, false), (30, 4, false), (5, 9, true)];
        assert!(left_out(&map, 65).is_empty());
        assert!(left_out(&map, 70).is_empty());
        assert_eq!(left_out(&map, 45), [1]);
        // None of the other three fits the remaining 3 bytes; the proven one stays.
        assert_eq!(left_out(&map, 42), [0, 1]);
    }
}
