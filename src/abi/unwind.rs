//! What the kernel program needs to walk stacks.

/// An unnamed Python frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BpfFrame {
    /// The code object, without tag bits.
    pub code: u64,
    /// Address of the next instruction in the original bytecode, even if a copy runs; `f_lasti` up
    /// to CPython 3.10.
    pub instruction: u64,
    /// The `torch.nn.Module` that it calls, or 0.
    pub module: u64,
    /// Owner byte, or 0. For native stacks on CPython 3.11: whether C code called it.
    pub owner: u8,
}

/// Finds the calling thread's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnwindInfo {
    /// Address of the pointer to the main interpreter's first `PyThreadState`.
    pub threads_head: u64,
    /// The main thread's `PyThreadState`.
    pub main_thread: u64,
    /// Offset from `pthread_self()` to the slot of `autoTSSkey`, the thread's `PyThreadState`;
    /// `None`: search the list.
    pub own_thread_slot: Option<u32>,
    /// `PyThreadState.next`.
    pub thread_next: u32,
    /// `PyThreadState.thread_id`: `pthread_self()`.
    pub thread_id: u32,
    /// Leads to the innermost frame.
    pub thread_head: u32,
    /// The head in a `_PyCFrame`, if any.
    pub head_through: Option<u32>,
    /// Code object in a frame; low bits may be a tag.
    pub frame_code: u32,
    /// The caller in a frame.
    pub frame_previous: u32,
    /// The instruction in a frame.
    pub frame_instruction: u32,
    /// A 32-bit offset (up to CPython 3.10), not an address.
    pub instruction_is_offset: bool,
    /// The owner byte.
    pub frame_owner: Option<u32>,
    /// Not 0 in the outermost frame of a call of the interpreter's C function (CPython 3.11).
    pub frame_entry: Option<u32>,
    /// Bytecode copy, or 0 (CPython 3.14+ without a GIL).
    pub frame_copy: Option<u32>,
    /// In a code object: array of copies, after its length.
    pub code_copies: Option<u32>,
    /// In a code object: original bytecode.
    pub code_bytecode: u32,
    /// Frames are consecutive (CPython 3.11+): a page read up to a frame includes its
    /// callers.
    pub contiguous: bool,
    /// The first argument in a frame; `None` up to CPython 3.10.
    pub frame_argument: Option<u32>,
    /// In any object: its class.
    pub object_class: u32,
    /// Bytes that identify a code object.
    pub code_len: u32,
    /// In them: its name.
    pub code_name: u32,
    /// In them: its file name.
    pub code_file: u32,
    /// In them: its line table.
    pub code_line_table: u32,
    /// Address of `PyCode_Type.tp_dealloc`, if known.
    pub code_dealloc: Option<u64>,
}

/// One device's `DeviceStats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterAddresses {
    /// Address of `allocated_bytes.all.current`; `peak` follows.
    pub allocated: u64,
    /// Bytes from there to `reserved_bytes.all.current`.
    pub reserved: u32,
    /// Bytes from there to `active_bytes.all.current`.
    pub active: u32,
    /// Address of the tables of allocated blocks; `None` before PyTorch 2.3.
    pub blocks: Option<u64>,
}

/// Finds the autograd node that the calling thread evaluates, and its creator. A variable is found
/// through glibc's DTV: `*( *(fs + 8) + 16 * module ) + offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutogradInfo {
    /// TLS module id of libtorch_cpu.
    pub module: u64,
    /// Offset of `current_evaluating_node`, which begins with a `Node*`.
    pub node: u64,
    /// Offset of `current_graph_task`, which begins with a `GraphTask*`.
    pub graph_task: Option<u64>,
    /// Offset of `at::sequence_number`'s counter.
    pub sequence: u64,
    /// Offset of RecordFunction's `current_thread_id_`.
    pub thread_number: u64,
    /// `Node::sequence_nr_`.
    pub node_sequence: u32,
    /// `Node::thread_id_`.
    pub node_thread: u32,
    /// vtable pointer of `torch::autograd::PyNode`, once known.
    pub py_node: Option<u64>,
    /// In `PyNode`: its `THPFunction`.
    pub node_object: u32,
    /// Probed for new nodes: an instruction of `at::sequence_number::get_and_increment()` that
    /// uprobes emulate.
    pub sequence_site: u64,
    /// `Engine::execute_with_graph_task`, and its argument (0 = rdi, 1 = rsi, 2 = rdx) that points
    /// to a `GraphTask` pointer.
    pub execute: Option<(u64, u8)>,
}
