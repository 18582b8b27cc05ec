//! Storages to group, with names and known owners.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{OwnerKind, tree};
use crate::model::StorageGroup;
use crate::model::{
    DeviceOwners, OwnershipSnapshot, RootModule, TensorCategory, TensorDevice, TensorRow,
};
use crate::ownership::{ALIVE_BY, SAVED_BY, graph_roots, kept_by, name_parts, name_pattern};
use crate::ownership::{held_storages, is_garbage, owner_label};

/// Storages of one name.
#[derive(Debug, Clone)]
pub(super) struct GroupItem {
    pub(super) device: TensorDevice,
    pub(super) category: TensorCategory,
    /// If not part of the name.
    pub(super) owner: Option<(OwnerKind, Arc<str>)>,
    /// `losses[3]` of `losses[*]`.
    pub(super) member: Option<Arc<str>>,
    pub(super) name: Arc<str>,
    pub(super) bytes: u64,
    pub(super) storages: u64,
    pub(super) shape: Option<String>,
    /// Address of the bytes; 0 in recordings.
    pub(super) data: u64,
    /// A tensor for `referrers`: a name, else a Python object's address.
    pub(super) example: Option<String>,
}

/// Nodes between a parameter and its operation, such as transpositions.
const MAX_STEPS_TO_PARAMETER: u32 = 2;

#[derive(Default)]
struct KnownOwners {
    /// By `id()` of a parameter.
    models: FxHashMap<u64, Arc<str>>,
    /// By `id()` of a state tensor.
    optimizers: FxHashMap<u64, Arc<str>>,
    /// The parameter's model, by the gradient's `TensorImpl`.
    gradients: FxHashMap<u64, Arc<str>>,
    /// The module's path, by the parameter's `TensorImpl`.
    modules: FxHashMap<u64, String>,
}

impl KnownOwners {
    fn new(snapshot: &OwnershipSnapshot) -> KnownOwners {
        let mut known = KnownOwners::default();
        for RootModule { name, modules, .. } in &snapshot.models {
            for parameter in modules.iter().flat_map(|module| &module.parameters) {
                known.models.entry(*parameter).or_insert_with(|| name.clone());
            }
        }
        for optimizer in &snapshot.optimizers {
            let name: Arc<str> = match &optimizer.variable {
                Some(variable) => format!("{variable} ({})", optimizer.class).into(),
                None => optimizer.class.clone(),
            };
            for tensor in &optimizer.state {
                known.optimizers.entry(*tensor).or_insert_with(|| name.clone());
            }
        }
        for row in snapshot.tensors.iter().filter(|row| row.category == TensorCategory::Parameter) {
            let model = row.object.and_then(|object| known.models.get(&object)).cloned();
            if let (Some(gradient), Some(model)) = (row.tensor.grad, model) {
                known.gradients.insert(gradient, model);
            }
            if let Some((module, _)) = row.names.first().and_then(|name| name.rsplit_once('.')) {
                known.modules.insert(row.tensor.at, module.to_owned());
            }
        }
        known
    }

    /// The owner, unless it is a variable.
    fn owner(
        &self,
        snapshot: &OwnershipSnapshot,
        group: &StorageGroup,
    ) -> Option<(OwnerKind, Arc<str>)> {
        let rows = || group.tensors.iter().map(|&index| &snapshot.tensors[index]);
        let mut objects = rows().filter_map(|row| row.object);
        match group.category {
            TensorCategory::Parameter | TensorCategory::Buffer => {
                let model = objects.find_map(|object| self.models.get(&object)).cloned();
                let model = model.or_else(|| only_model(snapshot));
                model.map(|model| (OwnerKind::Model, model))
            }
            TensorCategory::Gradient => {
                let model = rows().find_map(|row| self.gradients.get(&row.tensor.at)).cloned();
                // Of a wrapper (`DTensor`), the part has the memory.
                let model = model.or_else(|| only_model(snapshot));
                model.map(|model| (OwnerKind::Model, model))
            }
            TensorCategory::OptimizerState => {
                let optimizer = objects.find_map(|object| self.optimizers.get(&object)).cloned();
                optimizer.map(|optimizer| (OwnerKind::Optimizer, optimizer))
            }
            TensorCategory::Saved | TensorCategory::Other => None,
        }
    }
}

/// With one model, tensor names omit it.
fn only_model(snapshot: &OwnershipSnapshot) -> Option<Arc<str>> {
    match snapshot.models.as_slice() {
        [model] => Some(model.name.clone()),
        _ => None,
    }
}

/// The path of the module whose parameter each node uses.
fn modules_of_nodes<'k>(
    snapshot: &OwnershipSnapshot,
    known: &'k KnownOwners,
) -> Vec<Option<&'k str>> {
    let index: FxHashMap<u64, usize> =
        snapshot.nodes.iter().enumerate().map(|(index, node)| (node.at, index)).collect();
    let of = |node: usize| {
        let mut level = vec![node];
        for step in 0..=MAX_STEPS_TO_PARAMETER {
            let mut further = Vec::new();
            for node in level.iter().map(|&node| &snapshot.nodes[node]) {
                if let Some(module) = node.variable.and_then(|at| known.modules.get(&at)) {
                    return Some(module.as_str());
                }
                // Nodes behind another operation belong to other modules.
                if step == 0 || is_view(&node.class) {
                    further.extend(node.next.iter().filter_map(|at| index.get(at).copied()));
                }
            }
            level = further;
        }
        None
    };
    (0..snapshot.nodes.len()).map(of).collect()
}

fn is_view(class: &str) -> bool {
    ["TBackward", "TransposeBackward", "ToCopyBackward", "ViewBackward", "PermuteBackward"]
        .iter()
        .any(|view| class.starts_with(view))
}

