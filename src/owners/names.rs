//! Names from module trees (`layers.0.weight`) and optimizers (`AdamW.exp_avg[layers.0.weight]`).
//!
//! With several outermost modules, a variable comes first. A shared tensor has all its names.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::rows::WrappedTensor;
use super::walk::RelevantObjects;
use crate::model::{LimitedQueue, NamedModule, Optimizer, RootModule, TensorCategory};
use crate::python::{ClassKind, HeapObject, ObjectHeap, ReferenceKind};
use crate::target::Addr;

const MAX_DEPTH: usize = 64;
const MAX_NAMES: usize = 8;

/// The lowest is shown first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NamePriority {
    Module,
    Optimizer,
    Variable,
    Library,
}

#[derive(Debug, Default)]
pub(super) struct ObjectNames {
    names: FxHashMap<Addr, Vec<(NamePriority, Arc<str>)>>,
    categories: FxHashMap<Addr, TensorCategory>,
    /// Variables that lead to modules, optimizers and deques with a limit.
    pub(super) variables: FxHashMap<Addr, Arc<str>>,
    /// Objects that only an autograd node references.
    pub(super) by_nodes: Vec<Addr>,
    pub(super) without_object: Vec<(Addr, Arc<str>)>,
    trees: Vec<ModuleTree>,
    pub(super) models: Vec<RootModule>,
    pub(super) optimizers: Vec<Optimizer>,
}

#[derive(Debug)]
struct ModuleTree {
    root: Addr,
    class: Arc<str>,
    tensors: Vec<(Addr, String)>,
    modules: Vec<NamedModule>,
}

impl ObjectNames {
    pub(super) fn add(&mut self, object: Addr, rank: NamePriority, name: impl Into<Arc<str>>) {
        let names = self.names.entry(object).or_default();
        let name = name.into();
        if names.len() < MAX_NAMES && !names.iter().any(|(_, known)| *known == name) {
            names.push((rank, name));
        }
    }

    fn set_category(&mut self, object: Addr, category: TensorCategory) {
        let known = self.categories.entry(object).or_insert(category);
        *known = (*known).min(category);
    }

    pub(super) fn names(&self, object: Addr) -> Vec<Arc<str>> {
        let Some(names) = self.names.get(&object) else { return Vec::new() };
        let mut names: Vec<_> = names.iter().collect();
        names.sort_by_key(|(rank, _)| *rank);
        names.into_iter().map(|(_, name)| name.clone()).collect()
    }

    /// An optimizer that has a wrapper (`DTensor`) as state has its part.
    pub(super) fn own_parts(&mut self, parts: &[WrappedTensor]) {
        let inner: FxHashMap<u64, u64> =
            parts.iter().map(|part| (part.wrapper.0, part.part.0)).collect();
        for optimizer in &mut self.optimizers {
            let mut known: FxHashSet<u64> = optimizer.state.iter().copied().collect();
            let mut at = 0;
            while let Some(wrapper) = optimizer.state.get(at) {
                let part = inner.get(wrapper).copied().filter(|part| known.insert(*part));
                optimizer.state.extend(part);
                at += 1;
            }
        }
    }

    /// Deques with a limit, by the variables that lead to them.
    pub(super) fn queues(
        &self,
        heap: &ObjectHeap<'_>,
        found: &RelevantObjects,
    ) -> Vec<LimitedQueue> {
        let named = found.queues.iter().filter_map(|at| {
            let (items, limit) = heap.limit_of_deque(*at)?;
            Some(LimitedQueue { name: self.variables.get(at)?.clone(), items, limit })
        });
        named.collect()
    }

    pub(super) fn category(&self, object: Addr) -> Option<TensorCategory> {
        self.categories.get(&object).copied()
    }
}

#[derive(Debug, Default)]
struct ModuleParts {
    tensors: Vec<(String, Addr, TensorCategory)>,
    children: Vec<(String, Addr)>,
    inplace: bool,
}

