//! What an object refers to, and how.

use std::sync::Arc;

use super::super::dicts;
use super::locals::CELL;
use super::{Heap, Kind, Object};
use crate::target::{Addr, Field};

/// `PyMethodObject`: the same from 3.8 to 3.15, but for the length of the head.
pub(super) const METHOD_FUNCTION: Field<Addr> = Field::at(16);
pub(super) const METHOD_SELF: Field<Addr> = Field::at(24);

/// How one object refers to another. Keys are addresses of their objects: most are never looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edge {
    /// An attribute.
    Attribute(Addr),
    /// An attribute in a slot.
    Slot(Arc<str>),
    /// A part of an object that is written in C, as it is called there; in angle brackets where Python has no name for it.
    Field(&'static str),
    /// The value of a key.
    Key(Addr),
    /// The key itself, if it is no string.
    AsKey,
    /// An item of a list, tuple or deque.
    Item(usize),
    /// A member of a set.
    Member,
    /// A local variable of a generator or a frame.
    Local(String),
    /// What a cell shares.
    Cell,
    /// The default values of a function.
    Default,
    /// Those of parameters that are given by name.
    KeywordDefault,
    /// A variable of a function's closure.
    Closure,
    /// What a method is bound to.
    SelfOfMethod,
    /// What a method of it returns.
    Call(&'static str),
    /// What a context has a context variable set to.
    Variable(Addr),
    /// Any other part.
    Part,
}

impl Heap<'_> {
    /// Passes on what `object` refers to, as far as its kind is known.
    pub fn references(&self, object: &Object, take: &mut dyn FnMut(Edge, Addr)) {
        let memory = self.memory();
        let (at, head) = (object.at, &self.layout.object);
        let pointer = |field: Field<Addr>| {
            memory.pointer(field.in_target(at)).ok().filter(|to| to.is_plausible())
        };
        match object.class.kind {
            Kind::Dict => {
                for (key, value) in self.entries(at) {
                    take(Edge::Key(key), value);
                    if self.class_of(key).is_some_and(|class| class.kind != Kind::Text) {
                        take(Edge::AsKey, key);
                    }
                }
            }
            Kind::List | Kind::Tuple | Kind::Deque => {
                let mut index = 0;
                self.each_item(at, &mut |item| {
                    take(Edge::Item(index), item);
                    index += 1;
                });
            }
            Kind::Set => {
                self.each_item(at, &mut |member| take(Edge::Member, member));
            }
            Kind::Cell => {
                if let Some(value) = pointer(head.past(CELL)) {
                    take(Edge::Cell, value);
                }
            }
            Kind::Function => self.references_of_function(at, take),
            Kind::Method => {
                for (edge, field) in
                    [(Edge::Part, METHOD_FUNCTION), (Edge::SelfOfMethod, METHOD_SELF)]
                {
                    if let Some(value) = pointer(head.past(field)) {
                        take(edge, value);
                    }
                }
            }
            Kind::Generator => {
                if let Some(frame) = self.frame_of_generator(at) {
                    let locals = self.locals_of_frame(frame, &mut |local| {
                        take(Edge::Local(local.name), local.value);
                    });
                    let mut stack = self.stack_of_frame(frame, locals).unwrap_or_default();
                    // A coroutine that waits has what it waits for on top.
                    let awaited = match &*object.class.name {
                        "coroutine" => stack.pop(),
                        _ => None,
                    };
                    for value in stack {
                        take(Edge::Field("<stack>"), value);
                    }
                    if let Some(awaited) = awaited {
                        take(Edge::Field("cr_await"), awaited);
                    }
                }
            }
            Kind::Frame => {
                if let Some((frame, _)) = self.frame_of_object(at) {
                    self.locals_of_frame(frame, &mut |local| {
                        take(Edge::Local(local.name), local.value);
                    });
                }
            }
            Kind::Module => {
                if let Ok(dict) = dicts::of_module(memory, &self.layout, at) {
                    take(Edge::Part, dict);
                }
            }
            Kind::Text => {}
            Kind::Type | Kind::Instance | Kind::Other => {}
        }
        if matches!(object.class.kind, Kind::Type) {
            if let Some(class) = self.class_at(at)
                && class.dict.is_plausible()
            {
                take(Edge::Part, class.dict);
            }
        } else {
            for (part, name) in object.class.parts(head) {
                if let Some(to) = pointer(part) {
                    take(Edge::Field(name), to);
                }
            }
            for (index, to) in self.row_of(at, &object.class) {
                take(Edge::Item(index), to);
            }
            for (name, value) in self.slots_of(at, &object.class) {
                take(Edge::Slot(name), value);
            }
            for (name, value) in self.instance_entries(at, &object.class) {
                take(Edge::Attribute(name), value);
            }
        }
    }

    fn references_of_function(&self, at: Addr, take: &mut dyn FnMut(Edge, Addr)) {
        let heap = &self.layout.heap;
        let pointer = |field: Field<Addr>| {
            let to = self.memory().pointer(field.in_target(at)).ok();
            to.filter(|to| to.is_plausible())
        };
        if let Some(defaults) = pointer(heap.function_defaults) {
            take(Edge::Default, defaults);
        }
        if let Some(defaults) = pointer(heap.function_kwdefaults) {
            take(Edge::KeywordDefault, defaults);
        }
        if let Some(closure) = pointer(heap.function_closure) {
            take(Edge::Closure, closure);
        }
        for part in [heap.function_globals, heap.function_dict, heap.function_code] {
            if let Some(to) = pointer(part) {
                take(Edge::Part, to);
            }
        }
    }
}
