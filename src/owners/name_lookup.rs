//! Follows a name (`main: trainer.history[3]`) through the heap, to the references that it stands
//! for.

use std::cell::RefCell;

use rustc_hash::FxHashMap;

use super::paths::{self, PathSources};
use crate::model::TensorRow;
use crate::python::{ClassKind, HeapObject, LocalVariable, VariableHolder};
use crate::target::Addr;

/// Steps from all objects on the way; names pass through small ones.
const MAX_STEPS: usize = 1 << 18;
const MAX_NAMED: usize = 4096;

/// Where a name's reference is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamedPlace {
    /// In this object, or in a dictionary of it.
    In(Addr),
    /// A variable of a running function: in its frame, an object up to Python 3.10.
    Frame(Addr),
    /// A `TensorImpl`'s, such as its gradient.
    Tensor(u64),
    /// A variable that may be of another moment than the snapshot.
    Torn,
}

/// A step of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedReference {
    /// `server: sessions`, `["user"]`.
    pub(super) text: String,
    pub(super) place: NamedPlace,
    /// A Python object, or a `TensorImpl` without one.
    pub(super) to: Addr,
}

pub(super) struct NameLookup<'h, 'a> {
    sources: PathSources<'h, 'a>,
    /// By object.
    rows: FxHashMap<u64, &'h TensorRow>,
    objects: FxHashMap<u64, u64>,
    variables: FxHashMap<String, Option<(NamedPlace, Addr)>>,
    modules: FxHashMap<String, Addr>,
    known: RefCell<FxHashMap<Addr, FxHashMap<String, Option<Addr>>>>,
    left: RefCell<usize>,
}

impl<'h, 'a> NameLookup<'h, 'a> {
    pub(super) fn new(sources: PathSources<'h, 'a>, rows: &'h [TensorRow]) -> Self {
        let mut variables: FxHashMap<String, Option<(NamedPlace, Addr)>> = FxHashMap::default();
        for local in sources.locals {
            let function = local.function.rsplit('.').next().unwrap_or_default();
            let found = place_of(sources, local).map(|place| (place, local.value));
            let name = format!("{function}: {}", local.name);
            let known = variables.entry(name).or_insert(found);
            // Several functions of one name: which is meant is not known.
            if known.map(|(_, to)| to) != Some(local.value) {
                *known = None;
            }
        }
        let pairs = rows.iter().filter_map(|row| Some((row.object?, row)));
        NameLookup {
            sources,
            rows: pairs.clone().collect(),
            objects: pairs.map(|(object, row)| (row.tensor.at, object)).collect(),
            variables,
            modules: sources.heap.modules().into_iter().collect(),
            known: RefCell::default(),
            left: RefCell::new(MAX_STEPS),
        }
    }

    /// The references that a name passes through; `None` if it is no path, or not a clear one.
    pub(super) fn references(&self, name: &str) -> Option<Vec<NamedReference>> {
        let found = self.clear_part(name);
        let read: usize = found.iter().map(|step| step.text.len()).sum();
        (read == name.len()).then_some(found)
    }

    /// The references that a name passes through, up to a step that several are called.
    pub(super) fn clear_part(&self, name: &str) -> Vec<NamedReference> {
        let Some((first, mut rest)) = self.variable(name) else { return Vec::new() };
        let mut at = first.to;
        let mut found = vec![first];
        while let Some((text, to)) = self.step(at, rest) {
            rest = &rest[text.len()..];
            let is_of_tensor = self.is_of_tensor(at, to);
            let place = match self.impl_of(at) {
                Some(tensor) if is_of_tensor => NamedPlace::Tensor(tensor),
                _ => NamedPlace::In(at),
            };
            found.push(NamedReference { text, place, to });
            at = to;
        }
        found
    }

    fn impl_of(&self, at: Addr) -> Option<u64> {
        self.rows.get(&at.0).map(|row| row.tensor.at)
    }

    fn is_of_tensor(&self, at: Addr, to: Addr) -> bool {
        let Some(row) = self.rows.get(&at.0) else { return false };
        let parts = row.tensor.grad.iter().chain(&row.tensor.parts);
        parts.map(|part| self.object(*part)).any(|part| part == to)
    }

    /// A tensor's Python object, if it has one.
    fn object(&self, tensor: u64) -> Addr {
        Addr(self.objects.get(&tensor).copied().unwrap_or(tensor))
    }

