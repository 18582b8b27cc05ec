//! Names by variables: the shortest way from a local or global variable to a tensor, through containers and attributes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{Named, Rank};
use super::reader::Found;
use crate::python::{Edge, Heap, Kind, Local, Object};
use crate::target::Addr;

/// Steps from a variable.
const FARTHEST: u32 = 8;
/// Objects looked into from one kind of variables.
const MOST_VISITS: usize = 200_000;
/// A container with more items is looked into only so far.
const MOST_ITEMS: usize = 65_536;
/// Parts of the names of files that belong to libraries, not to the program.
const LIBRARIES: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "];

/// An object on the way.
#[derive(Debug)]
struct Visit {
    at: Addr,
    from: Option<usize>,
    edge: Edge,
    depth: u32,
}

/// Names tensors, outermost modules and optimizers by the variables that lead to them: first those of the program's
/// own functions, then globals of its main module, then those of libraries; the last only while something has no name.
pub(super) fn of_variables(heap: &Heap<'_>, found: &Found, locals: &[Local], named: &mut Named) {
    let mut wanted: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    wanted.extend(&found.modules);
    wanted.extend(&found.optimizers);
    let mut search = Search { heap, named, wanted, seen: FxHashSet::default() };
    let of_library = |file: &str| LIBRARIES.iter().any(|part| file.contains(part));
    let (library, own): (Vec<&Local>, Vec<&Local>) =
        locals.iter().partition(|local| of_library(&local.file));
    let scoped = |locals: Vec<&Local>| -> Vec<(String, Addr)> {
        let text = |local: &&Local| {
            let function = local.function.rsplit('.').next().unwrap_or_default();
            // At the top of a module the local variables are its globals, which come next.
            (function != "<module>").then(|| (format!("{function}: {}", local.name), local.value))
        };
        locals.iter().filter_map(text).collect()
    };
    search.from(scoped(own), Rank::Variable);
    let modules = heap.modules();
    let of_module = |module: &str, dict: Addr| -> Vec<(String, Addr)> {
        let entries = heap.named_entries(dict).into_iter();
        let own = entries.filter(|(name, _)| !name.starts_with("__"));
        own.map(|(name, value)| (format!("{module}.{name}"), value)).collect()
    };
    for (name, dict) in modules.iter().filter(|(name, _)| name == "__main__") {
        search.from(of_module(name, *dict), Rank::Variable);
    }
    search.from(scoped(library), Rank::Library);
    if found.tensors.iter().any(|tensor| !search.is_named(*tensor)) {
        let roots = modules
            .iter()
            .filter(|(name, _)| name != "__main__")
            .flat_map(|(name, dict)| of_module(name, *dict))
            .collect();
        search.from(roots, Rank::Library);
    }
}

struct Search<'h, 'a> {
    heap: &'h Heap<'a>,
    named: &'h mut Named,
    wanted: FxHashSet<Addr>,
    seen: FxHashSet<Addr>,
}

impl Search<'_, '_> {
    fn is_named(&self, object: Addr) -> bool {
        self.named.has(object)
    }

    /// Goes from `roots` outwards, the nearest objects first.
    fn from(&mut self, roots: Vec<(String, Addr)>, rank: Rank) {
        let mut visits: Vec<Visit> = Vec::new();
        let mut names: FxHashMap<usize, String> = FxHashMap::default();
        for (name, at) in roots {
            if self.enters(at) {
                names.insert(visits.len(), name);
                visits.push(Visit { at, from: None, edge: Edge::Part, depth: 0 });
            } else if self.wanted.contains(&at) {
                // Another variable for what was met already.
                self.name(at, rank, &name);
            }
        }
        let mut next = 0;
        while next < visits.len() && next < MOST_VISITS {
            let (at, depth) = (visits[next].at, visits[next].depth);
            if self.wanted.contains(&at) {
                let path = path(&visits, &names, next);
                self.name(at, rank, &path);
            }
            if depth < FARTHEST {
                self.look_into(at, next, depth + 1, &mut visits);
            }
            next += 1;
        }
    }

    fn name(&mut self, at: Addr, rank: Rank, path: &str) {
        self.named.variables.entry(at).or_insert_with(|| Arc::from(path));
        self.named.add(at, rank, path);
    }

    /// Whether an object is new.
    fn enters(&mut self, at: Addr) -> bool {
        at.is_plausible() && self.seen.insert(at)
    }

    fn look_into(&mut self, at: Addr, from: usize, depth: u32, visits: &mut Vec<Visit>) {
        let Some(class) = self.heap.class_of(at) else { return };
        // Modules are roots themselves, and classes of libraries lead everywhere.
        if matches!(class.kind, Kind::Module | Kind::Text) {
            return;
        }
        let kind = class.kind;
        let mut items = 0;
        let heap = self.heap;
        heap.references(&Object { at, class }, &mut |edge, to| {
            items += 1;
            // A function's globals and code are not what it holds.
            let leads_away = kind == Kind::Function && edge == Edge::Part;
            if items <= MOST_ITEMS && !leads_away && self.enters(to) {
                visits.push(Visit { at: to, from: Some(from), edge, depth });
            }
        });
    }
}

/// The way to a visit, as it would be written in Python.
fn path(visits: &[Visit], names: &FxHashMap<usize, String>, visit: usize) -> String {
    let mut edges = Vec::new();
    let mut at = visit;
    while let Some(from) = visits[at].from {
        edges.push(&visits[at].edge);
        at = from;
    }
    let mut text = names.get(&at).cloned().unwrap_or_default();
    for edge in edges.into_iter().rev() {
        match edge {
            Edge::Attribute(name) => text.push_str(&format!(".{name}")),
            Edge::Key(key) => text.push_str(&format!("[{key:?}]")),
            Edge::Item(index) => text.push_str(&format!("[{index}]")),
            Edge::Value => text.push_str("[…]"),
            Edge::AsKey => text.push_str(".keys()"),
            Edge::Member => text.push_str("{…}"),
            Edge::Local(name) => text.push_str(&format!(".<locals>.{name}")),
            Edge::Cell => text.push_str(".cell_contents"),
            Edge::Default => text.push_str(".__defaults__"),
            Edge::Closure => text.push_str(".__closure__"),
            Edge::SelfOfMethod => text.push_str(".__self__"),
            Edge::Part => text.push_str(".__dict__"),
        }
    }
    text
}
