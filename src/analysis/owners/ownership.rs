//! Memory by owner: highest and last snapshot.

use std::collections::BTreeMap;

use crate::analysis::attribution::Moment;
use crate::analysis::folded::StackLabel;
use crate::analysis::owners::owner_groups::{OwnerKind, recorded_owner_groups};
use crate::model::{CudaIndex, DeviceOwners, Nanos, OwnershipBreakdown, TensorCategory};
use crate::ownership::SAVED_BY;

/// Flamegraph paths: category, then modules down to the tensor, or its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerStacks {
    /// The time of the snapshot.
    pub time: Nanos,
    /// How long it stopped the process, if it did.
    pub pause: Option<Nanos>,
    /// `allocated_bytes` then: the sum of all paths.
    pub allocated: u64,
    /// Owner snapshots in the recording.
    pub snapshots: u64,
    /// Paths and their bytes.
    pub paths: Vec<(Vec<OwnerPart>, u64)>,
}

/// A part of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerPart {
    /// A category, module or name.
    Text(String),
    /// Allocation site of nameless memory (exact recordings).
    AllocatedAt(StackLabel),
}

#[derive(Debug, Clone)]
struct OwnershipReading {
    time: Nanos,
    pause: Option<Nanos>,
    held: DeviceOwners,
    /// Bytes of nameless blocks by owner index (`None`: no tensor) and allocation account.
    allocated_by: BTreeMap<(Option<u32>, usize), u64>,
}

/// The ledger account that allocated the block at an address.
pub(crate) type SiteLookup<'a> = &'a dyn Fn(CudaIndex, u64) -> Option<usize>;

#[derive(Debug, Default)]
pub(crate) struct OwnershipHistory {
    highest: BTreeMap<CudaIndex, OwnershipReading>,
    last: BTreeMap<CudaIndex, OwnershipReading>,
    snapshots: u64,
}

impl OwnershipHistory {
    pub(crate) fn on_ownership(
        &mut self,
        snapshot: &OwnershipBreakdown,
        allocation_source: SiteLookup<'_>,
    ) {
        self.snapshots += 1;
        for (number, held) in (0u32..).zip(&snapshot.devices) {
            let mut allocated_by: BTreeMap<(Option<u32>, usize), u64> = BTreeMap::new();
            for block in snapshot.unnamed_blocks.iter().filter(|block| block.device == number) {
                if let Some(account) = allocation_source(held.device, block.address) {
                    *allocated_by.entry((block.held, account)).or_default() += block.bytes;
                }
            }
            let (time, pause) = (snapshot.time, snapshot.pause);
            let reading = OwnershipReading { time, pause, held: held.clone(), allocated_by };
            let highest = self.highest.get(&held.device);
            if highest.is_none_or(|highest| highest.held.allocated < held.allocated) {
                self.highest.insert(held.device, reading.clone());
            }
            self.last.insert(held.device, reading);
        }
    }

    pub(crate) fn memory(&self) -> u64 {
        let of = |reading: &OwnershipReading| {
            let names: usize = reading.held.held.iter().map(|held| held.owner.len() + 96).sum();
            (size_of::<OwnershipReading>() + names + reading.allocated_by.len() * 64) as u64
        };
        self.highest.values().chain(self.last.values()).map(of).sum()
    }

    pub(crate) fn last(&self, device: CudaIndex) -> Option<(&DeviceOwners, Option<Nanos>)> {
        self.last.get(&device).map(|reading| (&reading.held, reading.pause))
    }

