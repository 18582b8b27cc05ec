//! Local variables of running frames and suspended generators.

use rustc_hash::FxHashSet;

use super::super::objects::bytes;
use super::{ClassKind, ObjectHeap};
use crate::python::layouts::{EntryFrame, GeneratorFrame, LocalNames};
use crate::python::stacks::thread_states;
use crate::target::{Addr, Field};

const MAX_FRAMES: usize = 100_000;
const MAX_STACK: u32 = 1024;
const MAX_KINDS_LEN: usize = 1 << 20;
const STACK: &str = "<stack>";
/// `CO_FAST_CELL`, `CO_FAST_FREE` (Include/internal/pycore_code.h).
const IN_CELL: u8 = 0x40 | 0x80;
/// Tag bits of a `_PyStackRef` (3.14+).
pub(in crate::python) const TAG: u64 = 3;
/// `PyCellObject.ob_ref` (3.8 to 3.15).
pub(super) const CELL: Field<Addr> = Field::at(16);

/// A local variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalVariable {
    /// Qualified since 3.11.
    pub function: String,
    /// Its file.
    pub file: String,
    /// The variable.
    pub name: String,
    /// The referenced object.
    pub value: Addr,
    /// Its frame's `PyThreadState`; null for a suspended generator.
    pub thread: Addr,
    pub(in crate::python) frame: Addr,
    /// Where the reference is: in the frame or a cell.
    pub(in crate::python) slot: Addr,
    pub(in crate::python) cell_at: Option<Addr>,
    /// It may be of another moment than the snapshot.
    pub is_torn: bool,
}

/// What has a variable's reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableHolder {
    /// A frame, which is an object up to Python 3.10.
    Frame(Addr),
    /// A cell.
    Cell(Addr),
    /// A frame that only borrows it (since 3.14): it does not count.
    Borrowed,
}

