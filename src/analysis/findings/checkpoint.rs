//! A checkpoint stays on the GPU beside the model that was loaded from it.

use std::collections::{BTreeMap, BTreeSet};

use super::models_twice::is_average;
use super::{Finding, FindingFacts, MIN_BYTES};
use crate::analysis::owners::OwnerFrees;
use crate::model::{TensorCategory, bytes};
use crate::ownership::{held_storages, reference_of};

/// Of the model's parameters that a dictionary must have: 4/5.
const MIN_SHARE: (usize, usize) = (4, 5);

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot.filter(|it| it.incomplete.is_none()) else {
        return Vec::new();
    };
    let mut models: Vec<BTreeSet<String>> = Vec::new();
    for model in &snapshot.models {
        let mut own = BTreeSet::new();
        for module in &model.modules {
            for object in &module.parameters {
                let row = snapshot.tensors.iter().find(|row| row.object == Some(*object));
                let last =
                    row.and_then(|row| Some(row.names.first()?.rsplit('.').next()?.to_owned()));
                own.extend(last.map(|last| match module.path.is_empty() {
                    true => last,
                    false => format!("{}.{last}", module.path),
                }));
            }
        }
        models.push(own);
    }
    // Variable of the dictionary: keys with their bytes.
    let mut kept: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for (group, held) in held_storages(snapshot) {
        if !group.device.is_cuda() || group.category != TensorCategory::Other {
            continue;
        }
        let name = snapshot.tensors[group.tensors[0]].names.first();
        let entry = name.and_then(|name| {
            let (dict, key) = name.strip_suffix("\"]")?.rsplit_once("[\"")?;
            Some((dict, key))
        });
        if let Some((dict, key)) = entry {
            kept.entry(dict).or_default().insert(key, held);
        }
    }
    // Of each variable: how many copies, and their bytes.
    let mut copies: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (dict, keys) in kept {
        let is_of = |model: &BTreeSet<String>| {
            let same = keys.keys().filter(|key| model.contains(**key)).count();
            !model.is_empty() && same * MIN_SHARE.1 >= model.len() * MIN_SHARE.0 && same > 1
        };
        if models.iter().any(is_of) && !is_average(dict) {
            let variable = dict.split_once('[').map_or(dict, |(variable, _)| variable);
            let sums = copies.entry(variable).or_default();
            *sums = (sums.0 + 1, sums.1 + keys.values().sum::<u64>());
        }
    }
    let large = copies.into_iter().filter(|(_, (_, size))| *size >= MIN_BYTES);
    large.map(|(variable, sums)| finding(facts, variable, sums)).collect()
}

fn finding(facts: &FindingFacts<'_>, variable: &str, (copies, size): (u64, u64)) -> Finding {
    let what = match copies {
        1 => format!("{} of weights", bytes(size)),
        _ => format!("{copies} copies of weights, {},", bytes(size)),
    };
    let problem = format!("{variable} keeps {what} on the GPU beside those of the model");
    let name = variable.rsplit_once(": ").map_or(variable, |(_, name)| name);
    let change = match copies {
        1 => format!("keep {name} on the CPU (.cpu(), map_location=\"cpu\"), or del it"),
        _ => format!("keep fewer in {name}, or copy them to the CPU"),
    };
    // What else goes with the variable, such as optimizer state.
    let of_it = facts.groups.iter().filter(|group| reference_of(&group.owner) == Some(variable));
    let frees = of_it.filter_map(|group| group.frees.as_ref()).map(OwnerFrees::all).max();
    Finding::new("checkpoint kept", size, problem).change(change).frees(frees.unwrap_or(size))
}