pub(super) fn modules(heap: &ObjectHeap<'_>, found: &RelevantObjects, named: &mut ObjectNames) {
    let is_tensor: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    let is_module: FxHashSet<Addr> = found.modules.iter().copied().collect();
    let mut parts: FxHashMap<Addr, ModuleParts> = FxHashMap::default();
    let mut children: FxHashSet<Addr> = FxHashSet::default();
    let mut scripted: Vec<(Addr, Addr)> = Vec::new();
    for module in &found.modules {
        let mut own = ModuleParts::default();
        let [parameters, buffers, modules, inplace, forward] = heap.attributes_called(
            *module,
            ["_parameters", "_buffers", "_modules", "inplace", "forward"],
        );
        own.inplace = inplace.is_some_and(|value| heap.is_true(value));
        if let Some(original) = forward.and_then(|value| original_of_script(heap, value))
            && is_module.contains(&original)
        {
            scripted.push((*module, original));
        }
        if let Some(modules) = modules {
            // A ScriptModule has an object around a dictionary here.
            let dict = match heap.entries_if_dict(modules) {
                Some(_) => Some(modules),
                None => heap.attribute(modules, "_python_modules"),
            };
            let entries = dict.map(|dict| heap.named_entries(dict)).into_iter().flatten();
            own.children = entries.filter(|(_, at)| is_module.contains(at)).collect();
            children.extend(own.children.iter().map(|(_, child)| *child));
        }
        for (tensors, category) in
            [(parameters, TensorCategory::Parameter), (buffers, TensorCategory::Buffer)]
        {
            // A ScriptModule has them in C++.
            let dict = tensors.filter(|dict| heap.entries_if_dict(*dict).is_some());
            for (name, tensor) in dict.map_or(Vec::new(), |dict| heap.named_entries(dict)) {
                if is_tensor.contains(&tensor) {
                    named.set_category(tensor, category);
                    own.tensors.push((name, tensor, category));
                }
            }
        }
        parts.insert(*module, own);
    }
    // A ScriptModule keeps its original and shares its tensors.
    for (script, original) in scripted {
        let tensors = parts.get(&original).map(|own| own.tensors.clone()).unwrap_or_default();
        if let Some(own) = parts.get_mut(&script).filter(|own| own.tensors.is_empty()) {
            own.tensors = tensors;
            children.insert(original);
        }
    }
    add_trees(heap, found, &parts, &children, named);
}

/// Adds the modules that are no other's child, with all below them.
fn add_trees(
    heap: &ObjectHeap<'_>,
    found: &RelevantObjects,
    parts: &FxHashMap<Addr, ModuleParts>,
    children: &FxHashSet<Addr>,
    named: &mut ObjectNames,
) {
    let mut of_torch = FxHashMap::default();
    for root in found.modules.iter().filter(|module| !children.contains(module)) {
        let mut tensors = Vec::new();
        collect(*root, "", parts, 0, &mut tensors);
        if !tensors.is_empty() {
            let mut modules = Vec::new();
            let seen = &mut FxHashSet::default();
            list_modules(heap, *root, "", parts, &mut of_torch, seen, &mut modules);
            let class = class_name(heap, *root);
            named.trees.push(ModuleTree { root: *root, class, tensors, modules });
        }
    }
}

fn class_name(heap: &ObjectHeap<'_>, object: Addr) -> Arc<str> {
    heap.class_of(object).map_or_else(|| "?".into(), |class| class.name.clone())
}

fn list_modules(
    heap: &ObjectHeap<'_>,
    module: Addr,
    path: &str,
    parts: &FxHashMap<Addr, ModuleParts>,
    of_torch: &mut FxHashMap<Addr, bool>,
    seen: &mut FxHashSet<Addr>,
    modules: &mut Vec<NamedModule>,
) {
    let Some(own) = parts.get(&module).filter(|_| path.matches('.').count() < MAX_DEPTH) else {
        return;
    };
    if !seen.insert(module) {
        return;
    }
    let parameters =
        own.tensors.iter().filter(|(.., category)| *category == TensorCategory::Parameter);
    modules.push(NamedModule {
        path: path.to_owned(),
        class: class_name(heap, module),
        is_of_torch: heap.class_of(module).is_some_and(|class| {
            *of_torch.entry(class.at).or_insert_with(|| {
                heap.module_of(&class).is_some_and(|module| module.starts_with("torch.nn.modules."))
            })
        }),
        parameters: parameters.map(|(_, tensor, _)| tensor.0).collect(),
        has_children: !own.children.is_empty(),
        inplace: own.inplace,
    });
    for (name, child) in &own.children {
        let separator = if path.is_empty() { "" } else { "." };
        list_modules(
            heap,
            *child,
            &format!("{path}{separator}{name}"),
            parts,
            of_torch,
            seen,
            modules,
        );
    }
}

/// A ScriptModule's original: its `forward` wraps a method of it (torch/jit/_recursive.py).
fn original_of_script(heap: &ObjectHeap<'_>, forward: Addr) -> Option<Addr> {
    let method = heap.attribute(forward, "__wrapped__")?;
    let class = heap.class_of(method).filter(|class| class.kind == ClassKind::Method)?;
    let mut original = None;
    heap.references(&HeapObject { at: method, class, references: 0 }, &mut |edge, to| {
        if edge == ReferenceKind::SelfOfMethod {
            original = Some(to);
        }
    });
    original
}

