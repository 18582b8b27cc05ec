//! The interpreters and their thread lists.

use rustc_hash::FxHashSet;

use crate::python::layouts::PythonLayout;
use crate::python::scatter_read::{ReadSlot, ScatterRead};
use crate::python::stacks::thread_states::{MAX_INTERPRETERS, MAX_THREADS};
use crate::target::{Addr, AddressRange, Field, Memory, MemoryError, Scalar};

const MAX_LIST_ATTEMPTS: usize = 8;

/// Maximum of `struct _gil_runtime_state`.
const GIL: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum ListError {
    Memory(&'static str, Addr, MemoryError),
    /// No interpreter yet, or no longer.
    NoInterpreter,
    Changing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct ThreadEntry {
    pub(in crate::python) at: Addr,
    pub(in crate::python) next: Addr,
    pub(in crate::python) python_id: u64,
    pub(in crate::python) os_id: Option<u64>,
    pub(in crate::python) identity: u64,
    /// Index; the last one is the main interpreter.
    pub(in crate::python) interpreter: usize,
    /// Another interpreter has a state with this id, which up to CPython 3.11 may be its
    /// creator's.
    pub(in crate::python) is_shared: bool,
}

/// Duplicates in sub-interpreters get their state's address as id.
pub(in crate::python) fn make_ids_unique(threads: &mut [ThreadEntry]) {
    let mut known = FxHashSet::default();
    let main = threads.last().map_or(0, |thread| thread.interpreter);
    for thread in threads.iter_mut().rev() {
        if !known.insert(thread.python_id) && thread.interpreter != main {
            (thread.python_id, thread.os_id, thread.is_shared) = (thread.at.0, None, true);
        }
    }
}

pub(in crate::python) fn thread_len(layout: &PythonLayout) -> usize {
    let thread = &layout.thread;
    [
        thread.next.end(),
        thread.interpreter.end(),
        thread.head.end(),
        thread.python_id.end(),
        thread.identity.end(),
        thread.os_id.map_or(0, Field::end),
    ]
    .into_iter()
    .max()
    .unwrap_or(0)
}

#[derive(Debug)]
struct InterpreterEntry {
    at: Addr,
    first_thread: Addr,
    next: Addr,
    gil: Option<Addr>,
    list_slot: ReadSlot,
    gil_slot: ReadSlot,
    generation_before: ReadSlot,
    generation_after: ReadSlot,
}

#[derive(Debug)]
pub(in crate::python) struct InterpreterList {
    runtime: Addr,
    interpreters: Vec<InterpreterEntry>,
    head_slot: ReadSlot,
}

impl InterpreterList {
    pub(in crate::python) fn new(runtime: Addr) -> InterpreterList {
        InterpreterList { runtime, interpreters: Vec::new(), head_slot: ReadSlot::default() }
    }

    /// The last interpreter in the list.
    pub(in crate::python) fn main(&self) -> Option<Addr> {
        self.interpreters.last().map(|interpreter| interpreter.at)
    }

    pub(in crate::python) fn gils(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let gils = self.interpreters.iter().filter_map(|interpreter| interpreter.gil);
        gils.map(|addr| AddressRange { addr, len: GIL })
    }

    pub(in crate::python) fn list(
        &mut self,
        memory: &dyn Memory,
        layout: &PythonLayout,
    ) -> Result<Vec<ThreadEntry>, ListError> {
        let mut last = ListError::Changing;
        for _ in 0..MAX_LIST_ATTEMPTS {
            match self.list_once(memory, layout) {
                // A freed state may be unmapped; the next attempt sees the new list.
                Err(fault @ ListError::Memory(_, _, MemoryError::Fault { .. })) => last = fault,
                Err(ListError::Changing) => last = ListError::Changing,
                other => return other,
            }
        }
        Err(last)
    }

    fn list_once(
        &mut self,
        memory: &dyn Memory,
        layout: &PythonLayout,
    ) -> Result<Vec<ThreadEntry>, ListError> {
        self.interpreters.clear();
        let mut places = Vec::new();
        let first = pointer(memory, "_PyRuntime", self.runtime, layout.runtime.interpreters_head)?;
        let mut at = first;
        while at != Addr(0) {
            if self.interpreters.len() == MAX_INTERPRETERS || !at.is_plausible() {
                return Err(ListError::Changing);
            }
            const WHAT: &str = "PyInterpreterState";
            let first_thread = pointer(memory, WHAT, at, layout.interpreter.threads_head)?;
            let next = pointer(memory, WHAT, at, layout.interpreter.next)?;
            let gil = match (layout.runtime.gil, layout.interpreter.gil) {
                (Some(offset), _) => Some(self.runtime + offset as u64),
                (None, Some(field)) => {
                    Some(pointer(memory, WHAT, at, field)?).filter(|gil| gil.is_plausible())
                }
                (None, None) => None,
            };
            let number = self.interpreters.len();
            list_threads(memory, layout, (at, number), first_thread, &mut places)?;
            self.interpreters.push(InterpreterEntry {
                at,
                first_thread,
                next,
                gil,
                list_slot: ReadSlot::default(),
                gil_slot: ReadSlot::default(),
                generation_before: ReadSlot::default(),
                generation_after: ReadSlot::default(),
            });
            at = next;
        }
        if self.interpreters.is_empty() {
            return Err(ListError::NoInterpreter);
        }
        Ok(places)
    }

    pub(in crate::python) fn push(&mut self, batch: &mut ScatterRead, layout: &PythonLayout) {
        let head = layout.runtime.interpreters_head;
        self.head_slot = batch.push(head.in_target(self.runtime), 8);
        let (from, len) = list_fields(layout);
        let (gil_from, gil_len) = gil_fields(layout);
        for interpreter in &mut self.interpreters {
            interpreter.list_slot = batch.push(interpreter.at + from as u64, len);
            if let Some(gil) = interpreter.gil {
                interpreter.gil_slot = batch.push(gil + gil_from as u64, gil_len);
            }
            if let Some(field) = layout.interpreter.code_generation {
                interpreter.generation_before = batch.push(field.in_target(interpreter.at), 8);
            }
        }
    }

    pub(in crate::python) fn push_generation(
        &mut self,
        batch: &mut ScatterRead,
        layout: &PythonLayout,
    ) {
        let Some(field) = layout.interpreter.code_generation else { return };
        for interpreter in &mut self.interpreters {
            interpreter.generation_after = batch.push(field.in_target(interpreter.at), 8);
        }
    }

    pub(in crate::python) fn unchanged(
        &self,
        batch: &ScatterRead,
        layout: &PythonLayout,
    ) -> Option<bool> {
        let (from, _) = list_fields(layout);
        let mut expected = Addr::decode(batch.get(self.head_slot)?)?;
        for interpreter in &self.interpreters {
            let bytes = batch.get(interpreter.list_slot)?;
            let first = within(bytes, layout.interpreter.threads_head, from)?;
            if interpreter.at != expected || first != interpreter.first_thread {
                return Some(false);
            }
            expected = within(bytes, layout.interpreter.next, from)?;
            if expected != interpreter.next {
                return Some(false);
            }
        }
        Some(expected == Addr(0))
    }

    pub(in crate::python) fn gil_holders(
        &self,
        batch: &ScatterRead,
        layout: &PythonLayout,
        holders: &mut Vec<Addr>,
    ) {
        let (from, _) = gil_fields(layout);
        for interpreter in &self.interpreters {
            let holder = interpreter.gil.and_then(|_| {
                let bytes = batch.get(interpreter.gil_slot)?;
                let locked = within(bytes, layout.gil.locked, from)?;
                // -1 before threads are used, 0 when released; `last_holder` persists.
                if locked == 1 { within(bytes, layout.gil.last_holder, from) } else { None }
            });
            if let Some(holder) = holder
                && !holders.contains(&holder)
            {
                holders.push(holder);
            }
        }
    }

    /// Counts before and after the frames; `None` if the version has none.
    pub(in crate::python) fn generations(
        &self,
        batch: &ScatterRead,
        layout: &PythonLayout,
    ) -> Option<[u64; 2]> {
        layout.interpreter.code_generation?;
        self.interpreters.iter().try_fold([0u64; 2], |[before, after], interpreter| {
            let count = |slot| u64::decode(batch.get(slot)?);
            Some([
                before.wrapping_add(count(interpreter.generation_before)?),
                after.wrapping_add(count(interpreter.generation_after)?),
            ])
        })
    }
}

fn list_fields(layout: &PythonLayout) -> (usize, usize) {
    spanning(layout.interpreter.next, layout.interpreter.threads_head)
}

fn gil_fields(layout: &PythonLayout) -> (usize, usize) {
    spanning(layout.gil.last_holder, layout.gil.locked)
}

fn spanning<A: Scalar, B: Scalar>(a: Field<A>, b: Field<B>) -> (usize, usize) {
    let from = a.offset.min(b.offset);
    (from, a.end().max(b.end()) - from)
}

fn within<T: Scalar>(bytes: &[u8], field: Field<T>, from: usize) -> Option<T> {
    Field::<T>::at(field.offset.checked_sub(from)?).get(bytes)
}

fn list_threads(
    memory: &dyn Memory,
    layout: &PythonLayout,
    (interpreter, number): (Addr, usize),
    first: Addr,
    places: &mut Vec<ThreadEntry>,
) -> Result<(), ListError> {
    const WHAT: &str = "PyThreadState";
    let thread = &layout.thread;
    let mut at = first;
    while at != Addr(0) {
        if places.len() == MAX_THREADS || !at.is_plausible() {
            return Err(ListError::Changing);
        }
        let bytes = memory
            .vec(at, thread_len(layout))
            .map_err(|error| ListError::Memory(WHAT, at, error))?;
        let place = (|| {
            Some(ThreadEntry {
                at,
                next: thread.next.get(&bytes)?,
                python_id: thread.python_id.get(&bytes)?,
                os_id: match thread.os_id {
                    Some(field) => Some(field.get(&bytes)?),
                    None => None,
                },
                identity: thread.identity.get(&bytes)?,
                interpreter: number,
                is_shared: false,
            })
        })()
        .ok_or(ListError::Changing)?;
        if thread.interpreter.get(&bytes) != Some(interpreter) {
            return Err(ListError::Changing);
        }
        places.push(place);
        at = place.next;
    }
    Ok(())
}

fn pointer(
    memory: &dyn Memory,
    what: &'static str,
    base: Addr,
    field: Field<Addr>,
) -> Result<Addr, ListError> {
    let at = field.in_target(base);
    memory.pointer(at).map_err(|error| ListError::Memory(what, at, error))
}
