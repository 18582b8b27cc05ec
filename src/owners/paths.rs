//! Names tensors by the shortest paths from variables.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::cpp_references::CppReferences;
use super::names::{NamePriority, ObjectNames};
use super::repeats::{MAX_REPEATED, repeats};
use super::rows::WrappedTensor;
use super::walk::RelevantObjects;
use crate::model::is_library;
use crate::python::{
    ClassKind, HeapObject, LocalVariable, ObjectHeap, OnwardReferences, ReferenceKind,
};
use crate::target::Addr;

pub(super) const MAX_DEPTH: u32 = 8;
/// Limit of searches that visit only what leads to a tensor.
const MAX_FAR_DEPTH: u32 = 64;
/// Modules and tasks count as at most this deep: what they keep is found at any depth.
const MAX_DEPTH_OF_LANDMARKS: u32 = 2;
const MAX_VISITS: usize = 200_000;
const MAX_SEEN: usize = 1 << 23;
const TASK: &str = "_asyncio.Task";
const MAX_AHEAD: usize = 16_384;
const MAX_ITEMS: usize = 65_536;

/// What a search for paths starts from, and follows.
#[derive(Clone, Copy)]
pub(super) struct PathSources<'h, 'a> {
    pub(super) heap: &'h ObjectHeap<'a>,
    pub(super) found: &'h RelevantObjects,
    pub(super) locals: &'h [LocalVariable],
    pub(super) cpp: &'h CppReferences<'h>,
}

#[derive(Debug)]
pub(super) struct PathNode {
    pub(super) at: Addr,
    pub(super) from: Option<usize>,
    pub(super) edge: ReferenceKind,
    pub(super) depth: u32,
    /// Represents any number of identical steps ([`repeats`]).
    pub(super) is_repeated: bool,
}

/// Names tensors, outermost modules and optimizers by variables: of the program's functions, its
/// modules, then libraries if needed. Returns tensors without a variable.
pub(super) fn of_variables(
    sources: PathSources<'_, '_>,
    named: &mut ObjectNames,
    needs_name: &dyn Fn(Addr) -> bool,
) -> Vec<Addr> {
    let PathSources { found, locals, .. } = sources;
    let mut wanted: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    wanted.extend(&found.modules);
    wanted.extend(&found.optimizers);
    wanted.extend(&found.queues);
    wanted.extend(&found.pool_users);
    let mut search = PathSearch::new(sources, named, wanted);
    search.everywhere(locals, &|search| {
        found.tensors.iter().any(|at| !search.seen.contains(at) && needs_name(*at))
    });
    found.tensors.iter().copied().filter(|at| !search.seen.contains(at)).collect()
}

pub(super) fn to_objects(
    sources: PathSources<'_, '_>,
    objects: FxHashSet<Addr>,
) -> FxHashMap<Addr, Arc<str>> {
    let mut named = ObjectNames::default();
    let all = objects.len();
    let mut search = PathSearch::new(sources, &mut named, objects);
    search.everywhere(sources.locals, &|search| search.named.variables.len() < all);
    named.variables
}

pub(super) struct PathSearch<'h, 'a> {
    heap: &'h ObjectHeap<'a>,
    cpp: &'h CppReferences<'h>,
    modules: FxHashSet<Addr>,
    named: &'h mut ObjectNames,
    wanted: FxHashSet<Addr>,
    seen: FxHashSet<Addr>,
    own_globals: FxHashSet<Addr>,
    max_depth: u32,
    is_from_nodes: bool,
    only: Option<&'h SearchFilter>,
}

#[derive(Debug, Default)]
pub(super) struct SearchFilter {
    pub(super) leading: FxHashSet<Addr>,
    /// Holders of unknown kinds, with the objects they reference.
    pub(super) holders: FxHashMap<Addr, Vec<Addr>>,
}

#[derive(Default)]
struct PrefetchedVisits {
    /// The first visit without prefetched references.
    end: usize,
    known: VecDeque<(usize, Vec<(ReferenceKind, Addr)>)>,
}

