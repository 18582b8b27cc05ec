//! Names stacks walked by a kernel program, which copies a code object when it first sees it and
//! reports freed ones. Until the next copy an address identifies one code object.

use rustc_hash::FxHashMap;

use crate::abi::{BpfFrame, UnwindInfo};
use crate::model::{Frame, FrameId, Function, FunctionId, StackId, StackNode, StackTable};
use crate::python::code::{BytecodeLocation, CodeLines, CodeObject};
use crate::python::error::InterpreterError;
use crate::python::layouts::interpreter::Interpreter;
use crate::python::layouts::{EntryFrame, InstructionLayout, PythonLayout};
use crate::python::module_names::{ModuleNames, module_calls};
use crate::python::objects::DecodeError;
use crate::python::stacks::thread_list::ThreadEntry;
use crate::target::{Addr, AddressRange, Field, Memory, MemoryError, MemoryImage, Process};

/// Thread-specific slots in glibc's `struct pthread` (nptl/descr.h).
const SLOTS: std::ops::Range<usize> = 0x100..0x910;
/// `tp_dealloc` (Include/cpython/object.h, 3.8 to 3.15).
const TYPE_DEALLOC: Field<Addr> = Field::at(48);

pub(in crate::python) fn unwind_info(
    memory: &dyn Memory,
    interpreter: &Interpreter,
    state: Addr,
    threads: &[ThreadEntry],
    pid: u32,
) -> Result<UnwindInfo, InterpreterError> {
    let layout = &interpreter.layout;
    let main = threads
        .last()
        .ok_or(InterpreterError::NotReady { pid, waiting_for: "it has no threads" })?;
    let offset = |offset: usize| offset as u32;
    let (frame_instruction, instruction_is_offset) = match layout.frame.instruction {
        InstructionLayout::Bytes(field) | InstructionLayout::Units(field) => {
            (offset(field.offset), true)
        }
        InstructionLayout::Pointer(field) => (offset(field.offset), false),
    };
    let frame_owner = match layout.frame.entry {
        EntryFrame::Shim { owner, .. } => Some(offset(owner.offset)),
        EntryFrame::Unmarked | EntryFrame::Flag(_) => None,
    };
    let frame_entry = match layout.frame.entry {
        EntryFrame::Flag(flag) => Some(offset(flag.offset)),
        EntryFrame::Unmarked | EntryFrame::Shim { .. } => None,
    };
    // If unreadable, freed code objects go unnoticed.
    let code_dealloc = interpreter
        .code_type
        .and_then(|class| memory.pointer(layout.object.shift(TYPE_DEALLOC).in_target(class)).ok())
        .filter(|function| function.is_plausible());
    Ok(UnwindInfo {
        threads_head: state.0 + layout.interpreter.threads_head.offset as u64,
        main_thread: main.at.0,
        own_thread_slot: own_thread_slot(memory, threads),
        thread_next: offset(layout.thread.next.offset),
        thread_id: offset(layout.thread.python_id.offset),
        thread_head: offset(layout.thread.head.offset),
        head_through: layout.thread.head_through.map(|field| offset(field.offset)),
        frame_code: offset(layout.frame.code.offset),
        frame_previous: offset(layout.frame.previous.offset),
        frame_instruction,
        instruction_is_offset,
        frame_owner,
        frame_entry,
        frame_copy: layout.frame.copy.map(|field| offset(field.offset)),
        code_copies: layout.code.copies.map(|field| offset(field.offset)),
        code_bytecode: offset(layout.code.instructions),
        contiguous: !instruction_is_offset,
        // Older frames are objects, whose variables are far from their head.
        frame_argument: (!instruction_is_offset).then(|| offset(layout.heap.frame_locals)),
        object_class: offset(layout.object.type_of.offset),
        code_len: offset(layout.code.len),
        code_name: offset(layout.code.name.offset),
        code_file: offset(layout.code.file.offset),
        code_line_table: offset(layout.code.line_table.offset),
        code_dealloc: code_dealloc.map(|function| function.0),
    })
}