impl ObjectHeap<'_> {
    /// `None` if unreadable.
    pub fn holder_of(&self, local: &LocalVariable) -> Option<VariableHolder> {
        if let Some(cell) = local.cell_at {
            return Some(VariableHolder::Cell(Addr(self.memory().pointer(cell).ok()?.0 & !TAG)));
        }
        let word = self.memory().u64(local.slot).ok()?;
        Some(match word & 1 {
            0 => VariableHolder::Frame(local.frame),
            _ => VariableHolder::Borrowed,
        })
    }

    /// Innermost frames first.
    pub fn locals(&self) -> Vec<LocalVariable> {
        let mut found = Vec::new();
        for thread in thread_states(self.memory(), &self.layout, self.runtime) {
            self.locals_of_thread(thread, &mut found);
        }
        found
    }

    /// Which `objects` are on stacks, such as a loop's iterator. Any equal word counts: some
    /// versions store no stack depth.
    pub fn held_on_stacks(&self, objects: &FxHashSet<Addr>) -> Vec<LocalVariable> {
        let mut found = Vec::new();
        for thread in thread_states(self.memory(), &self.layout, self.runtime) {
            self.each_frame(thread, &mut |frame, _| {
                self.held_on_stack(frame, thread, objects, &mut found);
            });
        }
        found
    }

    fn held_on_stack(
        &self,
        frame: Addr,
        thread: Addr,
        objects: &FxHashSet<Addr>,
        found: &mut Vec<LocalVariable>,
    ) -> Option<()> {
        let (memory, code) = (self.memory(), self.code_of_frame(frame)?);
        let locals = self.locals_of_frame(frame, &mut |_| {})? as u64;
        let size = memory.u32(self.layout.stack_size().in_target(code)).ok()?;
        let first = frame + self.layout.heap.frame_locals as u64 + 8 * locals;
        let stack = memory.vec(first, 8 * size.min(MAX_STACK) as usize).ok()?;
        for (slot, value) in (0..).map(|n| first + 8 * n).zip(stack.chunks_exact(8)) {
            let value = Addr(Field::<u64>::at(0).get(value)? & !TAG);
            if objects.contains(&value) {
                found.push(LocalVariable {
                    function: self.text_of_code(code, self.layout.code.name)?,
                    file: self.text_of_code(code, self.layout.code.file)?,
                    name: STACK.to_owned(),
                    value,
                    thread,
                    frame,
                    slot,
                    cell_at: None,
                    is_torn: false,
                });
            }
        }
        Some(())
    }

    /// Name of a function or generator; qualified since 3.11.
    pub fn name_of_code(&self, at: Addr) -> Option<String> {
        let code = match self.class_of(at)?.kind {
            ClassKind::Function => {
                self.memory().pointer(self.layout.heap.function_code.in_target(at)).ok()?
            }
            ClassKind::Generator => self.code_of_frame(self.frame_of_generator(at)?)?,
            _ => return None,
        };
        self.text_of_code(code, self.layout.code.name)
    }

    fn locals_of_thread(&self, thread: Addr, found: &mut Vec<LocalVariable>) {
        self.each_frame(thread, &mut |frame, is_torn| {
            self.locals_of_frame(frame, &mut |local| {
                let is_torn = is_torn || local.is_torn;
                found.push(LocalVariable { thread, is_torn, ..local });
            });
        });
    }

    /// Passes on whether a torn link led to the frame.
    fn each_frame(&self, thread: Addr, take: &mut dyn FnMut(Addr, bool)) {
        let memory = self.memory();
        let layout = &self.layout;
        let pointer =
            |field: Field<Addr>, at: Addr| memory.pointer(field.in_target(at)).unwrap_or_default();
        let torn_before = self.memory().torn_reads();
        let mut frame = pointer(layout.thread.head, thread);
        if let Some(through) = layout.thread.head_through
            && frame != Addr(0)
        {
            frame = pointer(through, frame);
        }
        let mut is_torn = self.memory().torn_reads() > torn_before;
        for _ in 0..MAX_FRAMES {
            if !frame.is_plausible() {
                break;
            }
            take(frame, is_torn);
            let (previous, is_link_torn) =
                memory.noting_torn(|| pointer(layout.frame.previous, frame));
            (frame, is_torn) = (previous, is_torn || is_link_torn);
        }
    }

    /// Returns the number of variable slots; stack values follow.
    pub(super) fn locals_of_frame(
        &self,
        frame: Addr,
        take: &mut dyn FnMut(LocalVariable),
    ) -> Option<usize> {
        let torn_before = self.memory().torn_reads();
        let memory = self.memory();
        let layout = &self.layout;
        if let EntryFrame::Shim { owner, from } = layout.frame.entry
            && memory.bytes::<1>(owner.in_target(frame)).ok()?[0] >= from
        {
            return None;
        }
        let code = self.code_of_frame(frame)?;
        let function = self.text_of_code(code, layout.code.name)?;
        let file = self.text_of_code(code, layout.code.file)?;
        let names = |field: Field<Addr>| {
            let tuple = memory.pointer(field.in_target(code)).ok()?;
            self.items_at(tuple, ClassKind::Tuple).ok()
        };
        let (names, kinds) = match layout.heap.local_names {
            LocalNames::Together { names: at, kinds } => {
                let kinds = memory.pointer(kinds.in_target(code)).ok()?;
                (names(at)?, bytes(memory, &layout.object, kinds, MAX_KINDS_LEN).ok()??)
            }
            LocalNames::Apart { variables, cells, free } => {
                let (variables, cells, free) = (names(variables)?, names(cells)?, names(free)?);
                let mut kinds = vec![0; variables.len()];
                kinds.resize(variables.len() + cells.len() + free.len(), IN_CELL);
                ([variables, cells, free].concat(), kinds)
            }
        };
        let is_torn = memory.torn_reads() > torn_before;
        let slots = frame + layout.heap.frame_locals as u64;
        let values = memory.vec(slots, 8 * names.len()).ok()?;
        let slots = (0..).map(|n| slots + 8 * n);
        for (((name, kind), value), mut slot) in
            names.iter().zip(kinds).zip(values.chunks_exact(8)).zip(slots)
        {
            let mut value = Addr(Field::<u64>::at(0).get(value)? & !TAG);
            if value == Addr(0) {
                continue; // Unassigned or deleted.
            }
            let mut is_torn = is_torn || self.is_torn(slot);
            let mut cell_at = None;
            if kind & IN_CELL != 0
                && self.class_of(value).is_some_and(|c| c.kind == ClassKind::Cell)
            {
                cell_at = Some(slot);
                slot = layout.object.shift(CELL).in_target(value);
                value = memory.pointer(slot).unwrap_or_default();
                is_torn |= self.is_torn(slot);
            }
            if value.is_plausible()
                && let Some(name) = self.text(*name)
            {
                let (function, file) = (function.clone(), file.clone());
                let thread = Addr(0);
                take(LocalVariable {
                    function,
                    file,
                    name,
                    value,
                    thread,
                    frame,
                    slot,
                    cell_at,
                    is_torn,
                });
            }
        }
        Some(names.len())
    }

    /// Whether this word may be of another moment than the snapshot.
    fn is_torn(&self, word: Addr) -> bool {
        let (read, is_torn) = self.memory().noting_torn(|| self.memory().u64(word));
        read.is_err() || is_torn
    }

    fn code_of_frame(&self, frame: Addr) -> Option<Addr> {
        let code = self.memory().pointer(self.layout.frame.code.in_target(frame)).ok()?;
        let code = Addr(code.0 & !TAG);
        (&*self.class_of(code)?.name == "code").then_some(code)
    }

    fn text_of_code(&self, code: Addr, field: Field<Addr>) -> Option<String> {
        self.text(self.memory().pointer(field.in_target(code)).ok()?)
    }

    pub(super) fn frame_of_generator(&self, generator: Addr) -> Option<Addr> {
        match self.layout.heap.generator {
            GeneratorFrame::Inside(offset) => {
                Some(generator + offset as u64).filter(|frame| self.is_waiting(*frame))
            }
            GeneratorFrame::Pointer(field) => {
                let frame = self.memory().pointer(field.in_target(generator)).ok()?;
                frame.is_plausible().then_some(frame)
            }
        }
    }
}
