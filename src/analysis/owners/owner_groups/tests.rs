//! Tests of owner groups.

use super::*;
use crate::model::{CudaIndex, OwnedStorages};

fn on_device(held: &[(TensorCategory, &str, u64)]) -> DeviceOwners {
    let of = |(category, owner, bytes): &(TensorCategory, &str, u64)| OwnedStorages {
        category: *category,
        owner: (*owner).into(),
        bytes: *bytes,
        count: 1,
    };
    DeviceOwners {
        device: CudaIndex(0),
        allocated: 0,
        rounding: 0,
        without_tensor: 0,
        results: None,
        held: held.iter().map(of).collect(),
    }
}

pub(crate) fn groups(held: &[(String, u64)]) -> Vec<OwnerGroup> {
    let held: Vec<_> = held.iter().map(|(name, bytes)| (OTHER, name.as_str(), *bytes)).collect();
    recorded_owner_groups(&on_device(&held))
}

type GroupSums = (String, u64, Vec<(String, u64)>);

fn sums(held: &[(TensorCategory, &str, u64)]) -> Vec<GroupSums> {
    let groups = recorded_owner_groups(&on_device(held));
    let patterns = |group: &OwnerGroup| {
        group.patterns.iter().map(|p| (p.tail.clone(), p.size.storages)).collect()
    };
    groups.iter().map(|g| (g.owner.clone(), g.size.bytes, patterns(g))).collect()
}

const OTHER: TensorCategory = TensorCategory::Other;

#[test]
fn cache_of_many_small_storages_is_one_row() {
    let mut held = vec![
        (TensorCategory::Parameter, "embed.weight".to_owned(), 62),
        (TensorCategory::Parameter, "layers.0.q.weight".to_owned(), 20),
        (TensorCategory::Parameter, "layers.1.q.weight".to_owned(), 20),
        (OTHER, "serve: scratch".to_owned(), 5),
    ];
    for user in 0..10 {
        for layer in 0..4 {
            for what in ["keys", "values"] {
                let name = format!("serve: sessions[\"user{user}\"].layers[{layer}].{what}");
                held.push((OTHER, name, 2));
            }
        }
    }
    let held: Vec<_> = held.iter().map(|(c, name, bytes)| (*c, name.as_str(), *bytes)).collect();
    let text = |text: &str| text.to_owned();
    assert_eq!(
        sums(&held),
        [
            (
                text("serve: sessions"),
                160,
                vec![(text("[*].layers[*].keys"), 40), (text("[*].layers[*].values"), 40)]
            ),
            (text(""), 102, vec![(text("embed.weight"), 1), (text("layers.*.q.weight"), 2)]),
            (text("serve: scratch"), 5, vec![(text(""), 1)]),
        ]
    );
}

/// A buffer registered each step gave one owner per step.
#[test]
fn numbered_attributes_are_one_owner() {
    let names = (0..12).map(|step| (format!("main: bank.queue_{step}"), 2));
    let groups = groups(&names.chain([("main: bank.table".to_owned(), 1)]).collect::<Vec<_>>());
    let rows: Vec<_> = groups.iter().map(|g| (g.owner.as_str(), g.size.storages)).collect();
    assert_eq!(rows, [("main: bank.queue_", 12), ("main: bank.table", 1)]);
    assert_eq!(groups[0].patterns[0].pattern, "main: bank.queue_*");
}

#[test]
fn shared_key_stays_and_a_single_item_keeps_its_name() {
    let held = [
        (OTHER, r#"main: sessions["a"].layers[0].keys"#, 4),
        (OTHER, r#"main: sessions["a"].layers[1].keys"#, 4),
        (OTHER, r#"main: cfg["table"]"#, 1),
    ];
    let owners: Vec<String> = sums(&held).into_iter().map(|(owner, ..)| owner).collect();
    assert_eq!(owners, [r#"main: sessions["a"].layers"#, r#"main: cfg["table"]"#]);
    assert_eq!(sums(&held)[0].2, [("[*].keys".to_owned(), 2)]);
}

#[test]
fn saved_tensors_belong_to_the_variable_keeping_their_graph() {
    let held = [
        (TensorCategory::Saved, "[saved by GeluBackward0] alive by train: val_losses[*]", 7),
        (TensorCategory::Saved, "[saved by AddmmBackward0] alive by train: val_losses[*]", 5),
        (TensorCategory::Saved, "[saved by MulBackward0]", 3),
    ];
    let groups = recorded_owner_groups(&on_device(&held));
    assert_eq!(
        (&groups[0].kind, groups[0].owner.as_str()),
        (&OwnerKind::Graph, "train: val_losses[*]")
    );
    assert_eq!(groups[0].patterns[0].pattern, "GeluBackward0");
    assert_eq!((&groups[1].kind, groups[1].size.bytes), (&OwnerKind::UnknownGraph, 3));
}

#[test]
fn group_sums_equal_the_sums_of_their_items() {
    let names: Vec<String> = (0..500)
        .map(|i| format!("f: {}[{}].x{}[{}]", ["a", "b.c", "d"][i % 3], i % 7, i % 2, i))
        .collect();
    let held: Vec<_> = names.iter().map(|name| (OTHER, name.as_str(), 3)).collect();
    let groups = recorded_owner_groups(&on_device(&held));
    assert_eq!(groups.iter().map(|group| group.size.bytes).sum::<u64>(), 1500);
    for group in &groups {
        let bytes: u64 = group.patterns.iter().map(|pattern| pattern.size.bytes).sum();
        assert_eq!(bytes, group.size.bytes);
    }
}

#[test]
fn changes_are_grouped_by_pattern() {
    let before =
        on_device(&[(OTHER, "f: kept[0]", 4), (OTHER, "f: kept[1]", 4), (OTHER, "f: gone", 9)]);
    let now = on_device(&[
        (OTHER, "f: kept[0]", 4),
        (OTHER, "f: kept[1]", 4),
        (OTHER, "f: kept[2]", 4),
        (OTHER, "f: kept[3]", 4),
    ]);
    let changes = owner_changes(&recorded_owner_groups(&before), &recorded_owner_groups(&now));
    let rows: Vec<_> = changes
        .iter()
        .map(|c| (c.group.patterns[0].pattern.as_str(), c.storages, c.bytes))
        .collect();
    assert_eq!(rows, [("f: gone", -1, -9), ("f: kept[*]", 2, 8)]);
}

#[test]
fn growth_of_kept_losses_is_not_the_running_graphs() {
    let saved = TensorCategory::Saved;
    let kept =
        ["a", "b", "c"].map(|loss| format!("[saved by Gelu] alive by f: losses[\"{loss}\"]"));
    let before = on_device(&[(saved, &kept[0], 4), (saved, "[saved by Gelu] alive by f: loss", 4)]);
    let now = on_device(&[
        (saved, &kept[0], 4),
        (saved, &kept[1], 4),
        (saved, &kept[2], 4),
        (saved, "[saved by Gelu] alive by forward: x", 4),
    ]);
    let changes = owner_changes(&recorded_owner_groups(&before), &recorded_owner_groups(&now));
    let rows: Vec<_> = changes.iter().map(|c| (c.group.owner.as_str(), c.bytes)).collect();
    let losses = rows.iter().find(|(owner, _)| owner.starts_with("f: losses[")).unwrap();
    assert_eq!(losses.1, 8, "{rows:?}");
    assert!(rows.contains(&("f: loss", -4)) && rows.contains(&("forward: x", 4)), "{rows:?}");
}
