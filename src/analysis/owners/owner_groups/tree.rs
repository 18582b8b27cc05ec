//! From names to groups: owner and pattern.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::items::GroupItem;
use super::{GroupSize, OwnerGroup, OwnerKind, OwnerPattern};
use crate::model::{TensorCategory, TensorDevice};
use crate::ownership::{NamePart, name_parts};

impl GroupSize {
    fn of(items: &[&GroupEntry<'_>]) -> GroupSize {
        let (mut bytes, mut storages) = (0, 0);
        let mut range = Some((u64::MAX, 0));
        for GroupEntry { item, .. } in items {
            bytes += item.bytes;
            storages += item.storages;
            range = range
                .filter(|_| item.storages == 1)
                .map(|(least, most): (u64, u64)| (least.min(item.bytes), most.max(item.bytes)));
        }
        GroupSize { bytes, storages, range: range.filter(|_| !items.is_empty()) }
    }
}

struct GroupEntry<'a> {
    item: &'a GroupItem,
    index: usize,
    parts: Vec<NamePart<'a>>,
}

/// The largest first.
pub(super) fn group(items: Vec<GroupItem>) -> Vec<OwnerGroup> {
    type Owner<'a> = (TensorDevice, TensorCategory, Option<&'a (OwnerKind, std::sync::Arc<str>)>);
    let mut by_owner: BTreeMap<Owner<'_>, Vec<GroupEntry<'_>>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        let parts = name_parts(&item.name);
        let key = (item.device, item.category, item.owner.as_ref());
        by_owner.entry(key).or_default().push(GroupEntry { item, index, parts });
    }
    let mut groups = Vec::new();
    for ((device, category, owner), entries) in &by_owner {
        let entries: Vec<&GroupEntry<'_>> = entries.iter().collect();
        let mut add = |kind: OwnerKind, owner: String, entries: &[&GroupEntry<'_>], head: usize| {
            groups.push(owner_group(*device, *category, (kind, owner), entries, head));
        };
        match owner {
            Some((kind, owner)) => add(kind.clone(), owner.to_string(), &entries, 0),
            None => by_variable(&entries, 0, &mut |owner, entries, head| {
                add(OwnerKind::Variable, owner, entries, head);
            }),
        }
    }
    groups.sort_by(|a, b| {
        let key = |group: &OwnerGroup| (Reverse(group.size.bytes), group.category);
        key(a).cmp(&key(b)).then_with(|| a.owner.cmp(&b.owner))
    });
    groups
}

/// Divides by the name before the first differing index, key or number. Parts before `from` are
/// equal.
fn by_variable<'a>(
    entries: &[&'a GroupEntry<'a>],
    from: usize,
    add: &mut dyn FnMut(String, &[&'a GroupEntry<'a>], usize),
) {
    let mut containers: BTreeMap<(Vec<&str>, bool), Vec<&'a GroupEntry<'a>>> = BTreeMap::new();
    for entry in entries {
        let parts = &entry.parts;
        let wild = parts.iter().skip(from).position(|part| part.wildcard.is_some());
        let end = wild.map_or(parts.len(), |wild| from + wild);
        let before: Vec<&str> = parts[..end].iter().map(|part| part.text).collect();
        containers.entry((before, wild.is_some())).or_default().push(entry);
    }
    for ((before, is_container), entries) in containers {
        let head = before.len();
        let keys: BTreeSet<&str> = match is_container {
            true => entries.iter().map(|entry| entry.parts[head].text).collect(),
            false => BTreeSet::new(),
        };
        match keys.len() {
            // A single item's whole name says more.
            1 => by_variable(&entries, head + 1, add),
            _ => add(before.concat(), &entries, head),
        }
    }
}

fn owner_group(
    device: TensorDevice,
    category: TensorCategory,
    (kind, owner): (OwnerKind, String),
    entries: &[&GroupEntry<'_>],
    head: usize,
) -> OwnerGroup {
    let mut by_pattern: BTreeMap<Vec<&str>, Vec<&GroupEntry<'_>>> = BTreeMap::new();
    for entry in entries {
        let pattern = entry.parts.iter().map(NamePart::in_pattern).collect();
        by_pattern.entry(pattern).or_default().push(entry);
    }
    let mut patterns: Vec<OwnerPattern> = by_pattern
        .into_values()
        .map(|entries| {
            let whole = pattern(entries.iter().map(|entry| entry.parts.as_slice()));
            OwnerPattern {
                tail: whole[head.min(whole.len())..].concat(),
                pattern: whole.concat(),
                size: GroupSize::of(&entries),
                held: entries.iter().map(|entry| entry.index).collect(),
            }
        })
        .collect();
    patterns
        .sort_by(|a, b| b.size.bytes.cmp(&a.size.bytes).then_with(|| a.pattern.cmp(&b.pattern)));
    let members: BTreeSet<&str> =
        entries.iter().filter_map(|entry| entry.item.member.as_deref()).collect();
    let largest = entries.iter().max_by_key(|entry| entry.item.bytes / entry.item.storages.max(1));
    OwnerGroup {
        device,
        category,
        kind,
        owner,
        size: GroupSize::of(entries),
        members: members.len() as u64,
        largest: largest.map_or_else(String::new, |entry| entry.item.name.to_string()),
        addresses: entries.iter().map(|entry| entry.item.data).filter(|data| *data != 0).collect(),
        example: largest.and_then(|entry| entry.item.example.clone()),
        largest_shape: largest.and_then(|entry| entry.item.shape.clone()),
        patterns,
        frees: None,
        full_at: None,
    }
}

/// The common pattern; equal keys stay.
pub(super) fn pattern<'p, 'a: 'p>(
    names: impl Iterator<Item = &'p [NamePart<'a>]> + Clone,
) -> Vec<&'a str> {
    let first = names.clone().next().unwrap_or_default();
    let parts = first.iter().enumerate().map(|(index, part)| {
        let is_same =
            |other: &[NamePart<'a>]| other.get(index).is_some_and(|o| o.text == part.text);
        if names.clone().all(is_same) { part.text } else { part.in_pattern() }
    });
    parts.collect()
}
