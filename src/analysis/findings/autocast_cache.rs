//! Autocast around a loop: its cache keeps a half-precision copy of each weight.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{BlockState, CppKeeper, CppMemory, OwnershipSnapshot, TensorCategory, number};

/// A step's autocast may last so long.
const MIN_SECONDS: f64 = 1.0;
const MIN_SNAPSHOTS: u32 = 2;

/// The copies that were in autocast's cache in every snapshot.
#[derive(Debug, Clone, Default)]
pub struct LastingCopies {
    copies: BTreeSet<CppMemory>,
    snapshots: u32,
    times: (f64, f64),
    /// A graph was built: autocast may be that of one step.
    has_graph: bool,
    /// Versions of the weights in the first snapshot.
    versions: FxHashMap<u64, u32>,
    /// A weight changed, and a copy is at the same address: the same, or the next step's.
    is_stale: bool,
    /// The cache had copies while no graph saved anything, as between two steps.
    outlives_graph: bool,
}

impl LastingCopies {
    /// Adds a complete snapshot; `time` is in seconds.
    pub fn add(&mut self, time: f64, snapshot: &OwnershipSnapshot) {
        let copies: BTreeSet<CppMemory> = snapshot
            .cpp
            .iter()
            .filter(|held| held.keeper == CppKeeper::AutocastCache)
            .copied()
            .collect();
        match self.snapshots {
            0 => (self.copies, self.times.0) = (copies.clone(), time),
            _ => self.copies.retain(|copy| copies.contains(copy)),
        }
        let weights: BTreeSet<u64> = self.copies.iter().map(|copy| copy.of).collect();
        for row in snapshot.tensors.iter().filter(|row| weights.contains(&row.tensor.at)) {
            if let Some(version) = row.tensor.version {
                let first = *self.versions.entry(row.tensor.at).or_insert(version);
                self.is_stale |= first != version;
            }
        }
        self.has_graph |= !snapshot.nodes.is_empty();
        let mut rows = snapshot.tensors.iter();
        self.outlives_graph |=
            !copies.is_empty() && !rows.any(|row| row.category == TensorCategory::Saved);
        self.times.1 = time;
        self.snapshots += 1;
    }
}

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let (Some(snapshot), Some(lasting)) = (facts.snapshot, facts.lasting) else {
        return Vec::new();
    };
    let seconds = lasting.times.1 - lasting.times.0;
    let is_long = lasting.snapshots >= MIN_SNAPSHOTS && seconds >= MIN_SECONDS;
    let is_of_steps = lasting.has_graph && !(lasting.is_stale && lasting.outlives_graph);
    if !is_long || is_of_steps {
        return Vec::new();
    }
    let blocks = snapshot.blocks.iter().flat_map(|map| map.blocks());
    let sizes: FxHashMap<u64, u64> = blocks
        .filter(|(_, block)| block.state == BlockState::Allocated)
        .map(|(_, block)| (block.address, block.size))
        .collect();
    let size: u64 = lasting.copies.iter().filter_map(|copy| sizes.get(&copy.data)).sum();
    if size < MIN_BYTES {
        return Vec::new();
    }
    let problem = format!(
        "autocast, entered once around the loop, keeps copies of {} in lower precision",
        number(lasting.copies.len() as u64, "weight")
    );
    let found = Finding::new("autocast cache", size, problem)
        .change("enter it for each request, or pass cache_enabled=False")
        .frees(size);
    vec![found]
}
