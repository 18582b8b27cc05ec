//! An optimizer keeps parameters that the model has no more, with their state.

use std::collections::BTreeSet;

use super::sizes::{bytes_of, owner_of, sum};
use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{TensorRow, bytes, number};

/// Names of a parameter that only an optimizer keeps.
const OF_OPTIMIZER: [&str; 3] = [".param_groups[", ".state[", ".state.keys()"];

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot.filter(|it| it.incomplete.is_none()) else {
        return Vec::new();
    };
    let held = bytes_of(snapshot);
    let modules = snapshot.models.iter().flat_map(|model| &model.modules);
    let in_modules: BTreeSet<u64> =
        modules.flat_map(|module| &module.parameters).copied().collect();
    // Others belong to the program: a prompt, a temperature.
    let only_in_optimizer = |row: &TensorRow| {
        !row.names.is_empty()
            && row.names.iter().all(|name| OF_OPTIMIZER.iter().any(|part| name.contains(part)))
    };
    let rows = snapshot.tensors.iter().filter(|row| only_in_optimizer(row));
    let orphans: BTreeSet<u64> =
        rows.filter_map(|row| row.object).filter(|object| !in_modules.contains(object)).collect();
    let found = snapshot.optimizers.iter().filter_map(|optimizer| {
        let is_of_model = optimizer.parameters.iter().any(|it| in_modules.contains(it));
        let gone: Vec<usize> = (0..optimizer.parameters.len())
            .filter(|index| orphans.contains(&optimizer.parameters[*index]))
            .collect();
        if gone.is_empty() || !is_of_model {
            return None;
        }
        let parameters: Vec<u64> = gone.iter().map(|index| optimizer.parameters[*index]).collect();
        // `AdamW.exp_avg[PARAMETER]`; other names lead through the optimizer to any state.
        let class = format!("{}.", optimizer.class);
        let is_of_gone = |name: &str| {
            name.starts_with(&class) && OF_OPTIMIZER.iter().any(|part| name.contains(part))
        };
        let of_state = |row: &&TensorRow| {
            row.object.is_some_and(|object| optimizer.state.contains(&object))
                && row.names.iter().any(|name| is_of_gone(name))
        };
        let state = snapshot.tensors.iter().filter(of_state).filter_map(|row| row.object);
        let objects: Vec<u64> = parameters.iter().copied().chain(state).collect();
        let size = sum(&objects, &held);
        let name = optimizer.variable.as_deref().unwrap_or(&optimizer.class);
        let problem = format!(
            "{name} keeps {} that no module has any more, {} with their state",
            number(parameters.len() as u64, "parameter"),
            bytes(size)
        );
        let found = Finding::new("state of removed parameters", size, problem)
            .change("make a new optimizer after replacing a module")
            .frees(size)
            .of(&owner_of(optimizer));
        (size >= MIN_BYTES).then_some(found)
    });
    found.collect()
}