fn collect(
    module: Addr,
    prefix: &str,
    parts: &FxHashMap<Addr, ModuleParts>,
    depth: usize,
    tensors: &mut Vec<(Addr, String)>,
) {
    let Some(own) = parts.get(&module).filter(|_| depth < MAX_DEPTH) else { return };
    for (name, tensor, _) in &own.tensors {
        tensors.push((*tensor, format!("{prefix}{name}")));
    }
    for (name, child) in &own.children {
        collect(*child, &format!("{prefix}{name}."), parts, depth + 1, tensors);
    }
}

pub(super) fn finish(heap: &ObjectHeap<'_>, found: &RelevantObjects, named: &mut ObjectNames) {
    let trees = std::mem::take(&mut named.trees);
    let one = trees.len() == 1;
    for tree in trees {
        let prefix = match named.variables.get(&tree.root) {
            _ if one => String::new(),
            Some(variable) => {
                // `main: model` becomes `model`.
                let name = variable.rsplit_once(": ").map_or(&**variable, |(_, name)| name);
                format!("{name}.")
            }
            None => format!("{}.", tree.class),
        };
        let name = named.variables.get(&tree.root).cloned().unwrap_or(tree.class);
        let [training] = heap.attributes_called(tree.root, ["training"]);
        let is_bool = |at: &Addr| heap.class_of(*at).is_some_and(|class| &*class.name == "bool");
        let is_training = training.filter(is_bool).map(|value| heap.is_true(value));
        named.models.push(RootModule { name, modules: tree.modules, is_training });
        for (tensor, path) in tree.tensors {
            named.add(tensor, NamePriority::Module, format!("{prefix}{path}"));
        }
    }
    let is_tensor: FxHashSet<Addr> = found.tensors.iter().copied().collect();
    for parameter in &found.fsdp_parameters {
        sharded_parameter(heap, *parameter, &is_tensor, named);
    }
    for optimizer in &found.optimizers {
        optimizer_state(heap, *optimizer, &is_tensor, named);
    }
}

/// While FSDP2 has gathered a parameter, the module has the whole one, and not this rank's part.
fn sharded_parameter(
    heap: &ObjectHeap<'_>,
    parameter: Addr,
    is_tensor: &FxHashSet<Addr>,
    named: &mut ObjectNames,
) {
    let [name, shard, gathered] =
        heap.attributes_called(parameter, ["_param_fqn", "sharded_param", "all_gather_outputs"]);
    let Some(name) = name.and_then(|name| heap.text(name)) else { return };
    if let Some(shard) = shard.filter(|shard| is_tensor.contains(shard)) {
        named.set_category(shard, TensorCategory::Parameter);
        named.add(shard, NamePriority::Module, &*name);
    }
    let gathered = gathered.map(|list| heap.items(list)).unwrap_or_default();
    for (number, tensor) in gathered.into_iter().enumerate() {
        if is_tensor.contains(&tensor) {
            let text = format!("FSDPParam.all_gather_outputs[{number}][{name}]");
            named.add(tensor, NamePriority::Optimizer, text);
        }
    }
}

/// `optimizer.state`: a dictionary of dictionaries by parameter.
fn optimizer_state(
    heap: &ObjectHeap<'_>,
    optimizer: Addr,
    is_tensor: &FxHashSet<Addr>,
    named: &mut ObjectNames,
) {
    let Some(class) = heap.class_of(optimizer) else { return };
    let Some(state) = heap.attribute(optimizer, "state") else { return };
    let (mut parameters, mut of_state) = (Vec::new(), Vec::new());
    for (parameter, kept) in heap.entries_if_dict(state).unwrap_or_default() {
        let name = named.names(parameter).first().cloned().unwrap_or_else(|| "?".into());
        let Some(kept) = heap.entries_if_dict(kept) else { continue };
        parameters.push(parameter.0);
        for (key, value) in kept {
            if is_tensor.contains(&value)
                && let Some(key) = heap.text(key)
            {
                named.set_category(value, TensorCategory::OptimizerState);
                named.add(value, NamePriority::Optimizer, format!("{}.{key}[{name}]", class.name));
                of_state.push(value.0);
            }
        }
    }
    if !of_state.is_empty() {
        let (variable, class) = (named.variables.get(&optimizer).cloned(), class.name.clone());
        named.optimizers.push(Optimizer { variable, class, parameters, state: of_state });
    }
}
