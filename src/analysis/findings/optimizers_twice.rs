//! Two optimizers have state for the same parameters: the old one is still live.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::finding::listed;
use super::sizes::{bytes_of, owner_of, sum};
use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{Optimizer, RetainedReference, bytes};

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let held = bytes_of(snapshot);
    let mut by_parameter: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, optimizer) in snapshot.optimizers.iter().enumerate() {
        for parameter in &optimizer.parameters {
            by_parameter.entry(*parameter).or_default().push(index);
        }
    }
    let together: BTreeSet<Vec<usize>> =
        by_parameter.into_values().filter(|optimizers| optimizers.len() > 1).collect();
    let name = |optimizer: &Optimizer| {
        optimizer.variable.as_deref().unwrap_or(&optimizer.class).to_owned()
    };
    let found = together.into_iter().filter_map(|optimizers| {
        let owner = owner_of(&snapshot.optimizers[*optimizers.last()?]);
        let mut sizes: Vec<(u64, String)> = optimizers
            .into_iter()
            .map(|index| &snapshot.optimizers[index])
            .map(|optimizer| (sum(&optimizer.state, &held), name(optimizer)))
            .collect();
        sizes.sort_by_key(|(size, _)| Reverse(*size));
        let more = sizes.iter().skip(1).map(|(size, _)| size).sum();
        let names: Vec<String> = sizes.into_iter().map(|(_, name)| name).collect();
        let problem = format!(
            "{} optimizers have state for the same parameters ({}), {} more than one needs",
            names.len(),
            listed(&names),
            bytes(more)
        );
        // All but the one of the most memory; what a checkpoint shares stays.
        let freed = names.iter().map(|name| snapshot.retained_by(name));
        let freed: Option<Vec<u64>> =
            freed.map(|known| known.map(RetainedReference::on_gpus)).collect();
        let freed = freed.map(|of| of.iter().sum::<u64>() - of.iter().max().unwrap_or(&0));
        let found = Finding::new("optimizers twice", more, problem);
        let found = match freed {
            Some(freed) if freed < MIN_BYTES => found.change(
                "let go of the old one, and of the checkpoint or list that has its state, too",
            ),
            _ => found
                .change("let go of the old one, and of the scheduler or list that keeps it")
                .frees(more.min(freed.unwrap_or(more))),
        };
        let found = found.command("tensors", &["--limit", "0"]).of(&owner);
        (more >= MIN_BYTES).then_some(found)
    });
    found.collect()
}
