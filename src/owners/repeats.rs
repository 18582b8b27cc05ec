//! Paths that repeat steps: linked lists, trees.

use super::paths::{MAX_DEPTH, PathNode};
use crate::python::{ObjectHeap, ReferenceKind};

/// Steps of a repetition; a function in a closure takes three.
const MAX_PERIOD: usize = 4;
/// Objects reached by repetition per kind of variable; a stop copies each.
pub(super) const MAX_REPEATED: usize = 16_384;

/// The first visit of a repetition that leads to `visit`, which lifts the depth limit. Alike
/// visits: the same kind of step, to the same class.
pub(super) fn repeats(heap: &ObjectHeap<'_>, visits: &[PathNode], visit: usize) -> Option<usize> {
    let is_deep = visits[visit].depth >= MAX_DEPTH;
    let way = || std::iter::successors(Some(visit), |&at| visits[at].from);
    if !is_deep && !way().skip(1).any(|at| visits[at].is_repeated) {
        return None;
    }
    // The variable itself is not a step.
    let way: Vec<usize> = way().filter(|&at| visits[at].from.is_some()).collect();
    let is_like = |a: usize, b: usize| {
        let class = |visit: usize| heap.class_of(visits[visit].at).map(|class| class.at);
        is_same_step(&visits[a].edge, &visits[b].edge) && class(a) == class(b)
    };
    (1..=MAX_PERIOD).find_map(|period| {
        let before = way.iter().skip(period).step_by(period);
        let alike: Vec<usize> = before.copied().take_while(|&at| is_like(visit, at)).collect();
        let first = *alike.last()?;
        let is_known = alike.iter().any(|&at| visits[at].is_repeated);
        (is_known || is_deep && alike.len() > 1).then_some(first)
    })
}

fn is_same_step(a: &ReferenceKind, b: &ReferenceKind) -> bool {
    use ReferenceKind::{Item, Key};
    matches!((a, b), (Item(_), Item(_)) | (Key(_), Key(_))) || a == b
}
