//! Finds the backward pass's thread-local variables. Exported functions read them by the same code
//! since PyTorch 2.1: `lea GOT(%rip), %rdi; call __tls_get_addr`, a displacement. At GOT are the
//! module's id and an offset. Other code is refused.

use crate::abi::AutogradInfo;
use crate::target::{
    Addr, LoadedObject, Mappings, Memory, MemoryError, ObjectError, Process, ProcessError,
};

const PEEK: &str = "_ZN2at15sequence_number4peekEv";
const INCREMENT: &str = "_ZN2at15sequence_number17get_and_incrementEv";
const THREAD_NUMBER: &str = "_ZN2at14RecordFunction15currentThreadIdEv";
const CURRENT_NODE: &str = "_ZN5torch8autograd16get_current_nodeEv";
const CURRENT_TASK: &str = "_ZN5torch8autograd25get_current_graph_task_idEv";
/// `Engine::execute_with_graph_task`: up to 2.12 with nodes in `std::shared_ptr`, since in
/// `c10::intrusive_ptr`.
const EXECUTE_SHARED: &str = "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11InputBufferE";
const EXECUTE_INTRUSIVE: &str = "_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE";
/// Its index, after a hidden result argument and `this`.
const GRAPH_TASK_ARGUMENT: u8 = 2;

const READ: usize = 96;
const LEA_RDI: &[u8] = &[0x48, 0x8d, 0x3d];
const CALL_SLOT: &[u8] = &[0xff, 0x15];
const ADD_RAX: &[u8] = &[0x48, 0x05];
const CALL: u8 = 0xe8;
const RETURN: u8 = 0xc3;

/// torch/csrc/autograd/function.h, python_function.h.
struct BackwardLayout {
    sequence: u32,
    thread: u32,
    object: u32,
}
const SHARED_NODE: BackwardLayout = BackwardLayout { sequence: 24, thread: 48, object: 472 };
const INTRUSIVE_NODE: BackwardLayout = BackwardLayout { sequence: 16, thread: 40, object: 112 };