/// Offset from `pthread_self()` to the slot of `autoTSSkey`: the first in which most threads store
/// their state. Other libraries (pybind11) use higher slots for some threads.
fn own_thread_slot(memory: &dyn Memory, threads: &[ThreadEntry]) -> Option<u32> {
    let mut votes: FxHashMap<usize, usize> = FxHashMap::default();
    for thread in threads {
        let Ok(block) = memory.vec(Addr(thread.python_id), SLOTS.end) else { continue };
        for at in SLOTS.step_by(8) {
            if Field::<Addr>::at(at).get(&block) == Some(thread.at) {
                *votes.entry(at).or_default() += 1;
            }
        }
    }
    let best = votes.into_iter().max_by_key(|&(at, votes)| (votes, std::cmp::Reverse(at)));
    best.map(|(at, _)| at as u32)
}

/// Names frames that a probe found.
pub struct StackSymbolizer {
    memory: Box<dyn Memory>,
    layout: PythonLayout,
    code_type: Option<Addr>,
    shims_from: u8,
    by_address: FxHashMap<u64, CopiedCode>,
    frames: Vec<(FrameId, u64)>,
    age: u32,
    process: Process,
    interpreter: Interpreter,
    modules: ModuleNames,
    /// By their order in [`Function::calls_module`].
    module_calls: [u64; 2],
    has_new_calls: bool,
}

struct CopiedCode {
    function: Function,
    number: Option<FunctionId>,
    lines: CodeLines,
    bytecode: BytecodeLocation,
    frames: FxHashMap<i64, FrameId>,
    used: u32,
}

impl StackSymbolizer {
    pub(in crate::python) fn new(process: Process, interpreter: &Interpreter) -> StackSymbolizer {
        StackSymbolizer {
            memory: Box::new(process.memory()),
            layout: interpreter.layout,
            code_type: interpreter.code_type,
            shims_from: match interpreter.layout.frame.entry {
                EntryFrame::Shim { from, .. } => from,
                EntryFrame::Unmarked | EntryFrame::Flag(_) => u8::MAX,
            },
            by_address: FxHashMap::default(),
            frames: Vec::new(),
            age: 0,
            process,
            interpreter: interpreter.clone(),
            modules: ModuleNames::default(),
            module_calls: [0; 2],
            has_new_calls: false,
        }
    }

    /// Takes a copied code object: ranges by address.
    pub fn add_code(&mut self, code: u64, spans: &[(u64, &[u8])]) {
        let mut copy = MemoryImage::default();
        for (at, bytes) in spans {
            copy.insert(Addr(*at), bytes);
        }
        let both = CachedMemory { copy, live: &*self.memory };
        match self.read(&both, Addr(code)) {
            Ok(known) => {
                self.on_module_call(code, &known.function);
                self.by_address.insert(code, known)
            }
            // Frames of the new object stay unknown.
            Err(_) => self.by_address.remove(&code),
        };
    }

    fn on_module_call(&mut self, code: u64, function: &Function) {
        let Some(number) = function.module_call() else { return };
        if let Some(known) = self.module_calls.get_mut(number) {
            *known = code;
            // Described again, so perhaps by another program, which does not know it.
            self.has_new_calls = true;
        }
    }

    /// Looks for the functions that call modules, until PyTorch is imported.
    pub fn find_module_calls(&mut self) {
        if self.module_calls == [0; 2]
            && let Some(codes) = module_calls(&self.process, &self.interpreter)
        {
            self.module_calls = codes;
        }
        self.has_new_calls = self.module_calls != [0; 2];
    }

    /// The code objects of functions that call modules, if one was copied since the last call.
    pub fn new_module_calls(&mut self) -> Option<[u64; 2]> {
        std::mem::take(&mut self.has_new_calls).then_some(self.module_calls)
    }

    fn read(&self, memory: &CachedMemory<'_>, at: Addr) -> Result<CopiedCode, DecodeError> {
        let object = CodeObject::read(memory, &self.layout, self.code_type, at)?;
        // What exceeds the copy comes from the live object, which must still be the copied one.
        let reached_beyond = !memory.has(object.name.at, object.name.stored.len())
            || !memory.has(object.file.at, object.file.stored.len())
            || !memory.has(object.table_at, object.table.len());
        if reached_beyond {
            let now = memory.live.vec(at, self.layout.code.len)?;
            let fields = &self.layout.code;
            let same = [fields.name, fields.file, fields.line_table]
                .iter()
                .all(|field| field.get(&now) == field.get(&object.head))
                && fields.first_line.get(&now) == fields.first_line.get(&object.head);
            if !same {
                return Err(DecodeError::Malformed);
            }
        }
        Ok(CopiedCode {
            function: object.function,
            number: None,
            lines: object.lines,
            bytecode: object.bytecode,
            frames: FxHashMap::default(),
            used: self.age,
        })
    }