impl PrefetchedVisits {
    fn take(&mut self, visit: usize) -> OnwardReferences {
        while self.known.front().is_some_and(|(known, _)| *known < visit) {
            self.known.pop_front();
        }
        let is_known = self.known.front().is_some_and(|(known, _)| *known == visit);
        is_known.then(|| self.known.pop_front()).flatten().map(|(_, onward)| onward)
    }
}

impl<'h, 'a> PathSearch<'h, 'a> {
    fn new(
        sources: PathSources<'h, 'a>,
        named: &'h mut ObjectNames,
        wanted: FxHashSet<Addr>,
    ) -> Self {
        let PathSources { heap, found, cpp, .. } = sources;
        let modules = found.modules.iter().copied().collect();
        let (seen, own_globals) = (FxHashSet::default(), FxHashSet::default());
        PathSearch {
            heap,
            cpp,
            modules,
            named,
            wanted,
            seen,
            own_globals,
            max_depth: MAX_DEPTH,
            is_from_nodes: false,
            only: None,
        }
    }

    pub(super) fn far(
        sources: PathSources<'h, 'a>,
        named: &'h mut ObjectNames,
        wanted: FxHashSet<Addr>,
        only: &'h SearchFilter,
    ) -> Self {
        let near = PathSearch::new(sources, named, wanted);
        PathSearch { max_depth: MAX_FAR_DEPTH, only: Some(only), ..near }
    }

    pub(super) fn has_reached(&self, at: Addr) -> bool {
        self.seen.contains(&at)
    }
}

impl PathSearch<'_, '_> {
    /// `more`: whether names from libraries' globals are still wanted.
    pub(super) fn everywhere(&mut self, locals: &[LocalVariable], more: &dyn Fn(&Self) -> bool) {
        let heap = self.heap;
        let (library, own): (Vec<&LocalVariable>, Vec<&LocalVariable>) =
            locals.iter().partition(|local| is_library(&local.file));
        // Name it by the outermost function: inner calls come and go.
        let in_one_frame = |a: &&LocalVariable, b: &&LocalVariable| a.function == b.function;
        let own: Vec<&LocalVariable> = own
            .chunk_by(|a, b| a.thread == b.thread)
            .flat_map(|thread| thread.chunk_by(in_one_frame).rev().flatten())
            .copied()
            .collect();
        let scoped = |locals: Vec<&LocalVariable>| -> Vec<(String, Addr)> {
            let text = |local: &&LocalVariable| {
                let function = local.function.rsplit('.').next().unwrap_or_default();
                // At module level local variables are the globals, which come next.
                (function != "<module>")
                    .then(|| (format!("{function}: {}", local.name), local.value))
            };
            locals.iter().filter_map(text).collect()
        };
        self.from(scoped(own), NamePriority::Variable);
        let modules = heap.modules();
        let of_module = |module: &str, dict: Addr| -> Vec<(String, Addr)> {
            let entries = heap.named_entries(dict).into_iter();
            let own: Vec<_> = entries.filter(|(name, _)| !name.starts_with("__")).collect();
            let out = own.iter().find(|(name, _)| name == "Out").map(|(_, at)| *at);
            let results = out.and_then(|at| heap.entries_if_dict(at)).unwrap_or_default();
            let results: FxHashSet<Addr> = results.into_iter().map(|(_, value)| value).collect();
            // IPython's aliases: one leak must not look like a hundred.
            let is_alias = |name: &str, value: Addr| {
                is_ipython_result(name) && results.contains(&value)
                    || name == "_oh" && Some(value) == out
            };
            own.into_iter()
                .filter(|(name, value)| !is_alias(name, *value))
                .map(|(name, value)| (format!("{module}.{name}"), value))
                .collect()
        };
        let (mut own, others): (Vec<_>, Vec<_>) =
            modules.into_iter().partition(|(name, dict)| is_own_module(heap, name, *dict));
        own.sort_by_key(|(name, _)| name != "__main__");
        self.own_globals = own.iter().map(|(_, dict)| *dict).collect();
        for (name, dict) in own {
            self.from(of_module(&name, dict), NamePriority::Variable);
        }
        self.is_from_nodes = true;
        self.from(self.cpp.of_nodes.clone(), NamePriority::Variable);
        self.is_from_nodes = false;
        self.from(finalizers(heap, &others).into_iter().collect(), NamePriority::Variable);
        self.from(scoped(library), NamePriority::Library);
        if more(self) {
            let roots = others.iter().flat_map(|(name, dict)| of_module(name, *dict)).collect();
            self.from(roots, NamePriority::Library);
        }
    }

