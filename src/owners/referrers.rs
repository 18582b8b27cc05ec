//! Referrers of a tensor: why it is alive.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::far_paths;
use super::names::ObjectNames;
use super::paths::{self, PathSources};
use crate::model::{Referrer, TensorReferrers, TensorRow};
use crate::ownership::{NamedTensors, called};
use crate::python::{ClassKind, ReferenceKind};
use crate::target::Addr;

const MAX_REFERRERS: usize = 256;

/// Numbers of rows.
pub(super) fn asked(word: &str, rows: &[TensorRow]) -> Vec<usize> {
    match called(rows, word) {
        NamedTensors::Rows(meant) => meant,
        NamedTensors::Ambiguous(_) => Vec::new(),
    }
}

pub(super) fn find(sources: PathSources<'_, '_>, objects: &[Addr]) -> Vec<TensorReferrers> {
    let PathSources { heap, locals, .. } = sources;
    let mut found: FxHashMap<Addr, Vec<(Addr, Arc<str>, String)>> = FxHashMap::default();
    let mut counts: FxHashMap<Addr, i32> = FxHashMap::default();
    let asked: FxHashSet<Addr> = objects.iter().copied().collect();
    // `__dict__`s of referring instances: the instance is shown instead.
    let mut of_instances: FxHashSet<Addr> = FxHashSet::default();
    for object in heap.objects() {
        if asked.contains(&object.at) {
            counts.insert(object.at, object.references);
        }
        // Running frames are shown by their variables, suspended ones as generators. A traceback
        // keeps frames that have returned.
        if object.class.kind == ClassKind::Frame && !heap.has_returned(object) {
            continue;
        }
        heap.references(object, &mut |edge, to| {
            if asked.contains(&to) {
                if let ReferenceKind::Attribute(_) = edge {
                    of_instances.extend(heap.dict_of_instance(object.at, &object.class));
                }
                let step = paths::step(heap, &edge);
                found.entry(to).or_default().push((object.at, object.class.name.clone(), step));
            }
        });
    }
    for referrers in found.values_mut() {
        referrers.retain(|(at, _, _)| !of_instances.contains(at));
    }
    let containers = found.values().flatten().map(|(at, _, _)| *at).collect();
    let names = paths_to(sources, containers);
    let of_object = |&object: &Addr| {
        let variables = locals.iter().filter(|local| local.value == object).map(|local| Referrer {
            at: None,
            class: "local variable".into(),
            name: Some(format!("{}: {}", local.function, local.name)),
            step: String::new(),
        });
        let objects = found.get(&object).into_iter().flatten().map(|(at, class, step)| Referrer {
            at: Some(at.0),
            class: class.clone(),
            name: names.get(at).map(|name| name.to_string()),
            step: step.clone(),
        });
        TensorReferrers {
            object: object.0,
            count: counts.get(&object).copied(),
            referrers: variables.chain(objects).take(MAX_REFERRERS).collect(),
        }
    };
    objects.iter().map(of_object).collect()
}

fn paths_to(
    sources: PathSources<'_, '_>,
    containers: FxHashSet<Addr>,
) -> FxHashMap<Addr, Arc<str>> {
    let mut near = paths::to_objects(sources, containers.clone());
    let far: Vec<Addr> = containers.into_iter().filter(|at| !near.contains_key(at)).collect();
    if !far.is_empty() {
        let graph = sources.heap.reference_graph();
        let garbage = graph.garbage(&[]).unwrap_or_default();
        let mut named = ObjectNames::default();
        far_paths::name(sources, &mut named, (&graph, &garbage), &far);
        near.extend(named.variables);
    }
    near
}
