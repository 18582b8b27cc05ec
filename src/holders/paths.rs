//! Names by variables: the shortest way from a local or global variable to a tensor, through containers and attributes.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::cpp_ways::CppWays;
use super::names::{Named, Rank};
use super::rows::Part;
use super::walk::Found;
use crate::model::is_library;
use crate::python::{Edge, Heap, Kind, Local, Object};
use crate::target::Addr;

/// Steps from a variable.
const FARTHEST: u32 = 8;
/// A module or a task counts as no farther than this: what a module holds beside its parameters is found however deep it lies in
/// others, and what a coroutine holds though only the event loop has its task.
const MAX_DEPTH_OF_LANDMARKS: u32 = 2;
/// Objects looked into from one kind of variables.
const MOST_VISITS: usize = 200_000;
/// Objects met on the way, in all.
const MOST_SEEN: usize = 1 << 23;
/// A container with more items is looked into only so far.
const MOST_ITEMS: usize = 65_536;

/// An object on the way.
#[derive(Debug)]
struct Visit {
    at: Addr,
    from: Option<usize>,
    edge: Edge,
    depth: u32,
}

/// Names tensors, outermost modules and optimizers by the variables that lead to them: first those of the program's
/// own functions, then globals of its own modules, then those of libraries; the last only while something is not reached.
/// Returns what is worth a name and was not reached by any variable.
pub(super) fn of_variables(
    heap: &Heap<'_>,
    found: &Found,
    locals: &[Local],
    ways: &CppWays,
    named: &mut Named,
    needs_name: &dyn Fn(Addr) -> bool,
) -> Vec<Addr> {
    let mut wanted: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    wanted.extend(&found.modules);
    wanted.extend(&found.optimizers);
    let modules = found.modules.iter().copied().collect();
    let mut search = Search { heap, ways, modules, named, wanted, seen: FxHashSet::default() };
    let unreached = |search: &Search<'_, '_>| -> Vec<Addr> {
        let tensors = found.tensors.iter().copied();
        tensors.filter(|at| !search.seen.contains(at) && needs_name(*at)).collect()
    };
    search.everywhere(locals, &|search| !unreached(search).is_empty());
    unreached(&search)
}

/// The shortest ways to objects, from the variables of the program as far as these lead there.
pub(super) fn to_objects(
    heap: &Heap<'_>,
    found: &Found,
    locals: &[Local],
    ways: &CppWays,
    objects: FxHashSet<Addr>,
) -> FxHashMap<Addr, Arc<str>> {
    let mut named = Named::default();
    let all = objects.len();
    let modules = found.modules.iter().copied().collect();
    let (wanted, seen) = (objects, FxHashSet::default());
    let mut search = Search { heap, ways, modules, named: &mut named, wanted, seen };
    search.everywhere(locals, &|search| search.named.variables.len() < all);
    named.variables
}

struct Search<'h, 'a> {
    heap: &'h Heap<'a>,
    ways: &'h CppWays,
    modules: FxHashSet<Addr>,
    named: &'h mut Named,
    wanted: FxHashSet<Addr>,
    seen: FxHashSet<Addr>,
}

