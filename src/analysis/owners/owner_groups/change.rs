//! How groups of owners changed between two looks.

use std::collections::BTreeMap;

use super::{OwnerGroup, OwnerKind};
use crate::ownership::name_pattern;

/// A pattern of a group whose bytes or storages are not those of before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerChange {
    /// The group in the look that has it, the later one if both do; its patterns are only this one.
    pub group: OwnerGroup,
    /// Storages more than before.
    pub storages: i64,
    /// Bytes more than before.
    pub bytes: i64,
}

/// What changed from `before` to `now`, the largest change first.
pub fn owner_changes(before: &[OwnerGroup], now: &[OwnerGroup]) -> Vec<OwnerChange> {
    let mut sums: BTreeMap<_, (i64, i64, &OwnerGroup, usize)> = BTreeMap::new();
    for (sign, groups) in [(-1, before), (1, now)] {
        for group in groups {
            // The patterns of variables begin with the variable; those of graphs and models are the same in all of them.
            let owner = match group.kind {
                OwnerKind::Variable => String::new(),
                _ => name_pattern(&group.owner),
            };
            for (index, pattern) in group.patterns.iter().enumerate() {
                let kind = (group.device, group.category, group.kind.clone());
                let key = (kind, owner.clone(), &pattern.pattern);
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
