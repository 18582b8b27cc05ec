//! Storages whose tensors show less than half.

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{TensorCategory, TensorRow, bytes, number};
use crate::ownership::{held_storages, owner_label};

/// Least part of what is allocated: 1/50.
const MIN_PART: u64 = 50;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let (mut size, mut storages, mut most) = (0, 0, (0, String::new()));
    for (group, held) in held_storages(snapshot) {
        if !group.device.is_cuda() || group.category != TensorCategory::Other {
            continue;
        }
        // A view's base may be held only in C++, out of the program's reach.
        let is_seen =
            |row: &&TensorRow| !row.only_in_cpp || !row.names.is_empty() || !row.saved.is_empty();
        let rows = group.tensors.iter().map(|&row| &snapshot.tensors[row]).filter(is_seen);
        let shown: Option<u64> = rows.map(|row| row.tensor.logical_bytes()).sum();
        // Overlapping views show at most this sum.
        let Some(hidden) = shown.and_then(|shown| held.checked_sub(shown)) else { continue };
        let first = &snapshot.tensors[group.tensors[0]];
        if hidden > held / 2 && hidden >= MIN_BYTES && !first.names.is_empty() {
            size += hidden;
            storages += 1;
            if hidden > most.0 {
                most = (hidden, owner_label(snapshot, first));
            }
        }
    }
    // The result of a loss function may be a view of what it was computed in.
    let allocated: u64 = facts.gpus.iter().filter_map(|gpu| gpu.allocated).sum();
    if storages == 0 || size * MIN_PART < allocated {
        return Vec::new();
    }
    let problem = format!(
        "{} in {} is covered by no tensor: {} is a view of a part of it",
        bytes(size),
        number(storages, "storage"),
        most.1
    );
    let found = Finding::new("large storages", size, problem)
        .change(".clone() keeps only the part")
        .frees(size);
    vec![found.command("tensors", &["--each"])]
}