    fn variable<'n>(&self, name: &'n str) -> Option<(NamedReference, &'n str)> {
        let scope = name.find(": ").filter(|&at| !name[..at].contains(['[', '"', '\'']));
        if let Some(scope) = scope {
            let end = end_of_word(name, scope + 3);
            let (place, to) = (*self.variables.get(&name[..end])?)?;
            let text = name[..end].to_owned();
            return Some((NamedReference { text, place, to }, &name[end..]));
        }
        // The longest module whose name it begins with.
        let dots = name.match_indices('.').map(|(at, _)| at);
        let dots: Vec<usize> = dots.take_while(|at| !name[..*at].contains(['[', '"'])).collect();
        for dot in dots.into_iter().rev() {
            let Some(dict) = self.modules.get(&name[..dot]) else { continue };
            let end = end_of_word(name, dot + 1);
            let Some(to) = self.sources.heap.named_value(*dict, &name[dot + 1..end]) else {
                continue;
            };
            let text = name[..end].to_owned();
            let place = NamedPlace::In(*dict);
            return Some((NamedReference { text, place, to }, &name[end..]));
        }
        None
    }

    /// The longest step that `rest` begins with, if only one reference is called so.
    fn step(&self, at: Addr, rest: &str) -> Option<(String, Addr)> {
        let mut known = self.known.borrow_mut();
        let steps = match known.get(&at) {
            Some(steps) => steps,
            None => {
                let steps = self.steps(at)?;
                known.entry(at).or_insert(steps)
            }
        };
        let fits = |text: &str| {
            let rest = rest.strip_prefix(text);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[', '{']))
        };
        let (text, to) = steps.iter().filter(|(text, _)| fits(text)).max_by_key(|it| it.0.len())?;
        Some((text.clone(), (*to)?))
    }

    fn steps(&self, at: Addr) -> Option<FxHashMap<String, Option<Addr>>> {
        let PathSources { heap, cpp, .. } = self.sources;
        let mut references = Vec::new();
        let class = heap.class_of(at)?;
        let object = HeapObject { at, class, references: 0 };
        heap.hidden_references(&object, &mut |edge, to| references.push((edge, to)));
        let hidden = references.len();
        heap.references(&object, &mut |edge, to| {
            if references.len() < hidden + MAX_NAMED {
                references.push((edge, to));
            }
        });
        let mut left = self.left.borrow_mut();
        *left = left.checked_sub(references.len())?;
        let mut steps: FxHashMap<String, Option<Addr>> = FxHashMap::default();
        let mut add = |text: String, to: Addr| {
            let known = steps.entry(text).or_insert(Some(to));
            if *known != Some(to) {
                *known = None;
            }
        };
        for (edge, to) in references {
            add(paths::step(heap, &edge), to);
        }
        for (name, to) in cpp.of_tensor(at) {
            add(format!(".{name}"), *to);
        }
        if let Some(row) = self.rows.get(&at.0) {
            if let Some(grad) = row.tensor.grad {
                add(".grad".to_owned(), self.object(grad));
            }
            for (part, name) in row.tensor.parts.iter().zip(row.tensor.part_names) {
                add((*name).to_owned(), self.object(*part));
            }
        }
        Some(steps)
    }
}

/// A variable's place; `None`: its reference is not counted (a borrowed one, since 3.14).
fn place_of(sources: PathSources<'_, '_>, local: &LocalVariable) -> Option<NamedPlace> {
    match sources.heap.holder_of(local)? {
        _ if local.is_torn => Some(NamedPlace::Torn),
        VariableHolder::Cell(cell) => Some(NamedPlace::In(cell)),
        VariableHolder::Frame(frame) => Some(NamedPlace::Frame(frame)),
        VariableHolder::Borrowed => None,
    }
}

/// The end of a variable's name, which may begin with a dot (`.0`, a comprehension's iterator).
fn end_of_word(name: &str, from: usize) -> usize {
    let rest = name.get(from..).unwrap_or_default();
    rest.find(['.', '[', '{', '…']).map_or(name.len(), |end| from + end)
}

/// Whether objects of this kind are never asked for their references.
pub(super) fn is_plain(kind: ClassKind) -> bool {
    matches!(kind, ClassKind::Text | ClassKind::Type | ClassKind::Module | ClassKind::Capsule)
}
