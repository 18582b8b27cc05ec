//! Ways that go on and on in the same steps: linked lists, nested tuples, functions that wrap functions, trees.

use super::paths::{MAX_DEPTH, PathNode};
use crate::python::{PythonHeap, ReferenceKind};

/// Steps after which a way may be like before: the closure of a function that a cell of a closure has takes three.
const MAX_PERIOD: usize = 4;
/// Objects that are reached so from one kind of variables: all that is looked into is copied while the job stands still.
pub(super) const MAX_REPEATED: usize = 16_384;

/// Whether the way to a visit repeats itself, so that it need not end at the greatest depth: the visit whose place it takes, the
/// first one of the repetition. Two visits are alike if the same kind of step led to an object of the same class.
pub(super) fn repeats(heap: &PythonHeap<'_>, visits: &[PathNode], visit: usize) -> Option<usize> {
    let is_deep = visits[visit].depth >= MAX_DEPTH;
    let way = || std::iter::successors(Some(visit), |&at| visits[at].from);
    if !is_deep && !way().skip(1).any(|at| visits[at].is_repeated) {
        return None;
    }
    // The variable itself is no step.
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

/// Whether two steps differ at most in an index or a key.
fn is_same_step(a: &ReferenceKind, b: &ReferenceKind) -> bool {
    use ReferenceKind::{Item, Key};
    matches!((a, b), (Item(_), Item(_)) | (Key(_), Key(_))) || a == b
}