impl Search<'_, '_> {
    /// From the variables of the program's own functions, then the globals of its own modules, then those of libraries; the
    /// last only if there is `more` to find.
    fn everywhere(&mut self, locals: &[Local], more: &dyn Fn(&Self) -> bool) {
        let heap = self.heap;
        let (library, own): (Vec<&Local>, Vec<&Local>) =
            locals.iter().partition(|local| is_library(&local.file));
        let scoped = |locals: Vec<&Local>| -> Vec<(String, Addr)> {
            let text = |local: &&Local| {
                let function = local.function.rsplit('.').next().unwrap_or_default();
                // At the top of a module the local variables are its globals, which come next.
                (function != "<module>")
                    .then(|| (format!("{function}: {}", local.name), local.value))
            };
            locals.iter().filter_map(text).collect()
        };
        self.from(scoped(own), Rank::Variable);
        let modules = heap.modules();
        let of_module = |module: &str, dict: Addr| -> Vec<(String, Addr)> {
            let entries = heap.named_entries(dict).into_iter();
            let own = entries.filter(|(name, _)| !name.starts_with("__"));
            own.map(|(name, value)| (format!("{module}.{name}"), value)).collect()
        };
        // A module that is built in or frozen has no file.
        let is_own = |name: &str, dict: Addr| {
            let file = || heap.text(heap.named_value(dict, "__file__")?);
            name == "__main__" || file().is_some_and(|file| !is_library(&file))
        };
        let (mut own, others): (Vec<_>, Vec<_>) =
            modules.into_iter().partition(|(name, dict)| is_own(name, *dict));
        own.sort_by_key(|(name, _)| name != "__main__");
        for (name, dict) in own {
            self.from(of_module(&name, dict), Rank::Variable);
        }
        self.from(self.ways.of_nodes.clone(), Rank::Variable);
        self.from(scoped(library), Rank::Library);
        if more(self) {
            let roots = others.iter().flat_map(|(name, dict)| of_module(name, *dict)).collect();
            self.from(roots, Rank::Library);
        }
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
            let (at, mut depth) = (visits[next].at, visits[next].depth);
            if self.modules.contains(&at) || self.is_task(at) {
                depth = depth.min(MAX_DEPTH_OF_LANDMARKS);
            }
            if self.wanted.contains(&at) {
                let path = path(self.heap, &visits, &names, next);
                self.name(at, rank, &path);
            }
            if depth < FARTHEST {
                self.look_into(at, next, depth + 1, rank, &mut visits);
            }
            next += 1;
        }
    }

    fn name(&mut self, at: Addr, rank: Rank, path: &str) {
        // The same as the name that its module gives it, only longer.
        if ["._parameters[", "._buffers["].iter().any(|dict| path.contains(dict)) {
            return;
        }
        self.named.variables.entry(at).or_insert_with(|| Arc::from(path));
        self.named.add(at, rank, path);
    }

    fn is_task(&self, at: Addr) -> bool {
        self.heap.class_of(at).is_some_and(|class| &*class.name == "_asyncio.Task")
    }

    /// Whether an object is new.
    fn enters(&mut self, at: Addr) -> bool {
        at.is_plausible() && self.seen.insert(at)
    }

    /// Whether an object refers to others.
    fn leads_on(&self, at: Addr) -> bool {
        self.heap.class_of(at).is_some_and(|class| !class.is_leaf()) || self.wanted.contains(&at)
    }

    fn look_into(
        &mut self,
        at: Addr,
        from: usize,
        depth: u32,
        rank: Rank,
        visits: &mut Vec<Visit>,
    ) {
        let (heap, ways) = (self.heap, self.ways);
        let Some(class) = heap.class_of(at) else { return };
        let kind = class.kind;
        // Modules are roots themselves; functions and classes of libraries lead everywhere.
        if kind == Kind::Module
            || rank == Rank::Library && matches!(kind, Kind::Type | Kind::Function)
        {
            return;
        }
        let mut items = 0;
        let is_generator = kind == Kind::Generator;
        let mut take = |edge, to| {
            items += 1;
            // However many coroutines wait for each other.
            let awaits = is_generator && matches!(edge, Edge::Field(_));
            let depth = if awaits { depth - 1 } else { depth };
            // A function's globals and code are not what it holds.
            let leads_away = kind == Kind::Function && edge == Edge::Part;
            if items <= MOST_ITEMS
                && !leads_away
                && self.seen.len() < MOST_SEEN
                && self.leads_on(to)
                && self.enters(to)
                // What comes later is not visited, but known to be reached.
                && visits.len() < MOST_VISITS
            {
                visits.push(Visit { at: to, from: Some(from), edge, depth });
            }
        };
        for (name, to) in ways.of_tensor(at) {
            take(Edge::Slot(name.clone()), *to);
        }
        heap.hidden_references(at, &mut take);
        heap.references(&Object { at, class, references: 0 }, &mut take);
    }
}

/// The way to a visit, as it would be written in Python.
fn path(
    heap: &Heap<'_>,
    visits: &[Visit],
    names: &FxHashMap<usize, String>,
    visit: usize,
) -> String {
    let mut edges = Vec::new();
    let mut at = visit;
    while let Some(from) = visits[at].from {
        edges.push(&visits[at].edge);
        at = from;
    }
    let mut text = names.get(&at).cloned().unwrap_or_default();
    for edge in edges.into_iter().rev() {
        text.push_str(&step(heap, edge));
    }
    text
}

/// The tensors that wrappers have in their attributes.
pub(super) fn parts(heap: &Heap<'_>, wrappers: &[Addr], found: &Found) -> Vec<Part> {
    if wrappers.is_empty() {
        return Vec::new();
    }
    let tensors: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    let mut parts = Vec::new();
    for &wrapper in wrappers {
        let Some(class) = heap.class_of(wrapper) else { continue };
        heap.references(&Object { at: wrapper, class, references: 0 }, &mut |edge, part| {
            if matches!(edge, Edge::Attribute(_) | Edge::Slot(_)) && tensors.contains(&part) {
                parts.push(Part { wrapper, step: step(heap, &edge), part });
            }
        });
    }
    parts
}

/// One step of a way, as it would be written in Python.
pub(super) fn step(heap: &Heap<'_>, edge: &Edge) -> String {
    match edge {
        Edge::Attribute(name) => format!(".{}", heap.text(*name).unwrap_or_default()),
        Edge::Slot(name) => format!(".{name}"),
        Edge::Field(name) => format!(".{name}"),
        Edge::Key(key) => match (heap.text(*key), heap.integer(*key)) {
            (Some(key), _) => format!("[{key:?}]"),
            (None, Some(key)) => format!("[{key}]"),
            (None, None) => "[…]".to_owned(),
        },
        Edge::Item(index) => format!("[{index}]"),
        Edge::AsKey => ".keys()".to_owned(),
        Edge::Member => "{…}".to_owned(),
        Edge::Local(name) => format!(".<locals>.{name}"),
        Edge::Cell => ".cell_contents".to_owned(),
        Edge::Default => ".__defaults__".to_owned(),
        Edge::KeywordDefault => ".__kwdefaults__".to_owned(),
        Edge::Closure => ".__closure__".to_owned(),
        Edge::SelfOfMethod => ".__self__".to_owned(),
        Edge::Call(name) => format!(".{name}()"),
        Edge::Variable(at) => match heap.name_of_context_variable(*at) {
            Some(name) => format!("[<ContextVar {name}>]"),
            None => "[…]".to_owned(),
        },
        Edge::Part => ".__dict__".to_owned(),
    }
}
