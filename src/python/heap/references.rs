//! An object's references, and their kinds.

use std::sync::Arc;

use super::super::dicts;
use super::locals::CELL;
use super::{ClassKind, HeapObject, ObjectHeap};
use crate::target::{Addr, Field};

/// `PyMethodObject` (3.8 to 3.15).
pub(super) const METHOD_FUNCTION: Field<Addr> = Field::at(16);
pub(super) const METHOD_SELF: Field<Addr> = Field::at(24);

/// How an object references another. Keys and names are addresses: most are never read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReferenceKind {
    /// An attribute.
    Attribute(Addr),
    /// An attribute in a slot.
    Slot(Arc<str>),
    /// A C object's field by Python name, or in angle brackets.
    Field(&'static str),
    /// A key's value.
    Key(Addr),
    /// A key, if not a string.
    AsKey,
    /// An item of a list, tuple or deque.
    Item(usize),
    /// A member of a set.
    Member,
    /// A local variable of a generator or frame.
    Local(String),
    /// A cell's content.
    Cell,
    /// A function's default values.
    Default,
    /// Keyword-only default values.
    KeywordDefault,
    /// A closure's variable.
    Closure,
    /// A method's bound object.
    SelfOfMethod,
    /// This method's return value.
    Call(&'static str),
    /// A context variable's value.
    Variable(Addr),
    /// Any other.
    Part,
}

impl ObjectHeap<'_> {
    /// Passes on known references.
    pub fn references(&self, object: &HeapObject, take: &mut dyn FnMut(ReferenceKind, Addr)) {
        let memory = self.memory();
        let (at, head) = (object.at, &self.layout.object);
        let pointer = |field: Field<Addr>| {
            memory.pointer(field.in_target(at)).ok().filter(|to| to.is_plausible())
        };
        let kind = object.class.kind;
        match kind {
            ClassKind::Dict => self.references_of_dict(at, take),
            ClassKind::List | ClassKind::Tuple | ClassKind::Deque => {
                let mut index = 0;
                self.each_item_of(at, kind, &mut |item| {
                    take(ReferenceKind::Item(index), item);
                    index += 1;
                });
            }
            ClassKind::Set => {
                self.each_item_of(at, kind, &mut |member| take(ReferenceKind::Member, member));
            }
            ClassKind::Cell => {
                if let Some(value) = pointer(head.shift(CELL)) {
                    take(ReferenceKind::Cell, value);
                }
            }
            ClassKind::Function => self.references_of_function(at, take),
            ClassKind::Method => {
                for (edge, field) in [
                    (ReferenceKind::Part, METHOD_FUNCTION),
                    (ReferenceKind::SelfOfMethod, METHOD_SELF),
                ] {
                    if let Some(value) = pointer(head.shift(field)) {
                        take(edge, value);
                    }
                }
            }
            ClassKind::Generator => self.references_of_generator(object, take),
            ClassKind::Frame => {
                if let Some((frame, _)) = self.frame_of_object(at) {
                    self.locals_of_frame(frame, &mut |local| {
                        take(ReferenceKind::Local(local.name), local.value);
                    });
                }
            }
            ClassKind::Module => {
                if let Ok(dict) = dicts::of_module(memory, &self.layout, at) {
                    take(ReferenceKind::Part, dict);
                }
            }
            ClassKind::Text => {}
            ClassKind::Type | ClassKind::Instance | ClassKind::Capsule | ClassKind::Other => {}
        }
        if !matches!(kind, ClassKind::Type) {
            self.references_of_instance(object, take);
        } else if let Some(class) = self.class_at(at)
            && class.dict.is_plausible()
        {
            take(ReferenceKind::Part, class.dict);
        }
    }

    /// Those that its class describes: parts, items, slots, attributes.
    fn references_of_instance(
        &self,
        object: &HeapObject,
        take: &mut dyn FnMut(ReferenceKind, Addr),
    ) {
        let (at, class) = (object.at, &object.class);
        for (part, name) in class.parts(&self.layout.object) {
            let to = self.memory().pointer(part.in_target(at)).ok();
            if let Some(to) = to.filter(|to| to.is_plausible()) {
                take(ReferenceKind::Field(name), to);
            }
        }
        for (index, to) in self.row_of(at, class) {
            take(ReferenceKind::Item(index), to);
        }
        for (name, value) in self.slots_of(at, class) {
            take(ReferenceKind::Slot(name), value);
        }
        for (name, value) in self.instance_entries(at, class) {
            take(ReferenceKind::Attribute(name), value);
        }
    }

    fn references_of_dict(&self, at: Addr, take: &mut dyn FnMut(ReferenceKind, Addr)) {
        let dicts::DictEntries { entries, has_texts_only } = self.entries_by_keys(at);
        for (key, value) in entries {
            take(ReferenceKind::Key(key), value);
            if !has_texts_only
                && self.class_of(key).is_some_and(|class| class.kind != ClassKind::Text)
            {
                take(ReferenceKind::AsKey, key);
            }
        }
    }

    fn references_of_generator(
        &self,
        generator: &HeapObject,
        take: &mut dyn FnMut(ReferenceKind, Addr),
    ) {
        let Some(frame) = self.frame_of_generator(generator.at) else { return };
        let locals = self.locals_of_frame(frame, &mut |local| {
            take(ReferenceKind::Local(local.name), local.value);
        });
        let mut stack = self.stack_of_frame(frame, locals).unwrap_or_default();
        // A suspended coroutine has the awaited object on top.
        let awaited = match &*generator.class.name {
            "coroutine" => stack.pop(),
            _ => None,
        };
        for value in stack {
            take(ReferenceKind::Field("<stack>"), value);
        }
        if let Some(awaited) = awaited {
            take(ReferenceKind::Field("cr_await"), awaited);
        }
    }

    /// `None` unless a function.
    pub fn globals_of(&self, function: Addr) -> Option<Addr> {
        let is_function = self.class_of(function)?.kind == ClassKind::Function;
        let globals = self.layout.heap.function_globals.in_target(function);
        self.memory().pointer(globals).ok().filter(|_| is_function)
    }

    /// A value in a class's own namespace.
    pub fn attribute_of_class(&self, class: Addr, name: &str) -> Option<Addr> {
        self.named_value(self.class_at(class)?.dict, name)
    }

    fn references_of_function(&self, at: Addr, take: &mut dyn FnMut(ReferenceKind, Addr)) {
        let heap = &self.layout.heap;
        let pointer = |field: Field<Addr>| {
            let to = self.memory().pointer(field.in_target(at)).ok();
            to.filter(|to| to.is_plausible())
        };
        if let Some(defaults) = pointer(heap.function_defaults) {
            take(ReferenceKind::Default, defaults);
        }
        if let Some(defaults) = pointer(heap.function_kwdefaults) {
            take(ReferenceKind::KeywordDefault, defaults);
        }
        if let Some(closure) = pointer(heap.function_closure) {
            take(ReferenceKind::Closure, closure);
        }
        for part in [heap.function_globals, heap.function_dict, heap.function_code] {
            if let Some(to) = pointer(part) {
                take(ReferenceKind::Part, to);
            }
        }
    }
}
