//! Changes of owner groups between two snapshots.

use std::collections::BTreeMap;

use super::{OwnerGroup, OwnerKind};
use crate::ownership::name_pattern;

/// A pattern whose bytes or storages changed, by how much, and the latest group with it alone.
#[allow(missing_docs)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerChange {
    pub group: OwnerGroup,
    pub storages: i64,
    pub bytes: i64,
}

/// What changed, the largest first.
pub fn owner_changes(before: &[OwnerGroup], now: &[OwnerGroup]) -> Vec<OwnerChange> {
    let mut sums: BTreeMap<_, (i64, i64, &OwnerGroup, usize)> = BTreeMap::new();
    for (sign, groups) in [(-1, before), (1, now)] {
        for group in groups {
            // Only a variable's patterns begin with its name.
            let owner = match group.kind {
                OwnerKind::Variable => String::new(),
                _ => name_pattern(&group.owner),
            };
            for (index, pattern) in group.patterns.iter().enumerate() {
                let kind = (group.device, group.category, group.kind.clone());
                // A shared number stays until a second name differs: `tensor_1` becomes `tensor_*`.
                let key = (kind, owner.clone(), name_pattern(&pattern.pattern));
                let sum = sums.entry(key).or_insert((0, 0, group, index));
                sum.0 += sign * pattern.size.storages as i64;
                sum.1 += sign * pattern.size.bytes as i64;
                (sum.2, sum.3) = (group, index);
            }
        }
    }
    let mut changes: Vec<OwnerChange> = sums
        .into_values()
        .filter(|(storages, bytes, ..)| (*storages, *bytes) != (0, 0))
        .map(|(storages, bytes, group, index)| {
            let patterns = vec![group.patterns[index].clone()];
            OwnerChange { group: OwnerGroup { patterns, ..group.clone() }, storages, bytes }
        })
        .collect();
    changes.sort_by(|a, b| {
        let key = |change: &OwnerChange| {
            (std::cmp::Reverse(change.bytes.unsigned_abs()), change.bytes < 0)
        };
        key(a)
            .cmp(&key(b))
            .then_with(|| a.group.patterns[0].pattern.cmp(&b.group.patterns[0].pattern))
    });
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::owners::owner_groups::tests::groups;

    fn changes(before: &[(&str, u64)], now: &[(&str, u64)]) -> Vec<(String, i64, i64)> {
        let of = |held: &[(&str, u64)]| {
            groups(
                &held.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect::<Vec<_>>(),
            )
        };
        owner_changes(&of(before), &of(now))
            .into_iter()
            .map(|change| (change.group.patterns[0].pattern.clone(), change.storages, change.bytes))
            .collect()
    }

    #[test]
    fn second_name_differing_in_a_number_frees_nothing() {
        let one = [("__main__.dummy_tensor_1", 90)];
        let two = [("__main__.dummy_tensor_1", 90), ("__main__.dummy_tensor_2", 120)];
        assert_eq!(changes(&one, &two), [("__main__.dummy_tensor_*".to_owned(), 1, 120)]);
        assert_eq!(changes(&two, &one), [("__main__.dummy_tensor_1".to_owned(), -1, -120)]);
        let kept = [("f: losses[0]", 8)];
        let more = [("f: losses[0]", 8), ("f: losses[1]", 8), ("f: losses[2]", 8)];
        assert_eq!(changes(&kept, &more), [("f: losses[*]".to_owned(), 2, 16)]);
        let keyed = [("f: cache[\"a\"].keys[0]", 8)];
        let more = [("f: cache[\"a\"].keys[0]", 8), ("f: cache[\"b\"].keys[0]", 4)];
        assert_eq!(changes(&keyed, &more).len(), 1);
        assert_eq!(changes(&keyed, &more)[0].2, 4);
        assert_eq!(changes(&two, &two), []);
        let some = [("f: small", 8), ("f: gone", 64)];
        let then = [("f: small", 8), ("f: new", 16), ("f: large", 128)];
        let sizes: Vec<i64> = changes(&some, &then).iter().map(|change| change.2).collect();
        assert_eq!(sizes, [128, -64, 16], "the largest first, come or gone");
    }
}
