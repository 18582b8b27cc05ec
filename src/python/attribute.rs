//! Reads one integer attribute repeatedly.

use super::dicts;
use super::heap::ObjectHeap;
use super::objects::small_int;
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Addr, Memory, PageCache, Process};

const ATTEMPTS: u32 = 3;

/// An integer in an object's `__dict__`.
pub struct IntegerAttribute {
    process: Process,
    interpreter: Interpreter,
    object: Addr,
    class: Addr,
    name: &'static str,
    integer: Option<Addr>,
}

impl IntegerAttribute {
    pub(super) fn new(
        process: Process,
        interpreter: Interpreter,
        object: u64,
        name: &'static str,
    ) -> Option<IntegerAttribute> {
        let object = Addr(object);
        let type_of = interpreter.layout.object.type_of;
        let memory = process.memory();
        let class = (&memory as &dyn Memory).pointer(type_of.in_target(object)).ok()?;
        Some(IntegerAttribute { process, interpreter, object, class, name, integer: None })
    }

    /// `id(object)`.
    pub fn object(&self) -> u64 {
        self.object.0
    }

    /// `None` if the object is gone or the value no integer from 0 to 2⁶⁰.
    pub fn read(&mut self) -> Option<u64> {
        (0..ATTEMPTS).find_map(|_| self.value())
    }

    fn value(&mut self) -> Option<u64> {
        let memory = self.process.memory();
        let memory: &dyn Memory = &memory;
        let layout = &self.interpreter.layout;
        let class_of = |at: Addr| memory.pointer(layout.object.type_of.in_target(at)).ok();
        let reference = || {
            (class_of(self.object)? == self.class).then_some(())?;
            let entries = dicts::attributes(memory, layout, self.object).ok()?;
            dicts::get(memory, layout, &entries, self.name)
        };
        let before = reference()?;
        let class = class_of(before)?;
        if self.integer.is_none() {
            let copy = PageCache::new(Box::new(self.process.memory()));
            let heap = ObjectHeap::unlisted(&copy, &self.interpreter);
            let is_integer = heap.class_of(before).is_some_and(|class| &*class.name == "int");
            is_integer.then_some(())?;
        }
        (class == *self.integer.get_or_insert(class)).then_some(())?;
        let value = small_int(memory, &layout.object, before).ok()?;
        (reference()? == before).then_some(value)
    }
}
