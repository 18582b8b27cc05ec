//! Several models have the same modules.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::{FxHashMap, FxHashSet};

use super::finding::listed;
use super::sizes::{bytes_of, sum};
use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{OwnershipSnapshot, RootModule, TensorRow};
use crate::ownership::name_pattern;

/// A model, and its parameters that are no garbage.
type OwnModel<'a> = (&'a RootModule, Vec<u64>);

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    // Dropped models look like copies as long as it is not known that they are garbage.
    let Some(snapshot) = facts.snapshot.filter(|it| it.incomplete.is_none()) else {
        return Vec::new();
    };
    let held = bytes_of(snapshot);
    // Of an ensemble, several learn.
    let optimized: BTreeSet<u64> =
        snapshot.optimizers.iter().flat_map(|it| &it.parameters).copied().collect();
    let learns = |(_, own): &&OwnModel<'_>| own.iter().any(|it| optimized.contains(it));
    let several = alike(snapshot).into_iter().filter(|models| {
        models.len() > 1 && !is_population(models) && models.iter().filter(learns).count() <= 1
    });
    several.filter_map(|models| finding(&models, &held)).collect()
}

/// Models by the paths and classes of their modules.
fn alike(snapshot: &OwnershipSnapshot) -> Vec<Vec<OwnModel<'_>>> {
    let objects = |wanted: fn(&TensorRow) -> bool| -> FxHashSet<u64> {
        let rows = snapshot.tensors.iter().filter(|row| wanted(row));
        rows.filter_map(|row| row.object).collect()
    };
    let (garbage, trained) = (objects(|row| row.garbage), objects(|row| row.tensor.requires_grad));
    let mut alike: BTreeMap<Vec<(&str, &str)>, Vec<OwnModel<'_>>> = BTreeMap::new();
    for model in snapshot.models.iter().filter(|model| model.modules.len() > 1) {
        let all = model.modules.iter().flat_map(|module| &module.parameters);
        let own: Vec<u64> = all.copied().filter(|object| !garbage.contains(object)).collect();
        // A teacher, an average or a target network is frozen.
        if own.iter().any(|object| trained.contains(object)) && !is_average(&model.name) {
            let shape = model.modules.iter().map(|module| (module.path.as_str(), &*module.class));
            alike.entry(shape.collect()).or_default().push((model, own));
        }
    }
    alike.into_values().collect()
}

/// Whether several lie in one container, such as the models of clients: no copies by mistake.
fn is_population(models: &[OwnModel<'_>]) -> bool {
    let patterns: BTreeSet<String> =
        models.iter().map(|(model, _)| name_pattern(&model.name)).collect();
    patterns.len() < models.len()
}

fn finding(models: &[OwnModel<'_>], held: &FxHashMap<u64, (u64, u64)>) -> Option<Finding> {
    let mut models: Vec<&OwnModel<'_>> = models.iter().collect();
    models.sort_by_key(|(_, own)| Reverse(sum(own, held)));
    // Wrappers of one model share its parameters.
    let mut known: FxHashSet<u64> = FxHashSet::default();
    let mut sizes: Vec<(u64, String)> = Vec::new();
    for (model, own) in models {
        let own = own.iter().filter_map(|object| held.get(object));
        let size: u64 = own.filter(|(storage, _)| known.insert(*storage)).map(|(_, it)| it).sum();
        if size > 0 {
            sizes.push((size, model.name.to_string()));
        }
    }
    let more: u64 = sizes.iter().skip(1).map(|(size, _)| size).sum();
    let names: Vec<String> = sizes.into_iter().map(|(_, name)| name).collect();
    let problem = format!("{} models have the same modules ({})", names.len(), listed(&names));
    let found = Finding::new("models twice", more, problem)
        .change("let go of the copy, or keep it on the CPU")
        .frees(more)
        .command("tensors", &["--limit", "0"]);
    (more >= MIN_BYTES).then_some(found)
}

/// Whether its name says why it is there.
pub(super) fn is_average(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["ema", "shadow", "teacher", "target", "average", "avg", "swa", "reference", "ref_", "momentum"]
        .iter()
        .any(|word| name.contains(word))
}