/// The cycle's class, by `TensorImpl`.
fn classes_of_garbage(snapshot: &OwnershipSnapshot) -> FxHashMap<u64, Arc<str>> {
    let cycles = snapshot.garbage.iter();
    cycles.flat_map(|cycle| cycle.tensors.iter().map(|at| (*at, cycle.class.clone()))).collect()
}

pub(super) fn of_snapshot(snapshot: &OwnershipSnapshot) -> Vec<GroupItem> {
    let known = KnownOwners::new(snapshot);
    let roots = graph_roots(&snapshot.tensors, &snapshot.nodes);
    let modules = modules_of_nodes(snapshot, &known);
    let garbage = classes_of_garbage(snapshot);
    // The graph's owner may be among what was not read.
    let incomplete = snapshot.incomplete.as_ref().filter(|incomplete| incomplete.lacks_names());
    let no_root: Arc<str> = incomplete
        .map_or(String::new(), |it| format!("what keeps the graph was {}", it.not_read()))
        .into();
    let mut items = Vec::new();
    for (group, bytes) in held_storages(snapshot) {
        let first = &snapshot.tensors[group.tensors[0]];
        let rows = || group.tensors.iter().map(|&index| &snapshot.tensors[index]);
        let mut name: Arc<str> = owner_label(snapshot, first).into();
        let owner = if is_garbage(snapshot, &group) {
            let class = rows().find_map(|row| garbage.get(&row.tensor.at)).cloned();
            Some((OwnerKind::Garbage, class.unwrap_or_else(|| "".into())))
        } else if group.category == TensorCategory::Saved {
            let node = rows().flat_map(|row| &row.saved).map(|saved| saved.node).next();
            if let Some(node) = node {
                let class = &snapshot.nodes[node].class;
                name = match modules.get(node).copied().flatten() {
                    Some(module) => format!("{class} of {}", name_pattern(module)).into(),
                    None => class.clone(),
                };
            }
            let root = kept_by(snapshot, &roots, &group);
            Some(graph_owner(root, &garbage).unwrap_or((OwnerKind::UnknownGraph, no_root.clone())))
        } else {
            known.owner(snapshot, &group)
        };
        let shape = first.tensor.shape.as_ref().map(|s| format!("{s:?} {}", first.tensor.dtype));
        let example = match &owner {
            Some((OwnerKind::Graph, root)) => Some(root.to_string()),
            _ => first.names.first().map(|name| name.to_string()),
        };
        let example = example.or_else(|| first.object.map(|object| format!("{object:#x}")));
        items.push(GroupItem {
            example,
            data: group.storage.data,
            device: group.device,
            category: group.category,
            owner,
            member: None,
            name,
            bytes,
            storages: 1,
            shape,
        });
    }
    join_owners(&mut items);
    items
}

fn graph_owner(
    root: Option<&TensorRow>,
    garbage: &FxHashMap<u64, Arc<str>>,
) -> Option<(OwnerKind, Arc<str>)> {
    match root? {
        root if root.garbage => {
            let class = garbage.get(&root.tensor.at).cloned();
            Some((OwnerKind::Garbage, class.unwrap_or_else(|| "".into())))
        }
        root => Some((OwnerKind::Graph, root.names.first()?.clone())),
    }
}

/// Joins names that differ only in an index or key: `losses[*]`.
fn join_owners(items: &mut [GroupItem]) {
    let mut alike: BTreeMap<(TensorCategory, OwnerKind, String), BTreeSet<Arc<str>>> =
        BTreeMap::new();
    let key = |item: &GroupItem| {
        let (kind, owner) = item.owner.as_ref()?;
        Some((item.category, kind.clone(), name_pattern(owner)))
    };
    for item in items.iter() {
        if let (Some(key), Some((_, owner))) = (key(item), &item.owner) {
            alike.entry(key).or_default().insert(owner.clone());
        }
    }
    let joined: BTreeMap<_, Arc<str>> = alike
        .into_iter()
        .map(|(key, names)| {
            let parts: Vec<_> = names.iter().map(|name| name_parts(name)).collect();
            (key, tree::pattern(parts.iter().map(Vec::as_slice)).concat().into())
        })
        .collect();
    for item in items {
        let pattern = key(item).and_then(|key| joined.get(&key)).cloned();
        if let (Some(pattern), Some((_, owner))) = (pattern, &mut item.owner) {
            item.member = Some(std::mem::replace(owner, pattern));
        }
    }
}

pub(super) fn of_recording(device: &DeviceOwners) -> Vec<GroupItem> {
    let of = |held: &crate::model::OwnedStorages| {
        let (mut owner, mut name) = (None, held.owner.clone());
        if let Some(rest) = held.owner.strip_prefix(SAVED_BY) {
            let (class, root) = match rest.split_once(&format!("]{ALIVE_BY}")) {
                Some((class, root)) => (class, Some(root)),
                None => (rest.trim_end_matches(']'), None),
            };
            name = class.into();
            owner = Some(match root {
                Some(root) => (OwnerKind::Graph, root.into()),
                None => (OwnerKind::UnknownGraph, "".into()),
            });
        } else if !matches!(held.category, TensorCategory::Other | TensorCategory::Saved) {
            let kind = match held.category {
                TensorCategory::OptimizerState => OwnerKind::Optimizer,
                _ => OwnerKind::Model,
            };
            owner = Some((kind, "".into()));
        }
        GroupItem {
            example: None,
            data: 0,
            device: TensorDevice { kind: 1, index: u8::try_from(device.device.0).ok() },
            category: held.category,
            owner,
            member: None,
            name,
            bytes: held.bytes,
            storages: held.count,
            shape: None,
        }
    };
    device.held.iter().map(of).collect()
}
