//! The iterations as CSV, in bytes.

use std::collections::BTreeSet;
use std::io::Write;

use super::{below_peak, counted_by, levels, listed};
use crate::analysis::{Iteration, IterationLevels, IterationOwners, Profile};
use crate::model::{CudaIndex, TensorCategory};
use crate::render::shared::{CsvSheet, OutputError};

/// Columns that need no snapshot of the owners.
const FIXED: [&str; 17] = [
    "epoch",
    "step",
    "steps",
    "from_seconds",
    "to_seconds",
    "peak_allocated",
    "peak_is_exact",
    "allocated",
    "allocated_is_exact",
    "peak_reserved",
    "peak_reserved_is_exact",
    "reserved",
    "reserved_is_exact",
    "intermediate_gradients",
    "counted_by",
    "begin_is_known",
    "end",
];
/// Columns of a snapshot, beside categories and parameters.
const SNAPSHOT: [&str; 4] =
    ["in no tensor", "feature maps", "snapshot_allocated", "snapshot_below_peak"];

/// Writes all iterations; cells of a missing snapshot are empty.
pub fn iterations_csv(
    out: &mut dyn Write,
    profile: &Profile,
    device: CudaIndex,
) -> Result<(), OutputError> {
    let mut csv = CsvSheet::new(out);
    let categories = TensorCategory::ALL.map(TensorCategory::name);
    let (all, by) = (listed(profile), counted_by(profile));
    let parameters: BTreeSet<&str> = all
        .iter()
        .filter_map(|iteration| iteration.owned.get(&device))
        .flat_map(|held| held.parameters.keys().map(|name| &**name))
        .collect();
    let gradients: Vec<String> = parameters.iter().map(|name| format!("{name}.grad")).collect();
    let head = FIXED.iter().chain(&categories).chain(&SNAPSHOT).copied();
    csv.write_record(
        head.chain(parameters.iter().copied()).chain(gradients.iter().map(|name| &**name)),
    )?;
    for iteration in &all {
        let reached = levels(iteration, device);
        let mut row = fixed_cells(iteration, reached, &by);
        row.extend(snapshot_cells(iteration.owned.get(&device), reached, &parameters));
        csv.write_record(&row)?;
    }
    csv.flush()?;
    Ok(())
}

fn fixed_cells(iteration: &Iteration, reached: IterationLevels, counted_by: &str) -> Vec<String> {
    vec![
        iteration.epoch.map_or_else(String::new, |epoch| epoch.to_string()),
        iteration.step.to_string(),
        iteration.steps.to_string(),
        iteration.from.seconds().to_string(),
        iteration.to.seconds().to_string(),
        reached.peak_allocated.to_string(),
        reached.exact.to_string(),
        reached.allocated.to_string(),
        reached.allocated_is_exact.to_string(),
        reached.peak_reserved.to_string(),
        reached.peak_reserved_is_exact.to_string(),
        reached.reserved.to_string(),
        reached.reserved_is_exact.to_string(),
        reached.intermediate.map_or_else(String::new, |bytes| bytes.to_string()),
        counted_by.to_owned(),
        iteration.begin_is_known.to_string(),
        iteration.end.name().to_owned(),
    ]
}

fn snapshot_cells(
    held: Option<&IterationOwners>,
    reached: IterationLevels,
    parameters: &BTreeSet<&str>,
) -> Vec<String> {
    let bytes = |of: &dyn Fn(&IterationOwners) -> u64| {
        held.map_or_else(String::new, |held| of(held).to_string())
    };
    let categories = TensorCategory::ALL
        .map(|category| bytes(&|held| held.categories.get(&category).copied().unwrap_or_default()));
    let mut row = Vec::from(categories);
    row.push(bytes(&|held| held.in_no_tensor));
    let maps = held.and_then(|held| held.feature_maps);
    row.push(maps.map_or_else(String::new, |bytes| bytes.to_string()));
    row.push(bytes(&|held| held.allocated));
    row.push(held.map_or_else(String::new, |held| below_peak(held, reached).to_string()));
    let of =
        |name: &str, held: &IterationOwners| held.parameters.get(name).copied().unwrap_or_default();
    row.extend(parameters.iter().map(|name| bytes(&|held| of(name, held).weight)));
    row.extend(parameters.iter().map(|name| bytes(&|held| of(name, held).gradient)));
    row
}
