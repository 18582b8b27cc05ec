//! Names tensors that only long paths from a variable reach, or that hang from objects referenced
//! only by C code or a running function's stack.

use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{NamePriority, ObjectNames};
use super::paths::{PathSearch, PathSources, SearchFilter};
use crate::python::{ClassKind, ObjectHeap, ReferenceGraph};
use crate::target::Addr;

const NO_VARIABLE: &str = "no variable: ";
/// Paths may begin at this many objects without a variable.
const MAX_ROOTS: usize = 65_536;

/// Names those of `objects` that have references and are not `garbage`.
pub(super) fn name(
    sources: PathSources<'_, '_>,
    named: &mut ObjectNames,
    (graph, garbage): (&ReferenceGraph<'_>, &FxHashSet<Addr>),
    objects: &[Addr],
) {
    let heap = sources.heap;
    // What only a running function or C++ references is in transit.
    let (mut objects, held_alone) = graph.divide(objects, garbage);
    let held_alone: FxHashSet<Addr> = held_alone.into_iter().collect();
    let mut held = graph.held_in_unknown_objects(&held_alone);
    let in_objects: FxHashSet<Addr> = held.iter().map(|(_, held)| *held).collect();
    objects.extend(in_objects);
    if objects.is_empty() {
        return;
    }
    let modules: FxHashSet<Addr> = heap.modules().into_iter().map(|(_, dict)| dict).collect();
    let leading = graph.leading_to(&objects, &modules);
    let outside: FxHashSet<Addr> = leading.kept_from_outside.iter().copied().collect();
    let mut holders: FxHashMap<Addr, Vec<Addr>> = FxHashMap::default();
    held.extend(graph.held_in_unknown_objects(&outside));
    for (holder, held) in held {
        holders.entry(holder).or_default().push(held);
    }
    let of_c: Vec<Addr> = holders.keys().copied().collect();
    let mut far = SearchFilter { leading: leading.all.into_iter().collect(), holders };
    far.leading.extend(graph.leading_to(&of_c, &modules).all);
    let mut locals = sources.locals.to_vec();
    locals.extend(heap.held_on_stacks(&outside));
    let wanted: FxHashSet<Addr> = objects.iter().copied().collect();
    let mut search = PathSearch::far(sources, named, wanted, &far);
    search.everywhere(&locals, &|search| objects.iter().any(|at| !search.has_reached(*at)));
    let left: Vec<Addr> = objects.into_iter().filter(|at| !search.has_reached(*at)).collect();
    if !left.is_empty() {
        let roots = graph.leading_to(&left, &modules).kept_from_outside.into_iter();
        let roots = roots.filter(|at| !search.has_reached(*at)).take(MAX_ROOTS);
        let roots = roots.map(|at| (format!("{NO_VARIABLE}{}", object_text(heap, at)), at));
        search.from(roots.collect(), NamePriority::Variable);
    }
}

fn object_text(heap: &ObjectHeap<'_>, at: Addr) -> String {
    let Some(class) = heap.class_of(at) else { return "<object>".to_owned() };
    let name = match class.kind {
        ClassKind::Function | ClassKind::Generator => heap.name_of_code(at),
        _ => None,
    };
    match name {
        Some(name) => format!("<{} {name}>", class.name),
        None => format!("<{}>", class.name),
    }
}
