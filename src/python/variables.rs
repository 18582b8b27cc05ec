//! Reads one integer variable repeatedly.

use std::time::{Duration, Instant};

use super::dicts;
use super::heap::{LocalVariable, ObjectHeap, TAG};
use super::objects::small_int;
use crate::abi::{CounterLocation, WatchedFrame, WatchedInteger};
use crate::python::layouts::interpreter::Interpreter;
use crate::target::{Addr, Memory, PageCache, Process};

const SEARCH_INTERVAL: Duration = Duration::from_millis(50);
/// Frames are missing while a call begins or ends.
const MAX_ATTEMPTS: u32 = 3;
const MAX_FRAMES: usize = 4096;

/// A variable of the outermost function that has it, or a global of the main module. A read value
/// existed during the read.
pub struct IntegerVariable {
    process: Process,
    interpreter: Interpreter,
    name: String,
    place: Option<VariableLocation>,
    searched: Option<Instant>,
    missed: u32,
    integer: Option<Addr>,
    /// Cached: there are thousands of modules.
    main: Option<Addr>,
}

#[derive(Debug, Clone, Copy)]
enum VariableLocation {
    Local { thread: Addr, frame: Addr, code: Addr, slot: Addr, cell_at: Option<Addr> },
    Global { dict: Addr, key: Addr },
}

impl IntegerVariable {
    pub(super) fn new(process: Process, interpreter: Interpreter, name: &str) -> IntegerVariable {
        IntegerVariable {
            process,
            interpreter,
            name: name.to_owned(),
            place: None,
            searched: None,
            missed: 0,
            integer: None,
            main: None,
        }
    }

    /// `None` if no running function has it, or it is no integer from 0 to 2⁶⁰.
    pub fn read(&mut self) -> Option<u64> {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(value) = self.place.and_then(|place| self.value(place)) {
                self.missed = 0;
                return Some(value);
            }
        }
        self.place = None;
        let now = Instant::now();
        if self.searched.is_some_and(|searched| now - searched < SEARCH_INTERVAL) {
            return None;
        }
        self.searched = Some(now);
        self.place = self.search();
        let value = self.place.and_then(|place| self.value(place));
        self.missed = if value.is_some() { 0 } else { self.missed.saturating_add(1) };
        value
    }

    /// Consecutive failed searches.
    pub fn searches_missed(&self) -> u32 {
        self.missed
    }

    /// Searches again at the next read.
    pub fn retry_now(&mut self) {
        self.searched = None;
    }

    /// Its location, for a kernel program; `None` if unknown or unreadable there.
    pub fn location(&self) -> Option<CounterLocation> {
        let memory = self.process.memory();
        let memory: &dyn Memory = &memory;
        let layout = &self.interpreter.layout;
        let object = &layout.object;
        // Assumed by `struct integer` in cuda/steps.bpf.h.
        let class = object.type_of.offset;
        if (object.int_len.offset, object.int_digits) != (class + 8, class + 16) {
            return None;
        }
        let (at, check_at, check, frame) = match self.place? {
            VariableLocation::Local { thread, frame, code, slot, cell_at } => {
                let (check_at, check) = match cell_at {
                    Some(cell_at) => (cell_at, memory.pointer(cell_at).ok()?),
                    None => (layout.frame.code.in_target(frame), code),
                };
                let frame = WatchedFrame { thread: thread.0, frame: frame.0 };
                (slot, check_at, check, Some(frame))
            }
            VariableLocation::Global { dict, key } => {
                let place = dicts::value_slot(memory, layout, dict, key).ok()??;
                (place.value_at, place.table_at, place.table, None)
            }
        };
        Some(CounterLocation::Integer(WatchedInteger {
            at: at.0,
            check_at: check_at.0,
            check: check.0,
            class: self.integer?.0,
            frame,
            size_bit: object.int_len_bit,
        }))
    }

    fn value(&self, place: VariableLocation) -> Option<u64> {
        let memory = self.process.memory();
        let memory: &dyn Memory = &memory;
        let layout = &self.interpreter.layout;
        let reference = || match place {
            VariableLocation::Local { thread, frame, code, slot, .. } => {
                // A finished frame keeps its last values.
                self.runs(memory, thread, frame).then_some(())?;
                (self.code(memory, frame)? == code).then_some(())?;
                Some(Addr(memory.pointer(slot).ok()?.0 & !TAG))
            }
            VariableLocation::Global { dict, key } => {
                let entries = dicts::entries(memory, layout, dict).ok()?;
                entries.into_iter().find(|(known, _)| *known == key).map(|(_, value)| value)
            }
        };
        let before = reference()?;
        let class = memory.pointer(layout.object.type_of.in_target(before)).ok()?;
        (Some(class) == self.integer).then_some(())?;
        let value = small_int(memory, &layout.object, before).ok()?;
        // A freed integer's memory may have been reused.
        (reference()? == before).then_some(value)
    }

    fn code(&self, memory: &dyn Memory, frame: Addr) -> Option<Addr> {
        let code = memory.pointer(self.interpreter.layout.frame.code.in_target(frame)).ok()?;
        Some(Addr(code.0 & !TAG))
    }

    fn runs(&self, memory: &dyn Memory, thread: Addr, frame: Addr) -> bool {
        let layout = &self.interpreter.layout;
        let pointer = |at: Addr| memory.pointer(at).ok().filter(|at| at.is_plausible());
        let mut at = pointer(layout.thread.head.in_target(thread));
        if let Some(through) = layout.thread.head_through {
            at = at.and_then(|at| pointer(through.in_target(at)));
        }
        for _ in 0..MAX_FRAMES {
            match at {
                Some(here) if here == frame => return true,
                Some(here) => at = pointer(layout.frame.previous.in_target(here)),
                None => return false,
            }
        }
        false
    }

    fn search(&mut self) -> Option<VariableLocation> {
        let copy = PageCache::new(Box::new(self.process.memory()));
        let heap = ObjectHeap::unlisted(&copy, &self.interpreter);
        let (wanted, function) = match self.name.rsplit_once(':') {
            Some((function, name)) => (name, Some(function)),
            None => (&*self.name, None),
        };
        let layout = &self.interpreter.layout;
        let memory: &dyn Memory = &copy;
        let is_integer = |value: Addr| {
            heap.class_of(value).is_some_and(|class| &*class.name == "int")
                && small_int(memory, &layout.object, value).is_ok()
        };
        let class_of = |value: Addr| memory.pointer(layout.object.type_of.in_target(value)).ok();
        let local = heap.locals().into_iter().rev().find(|local| {
            let function_fits = function.is_none_or(|wanted| {
                local.function == wanted || local.function.ends_with(&format!(".{wanted}"))
            });
            local.name == wanted && function_fits && is_integer(local.value)
        });
        if let Some(local) = local {
            self.integer = class_of(local.value);
            let LocalVariable { thread, frame, slot, cell_at, .. } = local;
            let code = self.code(memory, frame)?;
            return Some(VariableLocation::Local { thread, frame, code, slot, cell_at });
        }
        if function.is_some() {
            return None;
        }
        if self.main.is_none() {
            let found = heap.modules().into_iter().find(|(name, _)| name == "__main__");
            self.main = found.map(|(_, dict)| dict);
        }
        let dict = self.main?;
        let entries = dicts::entries(memory, layout, dict).ok()?;
        let named = |key: Addr| heap.text(key).is_some_and(|text| text == wanted);
        let (key, value) =
            entries.into_iter().find(|&(key, value)| named(key) && is_integer(value))?;
        self.integer = class_of(value);
        Some(VariableLocation::Global { dict, key })
    }
}
