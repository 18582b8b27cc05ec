//! Several models have the same modules.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashSet;

use super::finding::listed;
use super::sizes::{bytes_of, sum};
use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{RootModule, bytes};

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    // Dropped models look like copies as long as it is not known that they are garbage.
    if snapshot.incomplete.is_some() {
        return Vec::new();
    }
    let held = bytes_of(snapshot);
    let garbage: FxHashSet<u64> =
        snapshot.tensors.iter().filter(|row| row.garbage).filter_map(|row| row.object).collect();
    let trained: FxHashSet<u64> = snapshot
        .tensors
        .iter()
        .filter(|row| row.tensor.requires_grad)
        .filter_map(|row| row.object)
        .collect();
    let parameters = |model: &RootModule| -> Vec<u64> {
        let all = model.modules.iter().flat_map(|module| &module.parameters);
        all.copied().filter(|object| !garbage.contains(object)).collect()
    };
    let mut alike: BTreeMap<Vec<(&str, &str)>, Vec<(&RootModule, Vec<u64>)>> = BTreeMap::new();
    for model in snapshot.models.iter().filter(|model| model.modules.len() > 1) {
        let own = parameters(model);
        // A teacher, an average or a target network is frozen.
        if own.iter().any(|object| trained.contains(object)) && !is_average(&model.name) {
            let shape = model.modules.iter().map(|module| (module.path.as_str(), &*module.class));
            alike.entry(shape.collect()).or_default().push((model, own));
        }
    }
    let found = alike.into_values().filter(|models| models.len() > 1).filter_map(|models| {
        let mut sizes: Vec<(u64, String)> =
            models.iter().map(|(model, own)| (sum(own, &held), model.name.to_string())).collect();
        sizes.retain(|(size, _)| *size > 0);
        sizes.sort_by_key(|(size, _)| Reverse(*size));
        let more: u64 = sizes.iter().skip(1).map(|(size, _)| size).sum();
        let names: Vec<String> = sizes.into_iter().map(|(_, name)| name).collect();
        // Ranks of an ensemble all learn.
        let optimized: BTreeSet<u64> =
            snapshot.optimizers.iter().flat_map(|it| &it.parameters).copied().collect();
        let learns =
            |(_, own): &&(&RootModule, Vec<u64>)| own.iter().any(|it| optimized.contains(it));
        if models.iter().filter(learns).count() > 1 {
            return None;
        }
        let problem = format!(
            "{} models have the same modules ({}), the copies have {} of parameters",
            names.len(),
            listed(&names),
            bytes(more)
        );
        let found = Finding::new("models twice", more, problem)
            .change("let go of the copy, or keep it on the CPU")
            .frees(more)
            .command("tensors", &["--limit", "0"]);
        (more >= MIN_BYTES).then_some(found)
    });
    found.collect()
}

/// Whether its name says why it is there.
pub(super) fn is_average(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["ema", "shadow", "teacher", "target", "average", "avg", "swa", "reference", "ref_", "momentum"]
        .iter()
        .any(|word| name.contains(word))
}
