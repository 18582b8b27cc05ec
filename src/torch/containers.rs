//! `std::set` and `ska::flat_hash_map` in the target.

use crate::target::{Addr, Field};

/// `_Rb_tree_header` (libstdc++ bits/stl_tree.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TreeHeader {
    pub(super) root: Addr,
    /// The header itself when empty.
    leftmost: Addr,
    rightmost: Addr,
    pub(super) count: u64,
}

impl TreeHeader {
    pub(super) const SIZE: usize = 0x28;
    /// Of a `std::set`: the comparator (or padding), then the header.
    pub(super) const SET: usize = 0x30;
    pub(super) const IN_SET: usize = 8;

    /// The caller must check that the root's [`TreeNode::parent`] is the header.
    pub(super) fn decode(bytes: &[u8], at: Addr) -> Option<TreeHeader> {
        let color = Field::<u32>::at(0).get(bytes)?;
        let header = TreeHeader {
            root: Field::<Addr>::at(0x08).get(bytes)?,
            leftmost: Field::<Addr>::at(0x10).get(bytes)?,
            rightmost: Field::<Addr>::at(0x18).get(bytes)?,
            count: Field::<u64>::at(0x20).get(bytes)?,
        };
        let node = |a: Addr| a.is_plausible() && a.0.is_multiple_of(16);
        let empty = header.root.0 == 0 && header.leftmost == at && header.rightmost == at;
        let filled = node(header.root) && node(header.leftmost) && node(header.rightmost);
        // The header is red (0), unlike a root.
        let sound =
            color == 0 && if header.count == 0 { empty } else { filled && header.count < 1 << 32 };
        sound.then_some(header)
    }
}

/// Its value is a pointer.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreeNode {
    /// The root's parent is the header.
    pub(super) parent: Addr,
    pub(super) left: Addr,
    pub(super) right: Addr,
    pub(super) value: Addr,
}

impl TreeNode {
    pub(super) const SIZE: usize = 0x28;

    pub(super) fn decode(bytes: &[u8; Self::SIZE]) -> Option<TreeNode> {
        Some(TreeNode {
            parent: Field::<Addr>::at(0x08).get(bytes)?,
            left: Field::<Addr>::at(0x10).get(bytes)?,
            right: Field::<Addr>::at(0x18).get(bytes)?,
            value: Field::<Addr>::at(0x20).get(bytes)?,
        })
    }
}

/// c10/util/flat_hash_map.h, `sherwood_v3_table`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlatTable {
    pub(super) entries: Addr,
    pub(super) slots: u64,
    pub(super) count: u64,
}

impl FlatTable {
    pub(super) const SIZE: usize = 0x20;
    /// In a set of pointers.
    pub(super) const POINTER_ENTRY: usize = 0x10;
    /// In a map from two numbers to a pointer.
    pub(super) const PAIR_ENTRY: usize = 0x20;
    const MAX_SLOTS: u64 = 1 << 23;

    pub(super) fn decode(bytes: &[u8]) -> Option<FlatTable> {
        let entries = Field::<Addr>::at(0).get(bytes)?;
        let mask = Field::<u64>::at(8).get(bytes)?;
        let lookups = Field::<u8>::at(0x11).get(bytes)?;
        let load_factor = Field::<u32>::at(0x14).get(bytes)?;
        let count = Field::<u64>::at(0x18).get(bytes)?;
        let buckets = mask.checked_add(1)?;
        let sound = entries.is_plausible()
            && load_factor == 0.5f32.to_bits()
            && buckets.is_power_of_two()
            && buckets < Self::MAX_SLOTS
            && count <= buckets;
        // Overflow slots and an end mark follow.
        sound.then(|| FlatTable { entries, slots: mask + u64::from(lookups), count })
    }

    /// Distance from the desired slot, or -1.
    pub(super) fn is_used(first: u8) -> bool {
        first < 0x80
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn a_tree_header_is_empty_around_itself_or_points_to_nodes() {
        let at = Addr(0x5000_0008);
        assert_eq!(
            TreeHeader::decode(&words(&[0, 0, at.0, at.0, 0]), at).map(|h| h.count),
            Some(0)
        );
        assert_eq!(TreeHeader::decode(&words(&[0, 0, at.0, at.0, 1]), at), None);
        assert_eq!(TreeHeader::decode(&words(&[1, 0, at.0, at.0, 0]), at), None);
        let filled = words(&[0, 0x6000_0010, 0x6000_0010, 0x6000_0010, 1]);
        assert_eq!(TreeHeader::decode(&filled, at).map(|h| h.root), Some(Addr(0x6000_0010)));
        assert_eq!(TreeHeader::decode(&filled[..0x20], at), None);
    }

    #[test]
    fn a_table_has_a_power_of_two_of_buckets_and_half_load() {
        let load = 0x3f00_0000_0000_033d;
        let table = FlatTable::decode(&words(&[0x7000_0000, 7, load, 3])).unwrap();
        assert_eq!((table.slots, table.count), (10, 3));
        assert_eq!(FlatTable::decode(&words(&[0x7000_0000, 6, load, 3])), None);
        assert_eq!(FlatTable::decode(&words(&[0x7000_0000, u64::MAX, load, 3])), None);
        assert_eq!(FlatTable::decode(&words(&[0x7000_0000, 7, 0, 3])), None);
    }
}