    pub(super) fn from(&mut self, roots: Vec<(String, Addr)>, rank: NamePriority) {
        let mut visits: Vec<PathNode> = Vec::new();
        let mut names: FxHashMap<usize, String> = FxHashMap::default();
        for (name, at) in roots {
            if self.enters(at) {
                names.insert(visits.len(), name);
                let edge = ReferenceKind::Part;
                visits.push(PathNode { at, from: None, edge, depth: 0, is_repeated: false });
            } else if self.wanted.contains(&at) {
                self.name(at, rank, &name);
            }
        }
        let (mut next, mut repeated) = (0, 0);
        let mut ahead = PrefetchedVisits::default();
        while next < visits.len() && next < MAX_VISITS {
            if next >= ahead.end && self.only.is_none() {
                ahead = self.prefetch(&visits, next, rank);
            }
            if (repeated < MAX_REPEATED || self.only.is_some())
                && let Some(first) = repeats(self.heap, &visits, next)
            {
                let (from, depth) = (visits[first].from, visits[first].depth);
                let node = &mut visits[next];
                (node.from, node.depth, node.is_repeated) = (from, depth, true);
                repeated += 1;
            }
            let (at, mut depth) = (visits[next].at, visits[next].depth);
            let class = self.heap.class_of(at);
            let is_task = class.as_ref().is_some_and(|class| &*class.name == TASK);
            if is_task || self.modules.contains(&at) {
                depth = depth.min(MAX_DEPTH_OF_LANDMARKS);
            }
            if self.wanted.contains(&at) {
                let path = path(self.heap, &visits, &names, next);
                self.name(at, rank, &path);
            }
            if class.as_ref().is_some_and(|class| class.kind == ClassKind::Capsule)
                && let Some((tensor, object)) = self.cpp.of_capsule(at)
            {
                let path = path(self.heap, &visits, &names, next);
                self.name_of_capsule(tensor, object, rank, &path);
            }
            if depth < self.max_depth
                && let Some(class) = class
            {
                let object = HeapObject { at, class, references: 0 };
                let onward = ahead.take(next);
                self.explore(&object, onward, (next, depth + 1), rank, &mut visits);
            }
            next += 1;
        }
    }

    fn name(&mut self, at: Addr, rank: NamePriority, path: &str) {
        // A longer form of the name from its module.
        if ["._parameters[", "._buffers["].iter().any(|dict| path.contains(dict)) {
            return;
        }
        if self.is_from_nodes {
            self.named.by_nodes.push(at);
        }
        self.named.variables.entry(at).or_insert_with(|| Arc::from(path));
        self.named.add(at, rank, path);
    }

    fn name_of_capsule(
        &mut self,
        tensor: Addr,
        object: Option<Addr>,
        rank: NamePriority,
        path: &str,
    ) {
        match object {
            None if self.only.is_none() => {
                self.named.without_object.push((tensor, Arc::from(path)));
            }
            Some(object) if self.enters(object) && self.wanted.contains(&object) => {
                self.name(object, rank, path);
            }
            _ => {}
        }
    }

    fn enters(&mut self, at: Addr) -> bool {
        at.is_plausible() && self.seen.insert(at)
    }