    /// If more than `most` are known: those unused since the last such call.
    pub fn idle_codes(&mut self, most: usize) -> Vec<u64> {
        if self.by_address.len() <= most {
            return Vec::new();
        }
        let idle = self.by_address.iter().filter(|(_, known)| known.used < self.age);
        let idle = idle.map(|(code, _)| *code).collect();
        self.age += 1;
        idle
    }

    /// Each needs a new copy before its next use.
    pub fn forget_codes(&mut self, codes: &[u64]) {
        for code in codes {
            self.by_address.remove(code);
        }
    }

    /// Forgets all ids: the next stack has another table.
    pub fn forget_numbers(&mut self) {
        for known in self.by_address.values_mut() {
            known.number = None;
            known.frames.clear();
        }
    }

    /// Frames per call of the interpreter's C function. On CPython 3.11 probes must take native
    /// stacks.
    pub fn frames_by_call(&self, probed: &[BpfFrame]) -> Vec<u32> {
        let (mut calls, mut frames) = (Vec::new(), 0);
        for frame in probed {
            let is_shim = frame.owner >= self.shims_from;
            if !is_shim && frame.code != 0 {
                frames += 1;
            }
            let ends = match self.layout.frame.entry {
                EntryFrame::Unmarked => true,
                EntryFrame::Flag(_) => frame.owner != 0,
                EntryFrame::Shim { .. } => is_shim,
            };
            if ends && frames > 0 {
                calls.push(std::mem::take(&mut frames));
            }
        }
        if frames > 0 {
            calls.push(frames);
        }
        calls
    }

    /// `None` if a code object has no valid copy.
    pub fn stack(&mut self, probed: &[BpfFrame], table: &mut StackTable) -> Option<StackId> {
        self.frames.clear();
        for frame in probed.iter().filter(|f| f.code != 0 && f.owner < self.shims_from) {
            let known = self.by_address.get_mut(&frame.code)?;
            known.used = self.age;
            let instruction = match self.layout.frame.instruction {
                InstructionLayout::Pointer(_) => frame.instruction,
                InstructionLayout::Bytes(_) => i64::from(frame.instruction as i32) as u64,
                InstructionLayout::Units(_) => (i64::from(frame.instruction as i32) * 2) as u64,
            };
            let offset = known.bytecode.offset(instruction)?;
            let number =
                *known.number.get_or_insert_with(|| table.function(known.function.clone()));
            let lines = &known.lines;
            let id = *known
                .frames
                .entry(offset)
                .or_insert_with(|| table.frame(Frame { function: number, line: lines.at(offset) }));
            let module = if known.function.calls_module() { frame.module } else { 0 };
            self.frames.push((id, module));
        }
        let mut parent = None;
        let mut outer = None;
        for &(frame, module) in self.frames.iter().rev() {
            let name = match module {
                0 => None,
                at => {
                    outer = outer.or(Some(at));
                    self.modules.name(&*self.memory, &self.layout, outer.unwrap_or(at), at)
                }
            };
            let module = name.map(|name| table.module_name(&name));
            parent = Some(table.node(StackNode { parent, frame, module }));
        }
        parent
    }
}

struct CachedMemory<'a> {
    copy: MemoryImage,
    live: &'a dyn Memory,
}

impl CachedMemory<'_> {
    fn has(&self, at: Addr, len: usize) -> bool {
        self.copy.read(at, &mut vec![0; len]).is_ok()
    }
}

impl Memory for CachedMemory<'_> {
    fn read_spans(&self, spans: &[AddressRange], out: &mut [u8]) -> Result<(), MemoryError> {
        let mut from = 0;
        for (index, span) in spans.iter().enumerate() {
            let part = out.get_mut(from..from + span.len);
            let part = part.ok_or(MemoryError::Fault { span: *span, index })?;
            if self.copy.read(span.addr, part).is_err() {
                self.live.read(span.addr, part)?;
            }
            from += span.len;
        }
        Ok(())
    }
}