    pub(crate) fn stacks(
        &self,
        device: CudaIndex,
        moment: Moment,
        site_path: &dyn Fn(usize) -> Vec<StackLabel>,
    ) -> Option<OwnerStacks> {
        let reading = match moment {
            Moment::Peak => &self.highest,
            Moment::End => &self.last,
        }
        .get(&device)?;
        let mut paths: Vec<(Vec<OwnerPart>, u64)> = Vec::new();
        let mut add = |path: Vec<String>, held: Option<u32>, mut bytes: u64| {
            let path: Vec<OwnerPart> = path.into_iter().map(OwnerPart::Text).collect();
            let allocated_by = reading.allocated_by.range((held, 0)..=(held, usize::MAX));
            for (&(_, account), &part) in allocated_by {
                let part = part.min(bytes);
                bytes -= part;
                let allocated_by = site_path(account).into_iter().map(OwnerPart::AllocatedAt);
                paths.push((path.iter().cloned().chain(allocated_by).collect(), part));
            }
            if bytes > 0 {
                paths.push((path, bytes));
            }
        };
        let grouped = group_paths(&reading.held);
        for ((number, held), grouped) in (0u32..).zip(&reading.held.held).zip(grouped) {
            let path = grouped.unwrap_or_else(|| path(held.category, &held.owner));
            add(path, Some(number), held.bytes);
        }
        add(vec!["[in no tensor]".to_owned()], None, reading.held.without_tensor);
        if reading.held.rounding > 0 {
            let rounding = OwnerPart::Text("[rounding]".to_owned());
            paths.push((vec![rounding], reading.held.rounding));
        }
        Some(OwnerStacks {
            time: reading.time,
            pause: reading.pause,
            allocated: reading.held.allocated,
            snapshots: self.snapshots,
            paths,
        })
    }
}

/// For owners outside models: category, variable, pattern.
fn group_paths(device: &DeviceOwners) -> Vec<Option<Vec<String>>> {
    let mut paths = vec![None; device.held.len()];
    for group in recorded_owner_groups(device) {
        if matches!(group.kind, OwnerKind::Model | OwnerKind::Optimizer) {
            continue;
        }
        for pattern in &group.patterns {
            let mut path = vec![group.category.name().to_owned()];
            match group.kind {
                OwnerKind::Graph => {
                    path.push(format!("alive by {}", group.owner));
                    path.push(format!("{SAVED_BY}{}]", pattern.pattern));
                }
                OwnerKind::UnknownGraph => path.push(format!("{SAVED_BY}{}]", pattern.pattern)),
                _ => {
                    path.push(group.owner.clone());
                    path.extend((!pattern.tail.is_empty()).then(|| pattern.tail.clone()));
                }
            }
            for &held in &pattern.held {
                paths[held] = Some(path.clone());
            }
        }
    }
    paths
}

/// Splits `layers.0.weight` into modules; optimizer state goes below its parameter.
fn path(category: TensorCategory, owner: &str) -> Vec<String> {
    let mut path = vec![category.name().to_owned()];
    let whole = match category {
        TensorCategory::Parameter | TensorCategory::Buffer | TensorCategory::Gradient => {
            Some((owner, ""))
        }
        // AdamW.exp_avg[layers.0.weight]
        TensorCategory::OptimizerState => {
            owner.split_once('[').and_then(|(state, rest)| Some((rest.strip_suffix(']')?, state)))
        }
        TensorCategory::Saved | TensorCategory::Other => None,
    };
    match whole {
        // A variable is not a module path.
        Some((name, state)) if !name.contains(": ") && !name.starts_with("[") => {
            if !state.is_empty() {
                path.push(state.to_owned());
            }
            path.extend(name.split('.').map(str::to_owned));
        }
        _ => path.push(owner.to_owned()),
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_go_down_the_modules() {
        let text = |category, owner| path(category, owner).join(";");
        assert_eq!(text(TensorCategory::Parameter, "a.0.weight"), "parameters;a;0;weight");
        assert_eq!(
            text(TensorCategory::OptimizerState, "AdamW.exp_avg[a.0.weight]"),
            "optimizer state;AdamW.exp_avg;a;0;weight"
        );
        assert_eq!(text(TensorCategory::Saved, "[saved by X]"), "saved for backward;[saved by X]");
        assert_eq!(text(TensorCategory::Parameter, "main: a.b"), "parameters;main: a.b");
    }
}