    fn leads_on(&self, at: Addr) -> bool {
        if let Some(SearchFilter { leading, holders }) = self.only {
            return leading.contains(&at)
                || self.wanted.contains(&at)
                || holders.contains_key(&at)
                || !self.cpp.of_tensor(at).is_empty();
        }
        !self.heap.is_leaf(at) || self.wanted.contains(&at)
    }

    fn explore(
        &mut self,
        object: &HeapObject,
        onward: OnwardReferences,
        (from, depth): (usize, u32),
        rank: NamePriority,
        visits: &mut Vec<PathNode>,
    ) {
        let (heap, cpp, only) = (self.heap, self.cpp, self.only);
        let (at, kind) = (object.at, object.class.kind);
        // Modules are roots themselves; functions and classes of libraries lead everywhere. A
        // program function in a library was registered there (hook, handler).
        let is_of_library = || match kind {
            ClassKind::Function => {
                heap.globals_of(at).is_none_or(|globals| !self.own_globals.contains(&globals))
            }
            _ => kind == ClassKind::Type,
        };
        if kind == ClassKind::Module || rank == NamePriority::Library && is_of_library() {
            return;
        }
        let mut items = 0;
        let is_generator = kind == ClassKind::Generator;
        let mut take = |edge, to, is_onward: bool| {
            items += 1;
            // Coroutines may await each other at any depth.
            let awaits = is_generator && matches!(edge, ReferenceKind::Field(_));
            let depth = if awaits { depth - 1 } else { depth };
            // A function does not own its globals and code.
            let leads_away = kind == ClassKind::Function && edge == ReferenceKind::Part;
            if (items <= MAX_ITEMS || only.is_some())
                && !leads_away
                && self.seen.len() < MAX_SEEN
                && (is_onward || self.leads_on(to))
                && self.enters(to)
                // Later objects are marked as seen, not visited.
                && visits.len() < MAX_VISITS
            {
                let from = Some(from);
                visits.push(PathNode { at: to, from, edge, depth, is_repeated: false });
            }
        };
        for (name, to) in cpp.of_tensor(at) {
            take(ReferenceKind::Slot(name.clone()), *to, false);
        }
        for to in only.and_then(|only| only.holders.get(&at)).into_iter().flatten() {
            take(ReferenceKind::Field("<object>"), *to, false);
        }
        match onward {
            Some(onward) => onward.into_iter().for_each(|(edge, to)| take(edge, to, true)),
            None => {
                heap.hidden_references(object, &mut |edge, to| take(edge, to, false));
                heap.references(object, &mut |edge, to| take(edge, to, false));
            }
        }
    }

    fn prefetch(&self, visits: &[PathNode], next: usize, rank: NamePriority) -> PrefetchedVisits {
        let end = visits.len().min(next + MAX_AHEAD).min(MAX_VISITS);
        // Too deep objects are not visited. Only this thread knows a tensor's C++ references.
        let is_explored = |visit: &usize| {
            let PathNode { at, depth, .. } = visits[*visit];
            (depth < self.max_depth || self.modules.contains(&at))
                && self.cpp.of_tensor(at).is_empty()
        };
        let explored: Vec<usize> = (next..end).filter(is_explored).collect();
        let objects: Vec<Addr> = explored.iter().map(|visit| visits[*visit].at).collect();
        let (seen, wanted) = (&self.seen, &self.wanted);
        let is_asked = |object: &HeapObject| match object.class.kind {
            ClassKind::Module => false,
            // Most of these are never visited.
            ClassKind::Function | ClassKind::Type => rank != NamePriority::Library,
            _ => true,
        };
        let takes = |heap: &ObjectHeap<'_>, item: usize, to: Addr| {
            item <= MAX_ITEMS && !seen.contains(&to) && (!heap.is_leaf(to) || wanted.contains(&to))
        };
        let onward = self.heap.onward_references(&objects, &is_asked, &takes);
        let known = explored.into_iter().zip(onward);
        let known = known.filter_map(|(visit, onward)| Some((visit, onward?))).collect();
        PrefetchedVisits { end, known }
    }
}