/// Why the backward pass cannot be traced.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum BackwardError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("cannot read {what}: {source}")]
    Memory { what: &'static str, source: MemoryError },
    #[error("libtorch_cpu is still being loaded")]
    StillLoading,
    #[error("{function} of libtorch_cpu differs from that of any known PyTorch ({found})")]
    Unknown { function: &'static str, found: String },
}

/// How a kernel program traces the backward pass.
pub fn autograd_info(process: &Process) -> Result<Option<AutogradInfo>, BackwardError> {
    let memory = process.memory();
    let mappings = process.mappings()?;
    let wanted = |name: &str| name.starts_with("libtorch_cpu.so");
    let Some(library) = LoadedObject::find(&memory, &mappings, wanted).transpose()? else {
        return Ok(None);
    };
    let code = LibraryCode { memory: &memory, library: &library };
    let sequence = code.value("at::sequence_number::peek", PEEK)?;
    let thread_number = code.value("at::RecordFunction::currentThreadId", THREAD_NUMBER)?;
    let node = code.behind_slot("torch::autograd::get_current_node", CURRENT_NODE)?;
    // Without it, backward()'s caller is the main thread.
    let task = code.behind_slot("torch::autograd::get_current_graph_task_id", CURRENT_TASK).ok();
    if sequence.module != node.module || sequence.module != thread_number.module {
        return Err(BackwardError::Unknown {
            function: "the thread-local storage",
            found: format!("modules {}, {}", sequence.module, node.module),
        });
    }
    let shared = library.exported(&memory, EXECUTE_SHARED)?;
    let execute = match shared {
        Some(at) => Some(at),
        None => library.exported(&memory, EXECUTE_INTRUSIVE)?,
    };
    let layout = if shared.is_some() { SHARED_NODE } else { INTRUSIVE_NODE };
    Ok(Some(AutogradInfo {
        module: sequence.module,
        node: node.offset,
        graph_task: task.filter(|task| task.module == node.module).map(|task| task.offset),
        sequence: sequence.offset,
        thread_number: thread_number.offset,
        node_sequence: layout.sequence,
        node_thread: layout.thread,
        py_node: py_node(process, &memory, &mappings),
        node_object: layout.object,
        sequence_site: code.call_site("at::sequence_number::get_and_increment", INCREMENT)?,
        execute: execute.map(|at| (at.0, GRAPH_TASK_ARGUMENT)),
    }))
}

/// vtable pointer of Python nodes. Wheels keep the symbol; otherwise the first such node shows it.
fn py_node(process: &Process, memory: &dyn Memory, mappings: &Mappings) -> Option<u64> {
    /// Objects point this far into a vtable.
    const ADDRESS_POINT: u64 = 16;
    let wanted = |name: &str| name.starts_with("libtorch_python.so");
    let library = LoadedObject::find(memory, mappings, wanted)?.ok()?;
    let vtable = library.symbol(process, memory, "_ZTVN5torch8autograd6PyNodeE").ok()?;
    Some((vtable + ADDRESS_POINT).0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TlsVariable {
    module: u64,
    offset: u64,
}

struct LibraryCode<'a> {
    memory: &'a dyn Memory,
    library: &'a LoadedObject,
}

impl LibraryCode<'_> {
    fn function(
        &self,
        function: &'static str,
        symbol: &str,
    ) -> Result<(Addr, Vec<u8>), BackwardError> {
        let missing =
            || BackwardError::Unknown { function, found: "it is not exported".to_owned() };
        let at = self.library.exported(self.memory, symbol)?.ok_or_else(missing)?;
        Ok((at, self.read(function, at, READ)?))
    }

    fn read(&self, what: &'static str, at: Addr, len: usize) -> Result<Vec<u8>, BackwardError> {
        self.memory.vec(at, len).map_err(|source| BackwardError::Memory { what, source })
    }

    fn value(&self, function: &'static str, symbol: &str) -> Result<TlsVariable, BackwardError> {
        let (at, code) = self.function(function, symbol)?;
        let unknown = || unknown(function, &code);
        let access = TlsAccess::find(&code).ok_or_else(unknown)?;
        let displacement = load_displacement(&code[access.after..]).ok_or_else(unknown)?;
        self.variable(function, at, &access, displacement)
    }

    /// The variable whose address the first callee behind a slot returns.
    fn behind_slot(
        &self,
        function: &'static str,
        symbol: &str,
    ) -> Result<TlsVariable, BackwardError> {
        let (at, code) = self.function(function, symbol)?;
        let call = find(&code, CALL_SLOT).ok_or_else(|| unknown(function, &code))?;
        let slot = relative(at, &code, call + CALL_SLOT.len());
        let slot = slot.ok_or_else(|| unknown(function, &code))?;
        let pointer = self.memory.pointer(slot);
        let getter = pointer.map_err(|source| BackwardError::Memory { what: function, source })?;
        if getter == Addr(0) {
            return Err(BackwardError::StillLoading);
        }
        let code = self.read(function, getter, READ)?;
        let unknown = || unknown(function, &code);
        let access = TlsAccess::find(&code).ok_or_else(unknown)?;
        let rest = &code[access.after..];
        let end = rest.iter().position(|&b| b == RETURN).ok_or_else(unknown)?;
        let displacement = match find(&rest[..end], ADD_RAX) {
            Some(add) => i32_at(rest, add + ADD_RAX.len()).ok_or_else(unknown)?,
            None => 0,
        };
        self.variable(function, getter, &access, displacement)
    }

    fn variable(
        &self,
        function: &'static str,
        at: Addr,
        access: &TlsAccess,
        displacement: i32,
    ) -> Result<TlsVariable, BackwardError> {
        let words = at + (access.got_from as u64).wrapping_add(access.got_to as i64 as u64);
        let words = self.read(function, words, 16)?;
        let word = |at: usize| {
            words.get(at..).and_then(|w| w.first_chunk()).map_or(0, |w| u64::from_le_bytes(*w))
        };
        let (module, offset) = (word(0), word(8).wrapping_add(displacement as i64 as u64));
        match module {
            // The loader's module ids begin at 1.
            0 => Err(BackwardError::StillLoading),
            _ => Ok(TlsVariable { module, offset }),
        }
    }

    /// Opcode of the `__tls_get_addr` call. The kernel emulates calls; single-stepping other
    /// instructions costs fifteen times more.
    fn call_site(&self, function: &'static str, symbol: &str) -> Result<u64, BackwardError> {
        let (at, code) = self.function(function, symbol)?;
        let access = TlsAccess::find(&code).ok_or_else(|| unknown(function, &code))?;
        Ok((at + access.call as u64).0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TlsAccess {
    got_from: usize,
    got_to: i32,
    call: usize,
    after: usize,
}

impl TlsAccess {
    /// `lea GOT(%rip), %rdi`, up to three prefix bytes, `call`.
    fn find(code: &[u8]) -> Option<TlsAccess> {
        let lea = find(code, LEA_RDI)?;
        let got_from = lea + LEA_RDI.len() + 4;
        let got_to = i32_at(code, lea + LEA_RDI.len())?;
        let call = got_from + code.get(got_from..got_from + 4)?.iter().position(|&b| b == CALL)?;
        Some(TlsAccess { got_from, got_to, call, after: call + 5 })
    }
}

/// `mov DISPLACEMENT(%rax), REGISTER`.
fn load_displacement(code: &[u8]) -> Option<i32> {
    let [rex, opcode, place, short, ..] = *code else { return None };
    if !matches!(rex, 0x48 | 0x4c) || opcode != 0x8b || place & 7 != 0 {
        return None;
    }
    match place >> 6 {
        0 => Some(0),
        1 => Some(i32::from(short as i8)),
        2 => i32_at(code, 3),
        _ => None,
    }
}

fn relative(at: Addr, code: &[u8], from: usize) -> Option<Addr> {
    let displacement = i32_at(code, from)?;
    Some(at + (from as u64 + 4).wrapping_add(displacement as i64 as u64))
}

fn i32_at(code: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(*code.get(at..)?.first_chunk()?))
}

fn find(code: &[u8], wanted: &[u8]) -> Option<usize> {
    code.windows(wanted.len()).position(|window| window == wanted)
}

fn unknown(function: &'static str, code: &[u8]) -> BackwardError {
    let bytes: Vec<String> = code.iter().take(32).map(|b| format!("{b:02x}")).collect();
    BackwardError::Unknown { function, found: bytes.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `at::sequence_number::peek` of 2.11 (local-dynamic) and 2.7 (general-dynamic).
    const LOCAL: &[u8] = &[
        0x48, 0x83, 0xec, 0x08, 0x48, 0x8d, 0x3d, 0x5d, 0x28, 0x52, 0x13, 0xe8, 0x40, 0x60, 0x69,
        0xff, 0x48, 0x8b, 0x80, 0x30, 0x01, 0x00, 0x00, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    const GENERAL: &[u8] = &[
        0x48, 0x83, 0xec, 0x08, 0x66, 0x48, 0x8d, 0x3d, 0x10, 0x00, 0x00, 0x00, 0x66, 0x66, 0x48,
        0xe8, 0x40, 0x60, 0x69, 0xff, 0x48, 0x8b, 0x00, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];

    #[test]
    fn both_tls_access_forms_are_recognised() {
        let local = TlsAccess::find(LOCAL).unwrap();
        assert_eq!((local.got_from, local.got_to, local.call), (11, 0x1352_285d, 11));
        assert_eq!(load_displacement(&LOCAL[local.after..]), Some(0x130));
        let general = TlsAccess::find(GENERAL).unwrap();
        assert_eq!((general.got_from, general.got_to, general.call), (12, 0x10, 15));
        assert_eq!(load_displacement(&GENERAL[general.after..]), Some(0));
    }

    #[test]
    fn other_code_is_refused() {
        assert_eq!(TlsAccess::find(&LOCAL[5..]), None);
        let mut without_call = LOCAL.to_vec();
        without_call[11] = 0x90;
        assert_eq!(TlsAccess::find(&without_call), None);
        assert_eq!(load_displacement(&[0x48, 0x89, 0x80, 0, 0, 0, 0]), None);
    }
}
