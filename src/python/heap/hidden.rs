//! References that no attribute shows: values of a `ContextVar` (a tree per context,
//! Objects/hamt.c), attributes of a `threading.local`, items of an object array.

use rustc_hash::FxHashMap;

use super::c_type_fields::LOCAL;
use super::{HeapObject, ObjectHeap, PyClass, ReferenceKind};
use crate::target::{Addr, Field};

/// `PyContext.ctx_vars`, `PyHamtObject.h_root`, `PyContextVar.var_name`.
const VARIABLES: Field<Addr> = Field::at(24);
const ROOT: Field<Addr> = Field::at(16);
const NAME: Field<Addr> = Field::at(16);
/// A tree has at most 8 levels.
const MAX_DEPTH: u32 = 8;
const MAX_VARIABLES: usize = 1 << 16;

pub(super) type ContextValues = FxHashMap<Addr, Vec<Addr>>;

fn is_context(class: &PyClass) -> bool {
    matches!(&*class.name, "Context" | "_contextvars.Context")
}

fn is_context_variable(name: &str) -> bool {
    matches!(name, "ContextVar" | "_contextvars.ContextVar")
}

impl ObjectHeap<'_> {
    pub(super) fn needs_all_objects(&self, object: &HeapObject) -> bool {
        is_context_variable(&object.class.name)
    }

    /// What a program reaches by a call or another object's attributes, without intermediate
    /// objects.
    pub fn hidden_references(
        &self,
        HeapObject { at, class, .. }: &HeapObject,
        take: &mut dyn FnMut(ReferenceKind, Addr),
    ) {
        let at = *at;
        match &*class.name {
            name if is_context_variable(name) => {
                let values = self.context_values.get_or_init(|| self.all_context_values());
                for value in values.get(&at).into_iter().flatten() {
                    take(ReferenceKind::Call("get"), *value);
                }
            }
            _ if is_context(class) => {
                self.variables_of_context(at, &mut |variable, value| {
                    take(ReferenceKind::Variable(variable), value);
                });
            }
            _ if class.parts.as_deref().is_some_and(|parts| parts.iter().any(|p| p.1 == LOCAL)) => {
                self.attributes_of_local(at, class, take);
            }
            _ if class.is_array() => self.items_of_array(at, take),
            _ => {}
        }
    }

    /// A context variable's name.
    pub fn name_of_context_variable(&self, at: Addr) -> Option<String> {
        let name = self.memory().pointer(self.layout.object.shift(NAME).in_target(at)).ok()?;
        self.text(name)
    }

    fn all_context_values(&self) -> ContextValues {
        let mut values = ContextValues::default();
        for object in self.objects().iter().filter(|object| is_context(&object.class)) {
            self.variables_of_context(object.at, &mut |variable, value| {
                let known: &mut Vec<Addr> = values.entry(variable).or_default();
                if !known.contains(&value) {
                    known.push(value);
                }
            });
        }
        values
    }

    fn variables_of_context(&self, context: Addr, take: &mut dyn FnMut(Addr, Addr)) {
        let (memory, head) = (self.memory(), &self.layout.object);
        let pointer = |field: Field<Addr>, at: Addr| {
            memory.pointer(head.shift(field).in_target(at)).ok().filter(|to| to.is_plausible())
        };
        let root = pointer(VARIABLES, context).and_then(|tree| pointer(ROOT, tree));
        let mut nodes: Vec<(Addr, u32)> = root.map(|root| (root, 0)).into_iter().collect();
        let mut found = 0;
        while let Some((node, depth)) = nodes.pop() {
            let Some(class) = self.class_of(node) else { continue };
            if depth > MAX_DEPTH || found > MAX_VARIABLES {
                return;
            }
            if &*class.name == "hamt_array_node" {
                let children = class.parts(head).filter_map(|(part, _)| {
                    memory.pointer(part.in_target(node)).ok().filter(|to| to.is_plausible())
                });
                nodes.extend(children.map(|child| (child, depth + 1)));
                continue;
            }
            // Pairs of variable and value, or null and child node.
            let row: FxHashMap<usize, Addr> = self.row_of(node, &class).into_iter().collect();
            for (index, value) in row.iter().filter(|(index, _)| *index % 2 == 1) {
                found += 1;
                match row.get(&(index - 1)) {
                    Some(variable) => take(*variable, *value),
                    None => nodes.push((*value, depth + 1)),
                }
            }
        }
    }

    fn attributes_of_local(
        &self,
        at: Addr,
        class: &PyClass,
        take: &mut dyn FnMut(ReferenceKind, Addr),
    ) {
        let of_threads = class.parts(&self.layout.object).find(|(_, name)| *name == LOCAL);
        let dict = of_threads.and_then(|(part, _)| self.memory().pointer(part.in_target(at)).ok());
        let Some(threads) = dict.and_then(|dict| self.entries_if_dict(dict)) else { return };
        for (_, attributes) in threads {
            for (name, value) in self.entries_if_dict(attributes).unwrap_or_default() {
                take(ReferenceKind::Attribute(name), value);
            }
        }
    }
}
