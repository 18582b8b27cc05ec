//! Gradients that live on from step to step: zeroed in place, or never.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::{Finding, FindingFacts, MIN_BYTES};
use crate::model::{CppKeeper, OwnershipSnapshot, bytes};
use crate::ownership::held_storages;

const MIN_SNAPSHOTS: u32 = 3;
/// In-place changes of weight and gradient between the first snapshot and the last.
const MIN_CHANGES: u32 = 8;
/// A snapshot in the middle of a step sees the gradient changed and the weight not yet.
const MAX_CHANGES_IN_STEP: f64 = 4.0;
const MAX_DEVIATION: f64 = 0.15;

/// Versions of a weight and its gradient, which count in-place changes.
#[derive(Debug, Clone, Copy)]
struct SeenVersions {
    weight: u32,
    gradient: u32,
}

#[derive(Debug, Clone)]
struct LastingGradient {
    /// `TensorImpl` of the gradient.
    at: u64,
    first: SeenVersions,
    last: SeenVersions,
    is_steady: bool,
}

/// Gradients that were the same tensors in every snapshot.
#[derive(Debug, Clone, Default)]
pub struct LastingGradients {
    /// By the weight's `TensorImpl`.
    by_weight: FxHashMap<u64, LastingGradient>,
    snapshots: u32,
}

impl LastingGradients {
    /// Adds a complete snapshot.
    pub fn add(&mut self, snapshot: &OwnershipSnapshot) {
        let rows = snapshot.tensors.iter().map(|row| &row.tensor);
        let versions: FxHashMap<u64, u32> =
            rows.clone().filter_map(|tensor| Some((tensor.at, tensor.version?))).collect();
        let mut seen = FxHashMap::default();
        for weight in rows {
            let Some(at) = weight.grad else { continue };
            let both = weight.version.zip(versions.get(&at).copied());
            if let Some((weight_version, gradient)) = both {
                seen.insert(weight.at, (at, SeenVersions { weight: weight_version, gradient }));
            }
        }
        if self.snapshots == 0 {
            let first = |(weight, (at, first))| {
                (weight, LastingGradient { at, first, last: first, is_steady: true })
            };
            self.by_weight = seen.into_iter().map(first).collect();
        } else {
            self.by_weight.retain(|weight, known| match seen.get(weight) {
                Some(&(at, now)) if at == known.at => {
                    known.add(now);
                    true
                }
                _ => false,
            });
        }
        self.snapshots += 1;
    }

    /// `TensorImpl`s of gradients that no step has replaced.
    fn kept(&self) -> BTreeSet<u64> {
        if self.snapshots < MIN_SNAPSHOTS {
            return BTreeSet::new();
        }
        self.by_weight.values().filter(|known| known.is_kept()).map(|known| known.at).collect()
    }
}

impl LastingGradient {
    fn add(&mut self, now: SeenVersions) {
        self.is_steady &= now.weight >= self.last.weight && now.gradient >= self.last.gradient;
        self.last = now;
    }

    /// A new gradient counts from 0. An old one changes at the weight's pace from its beginning; a
    /// new tensor at its address does not.
    fn is_kept(&self) -> bool {
        let (weight, gradient) = (
            self.last.weight.saturating_sub(self.first.weight),
            self.last.gradient.saturating_sub(self.first.gradient),
        );
        if !self.is_steady || weight < MIN_CHANGES || gradient < MIN_CHANGES {
            return false;
        }
        let all = f64::from(self.last.gradient) / f64::from(self.last.weight.max(1));
        let expected = all * f64::from(weight);
        let deviation = (f64::from(gradient) - expected).abs();
        deviation <= MAX_CHANGES_IN_STEP + MAX_DEVIATION * expected
    }
}

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let (Some(snapshot), Some(lasting)) = (facts.snapshot, facts.gradients) else {
        return Vec::new();
    };
    let kept = lasting.kept();
    let buckets: BTreeSet<u64> = snapshot
        .cpp
        .iter()
        .filter(|held| held.keeper == CppKeeper::DdpBuckets)
        .map(|held| held.data)
        .collect();
    let storages = held_storages(snapshot);
    let mut size = 0;
    for (group, held) in storages {
        let mut rows = group.tensors.iter().map(|&row| &snapshot.tensors[row].tensor);
        // Views of DDP's buckets take no memory of their own.
        let is_own = |data: u64| !buckets.contains(&data);
        if group.device.is_cuda()
            && rows.clone().any(|tensor| kept.contains(&tensor.at))
            && rows.all(|tensor| tensor.storage.is_some_and(|storage| is_own(storage.data)))
        {
            size += held;
        }
    }
    let problem = format!("{} of gradients live on from step to step", bytes(size));
    let found = Finding::new("gradients between steps", size, problem)
        .change("zero_grad(set_to_none=True) frees them until the next backward pass")
        .frees(size);
    (size >= MIN_BYTES).then_some(found).into_iter().collect()
}