/// IPython's names of results, beside `Out`: `_` and `_12`.
fn is_ipython_result(name: &str) -> bool {
    name.strip_prefix('_').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn path(
    heap: &ObjectHeap<'_>,
    visits: &[PathNode],
    names: &FxHashMap<usize, String>,
    visit: usize,
) -> String {
    let mut edges = Vec::new();
    let mut at = visit;
    while let Some(from) = visits[at].from {
        edges.push(&visits[at]);
        at = from;
    }
    let mut text = names.get(&at).cloned().unwrap_or_default();
    for PathNode { edge, is_repeated, .. } in edges.into_iter().rev() {
        text.push_str(&step(heap, edge));
        if *is_repeated {
            text.push('…');
        }
    }
    text
}

/// Whether it is the program's. Builtin and frozen modules have no file.
pub(super) fn is_own_module(heap: &ObjectHeap<'_>, name: &str, dict: Addr) -> bool {
    let file = || heap.text(heap.named_value(dict, "__file__")?);
    name == "__main__" || file().is_some_and(|file| !is_library(&file))
}

/// What `weakref.finalize` keeps until an object is freed.
fn finalizers(heap: &ObjectHeap<'_>, modules: &[(String, Addr)]) -> Option<(String, Addr)> {
    let (_, weakref) = modules.iter().find(|(name, _)| name == "weakref")?;
    let class = heap.named_value(*weakref, "finalize")?;
    let registry = heap.attribute_of_class(class, "_registry")?;
    Some(("weakref.finalize._registry".to_owned(), registry))
}

pub(super) fn parts(
    heap: &ObjectHeap<'_>,
    wrappers: &[Addr],
    found: &RelevantObjects,
) -> Vec<WrappedTensor> {
    if wrappers.is_empty() {
        return Vec::new();
    }
    let tensors: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    let mut parts = Vec::new();
    for &wrapper in wrappers {
        let Some(class) = heap.class_of(wrapper) else { continue };
        heap.references(&HeapObject { at: wrapper, class, references: 0 }, &mut |edge, part| {
            if matches!(edge, ReferenceKind::Attribute(_) | ReferenceKind::Slot(_))
                && tensors.contains(&part)
            {
                parts.push(WrappedTensor { wrapper, step: step(heap, &edge), part });
            }
        });
    }
    parts
}

pub(super) fn step(heap: &ObjectHeap<'_>, edge: &ReferenceKind) -> String {
    match edge {
        ReferenceKind::Attribute(name) => format!(".{}", heap.text(*name).unwrap_or_default()),
        ReferenceKind::Slot(name) => format!(".{name}"),
        ReferenceKind::Field(name) => format!(".{name}"),
        ReferenceKind::Key(key) => match (heap.text(*key), heap.integer(*key)) {
            (Some(key), _) => format!("[{key:?}]"),
            (None, Some(key)) => format!("[{key}]"),
            (None, None) => "[…]".to_owned(),
        },
        ReferenceKind::Item(index) => format!("[{index}]"),
        ReferenceKind::AsKey => ".keys()".to_owned(),
        ReferenceKind::Member => "{…}".to_owned(),
        ReferenceKind::Local(name) => format!(".<locals>.{name}"),
        ReferenceKind::Cell => ".cell_contents".to_owned(),
        ReferenceKind::Default => ".__defaults__".to_owned(),
        ReferenceKind::KeywordDefault => ".__kwdefaults__".to_owned(),
        ReferenceKind::Closure => ".__closure__".to_owned(),
        ReferenceKind::SelfOfMethod => ".__self__".to_owned(),
        ReferenceKind::Call(name) => format!(".{name}()"),
        ReferenceKind::Variable(at) => match heap.name_of_context_variable(*at) {
            Some(name) => format!("[<ContextVar {name}>]"),
            None => "[…]".to_owned(),
        },
        ReferenceKind::Part => ".__dict__".to_owned(),
    }
}
