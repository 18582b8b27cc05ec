//! The paths of a model's `torch.nn.Module`s, by address.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::dicts;
use super::objects::text;
use crate::model::MODULE_CALLS;
use crate::python::layouts::PythonLayout;
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Addr, Field, Memory, PageCache, Process};

const MAX_MODULES: usize = 1 << 16;
const MAX_DEPTH: usize = 64;
/// A model whose modules are replaced all the time is not read each time.
const MAX_READS: u32 = 64;
const MAX_NAME: usize = 256;
const DEFINED_IN: &str = "torch.nn.modules.module";
/// From `tp_dict` to `tp_dictoffset`.
const BEFORE_OFFSET: u64 = 24;
/// `tp_name` (Include/cpython/object.h, 3.8 to 3.15).
const TYPE_NAME: Field<Addr> = Field::at(24);

/// Names of modules, read from `_modules` when an unknown one is met. A module at the address of
/// a deleted one keeps its name.
#[derive(Debug, Default)]
pub(super) struct ModuleNames {
    names: FxHashMap<u64, Arc<str>>,
    unknown: FxHashSet<u64>,
    /// What begins the paths in a model.
    prefixes: FxHashMap<u64, String>,
    reads: u32,
}

impl ModuleNames {
    /// The path of the module at `at` in the model at `root`, whose call is the outermost one; the
    /// model itself has its class's name. Paths in further models begin with their class.
    pub(super) fn name(
        &mut self,
        memory: &dyn Memory,
        layout: &PythonLayout,
        root: u64,
        at: u64,
    ) -> Option<Arc<str>> {
        if let Some(name) = self.names.get(&at) {
            return Some(name.clone());
        }
        let is_room = self.names.len() < MAX_MODULES && self.unknown.len() < MAX_MODULES;
        if self.unknown.contains(&at) || self.reads >= MAX_READS || !is_room {
            return None;
        }
        self.reads += 1;
        self.read(memory, layout, Addr(root));
        let name = self.names.get(&at).cloned();
        if name.is_none() {
            self.unknown.insert(at);
        }
        name
    }

    fn read(&mut self, memory: &dyn Memory, layout: &PythonLayout, root: Addr) -> Option<()> {
        let class = class_name(memory, layout, root)?;
        let children = children(memory, layout, root)?;
        let prefix = match (self.prefixes.get(&root.0), self.names.get(&root.0)) {
            // It has new parts.
            (Some(known), _) => known.clone(),
            // A part of another model.
            (None, Some(path)) => format!("{path}."),
            (None, None) if self.prefixes.is_empty() || children.is_empty() => String::new(),
            (None, None) => format!("{class}."),
        };
        if !children.is_empty() {
            self.prefixes.entry(root.0).or_insert_with(|| prefix.clone());
        }
        self.names.entry(root.0).or_insert_with(|| class.as_str().into());
        let mut open: Vec<(String, Vec<(String, Addr)>)> = vec![(prefix, children)];
        let mut seen: FxHashSet<Addr> = FxHashSet::from_iter([root]);
        loop {
            let depth = open.len();
            let Some((prefix, list)) = open.last_mut() else { break };
            let Some((key, at)) = list.pop() else {
                open.pop();
                continue;
            };
            if !seen.insert(at) || self.names.len() >= MAX_MODULES || depth > MAX_DEPTH {
                continue;
            }
            let path = format!("{prefix}{key}");
            // The first path of a shared module is its name, as in `named_modules()`.
            self.names.entry(at.0).or_insert_with(|| path.as_str().into());
            let below = self::children(memory, layout, at).unwrap_or_default();
            open.push((path + ".", below));
        }
        Some(())
    }
}

/// The code objects of `torch.nn.Module`'s functions that call a module, in the order of
/// `Function::module_call`; `None` before it is imported.
pub(super) fn module_calls(process: &Process, interpreter: &Interpreter) -> Option<[u64; 2]> {
    let copy = PageCache::new(Box::new(process.memory()));
    let (memory, layout): (&dyn Memory, _) = (&copy, &interpreter.layout);
    let main = dicts::main_interpreter(memory, layout, interpreter.runtime)?;
    let dict = dicts::of_imported(memory, layout, main, DEFINED_IN).ok()??;
    let get = |dict: Addr, name: &str| {
        dicts::get(memory, layout, &dicts::entries(memory, layout, dict).ok()?, name)
    };
    let class = get(dict, "Module")?;
    let attributes = Addr(class.0 + layout.instance.dict_offset.offset as u64 - BEFORE_OFFSET);
    let functions = memory.pointer(attributes).ok()?;
    let code = |name| {
        let function = get(functions, name)?;
        memory.pointer(layout.heap.function_code.in_target(function)).ok()
    };
    Some(MODULE_CALLS.map(|name| code(name).map_or(0, |code| code.0)))
}

/// The last one first.
fn children(memory: &dyn Memory, layout: &PythonLayout, at: Addr) -> Option<Vec<(String, Addr)>> {
    let attributes = dicts::attributes(memory, layout, at).ok()?;
    let modules = dicts::get(memory, layout, &attributes, "_modules")?;
    let entries = dicts::entries(memory, layout, modules).ok()?;
    let named = entries.into_iter().rev().filter_map(|(key, child)| {
        let key = text(memory, &layout.object, key).ok()?.text;
        // An absent part is None, which has no `_modules`.
        (key.len() <= MAX_NAME).then_some((key, child))
    });
    Some(named.collect())
}

fn class_name(memory: &dyn Memory, layout: &PythonLayout, at: Addr) -> Option<String> {
    let class = memory.pointer(layout.object.type_of.in_target(at)).ok()?;
    let name = memory.pointer(layout.object.shift(TYPE_NAME).in_target(class)).ok()?;
    let name = memory.c_string(name, MAX_NAME).ok()?;
    Some(name.rsplit('.').next().unwrap_or(&name).to_owned())
}
