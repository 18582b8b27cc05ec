//! What the kernel program needs to walk a target's stacks: addresses and offsets only.

/// An unnamed Python frame from a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BpfFrame {
    /// Address of the code object, without tag bits.
    pub code: u64,
    /// Address of the next instruction in the code object's own bytecode, even if a thread's copy
    /// is executed; up to CPython 3.10, `f_lasti` as stored.
    pub instruction: u64,
    /// Owner byte of the frame; 0 if frames have none. On CPython 3.11 with native stacks: whether
    /// C code called it.
    pub owner: u8,
}

/// How to find the frames of the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnwindInfo {
    /// Address of the pointer to the first `PyThreadState` of the main interpreter.
    pub threads_head: u64,
    /// Address of the main thread's `PyThreadState`.
    pub main_thread: u64,
    /// Offset from `pthread_self()` to the pointer to the thread's own `PyThreadState` (the slot of
    /// `autoTSSkey`); `None` if not found: then the list is searched.
    pub own_thread_slot: Option<u32>,
    /// `PyThreadState.next`.
    pub thread_next: u32,
    /// `PyThreadState.thread_id`: `pthread_self()`.
    pub thread_id: u32,
    /// `PyThreadState`: the innermost frame, or a pointer towards it.
    pub thread_head: u32,
    /// If `thread_head` points to a `_PyCFrame`: the innermost frame in it.
    pub head_through: Option<u32>,
    /// The code object in a frame; low bits may carry a tag.
    pub frame_code: u32,
    /// The caller's frame.
    pub frame_previous: u32,
    /// The instruction.
    pub frame_instruction: u32,
    /// Whether the instruction is a 32-bit offset (up to CPython 3.10), not an address.
    pub instruction_is_offset: bool,
    /// The owner byte.
    pub frame_owner: Option<u32>,
    /// The byte that is not 0 in frames called from C (CPython 3.11), which delimits the frames of
    /// one call of the interpreter's C function.
    pub frame_entry: Option<u32>,
    /// The thread's bytecode copy that the frame executes, 0 for the code object's own (CPython
    /// 3.14+ without a GIL).
    pub frame_copy: Option<u32>,
    /// In a code object: pointer to the array of these copies, which begins with its length.
    pub code_copies: Option<u32>,
    /// In a code object: its own bytecode.
    pub code_bytecode: u32,
    /// Whether frames are consecutive in pages (CPython 3.11+), so that one read of a page up to a
    /// frame includes its callers.
    pub contiguous: bool,
    /// In any object: pointer to its class.
    pub object_class: u32,
    /// Bytes that identify a code object, to copy when it is first seen.
    pub code_len: u32,
    /// In it: pointer to its name.
    pub code_name: u32,
    /// In it: pointer to its file name.
    pub code_file: u32,
    /// In it: pointer to its line table.
    pub code_line_table: u32,
    /// Address of the function that frees code objects (`PyCode_Type.tp_dealloc`); `None` if
    /// unknown.
    pub code_dealloc: Option<u64>,
}

/// Addresses of one device's allocator counters: PyTorch's `DeviceStats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterAddresses {
    /// Address of `allocated_bytes.all.current`; `peak` follows it.
    pub allocated: u64,
    /// From there to `reserved_bytes.all.current`, in bytes.
    pub reserved: u32,
    /// From there to `active_bytes.all.current`, in bytes.
    pub active: u32,
    /// Address of the tables of allocated blocks, which all devices share; `None` before PyTorch
    /// 2.3.
    pub blocks: Option<u64>,
}

/// How to find the autograd node that the calling thread evaluates, and its creator.
///
/// Thread-local variables of libtorch_cpu are reached through glibc's DTV: block = `*( *(fs + 8) +
/// 16 * module )`, variable = block + offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutogradInfo {
    /// TLS module id of libtorch_cpu.
    pub module: u64,
    /// Offset of `current_evaluating_node` (its first word is `Node*`).
    pub node: u64,
    /// Offset of `current_graph_task` (its first word is `GraphTask*`); `None` if not found.
    pub graph_task: Option<u64>,
    /// Offset of `at::sequence_number`'s counter.
    pub sequence: u64,
    /// Offset of RecordFunction's `current_thread_id_`.
    pub thread_number: u64,
    /// `Node::sequence_nr_`.
    pub node_sequence: u32,
    /// `Node::thread_id_`.
    pub node_thread: u32,
    /// vtable pointer of `torch::autograd::PyNode`; `None` while unknown.
    pub py_node: Option<u64>,
    /// `PyNode`: pointer to its `THPFunction` object.
    pub node_object: u32,
    /// Where to probe the creation of forward nodes: an instruction inside
    /// `at::sequence_number::get_and_increment()` that uprobes emulate.
    pub sequence_site: u64,
    /// Address of `Engine::execute_with_graph_task`, and the index of its argument (0 = rdi, 1 =
    /// rsi, 2 = rdx) that points to a pointer to the `GraphTask`; `None` if not found.
    pub execute: Option<(u64, u8)>,
}
