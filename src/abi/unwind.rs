//! What a program in the kernel has to know of a target to walk its stacks: addresses and offsets only.

/// A Python frame as a probe found it, not yet named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BpfFrame {
    /// Address of the code object, without tag bits.
    pub code: u64,
    /// Address of the next instruction, in the code object's own bytecode whichever thread's copy of it is executed, or
    /// (up to CPython 3.10) `f_lasti` as stored.
    pub instruction: u64,
    /// Owner byte of the frame; 0 where frames have none. On CPython 3.11, with native stacks: whether C code called it.
    pub owner: u8,
}

/// How to find the frames of the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnwindInfo {
    /// Address of the word that holds the first `PyThreadState` of the main interpreter.
    pub threads_head: u64,
    /// Address of the main thread's `PyThreadState`.
    pub main_thread: u64,
    /// Offset from `pthread_self()` to the word that holds the thread's own `PyThreadState`
    /// (the slot of `autoTSSkey`); `None` when it was not found: the list is searched instead.
    pub own_thread_slot: Option<u32>,
    /// `PyThreadState.next`.
    pub thread_next: u32,
    /// `PyThreadState.thread_id`: `pthread_self()`.
    pub thread_id: u32,
    /// `PyThreadState`: the innermost frame, or what leads to it.
    pub thread_head: u32,
    /// Where `thread_head` leads to a `_PyCFrame`: the innermost frame in that.
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
    /// Where frames that C code called are marked by a byte that is not 0 (CPython 3.11): which frames run in one call of the
    /// interpreter's C function.
    pub frame_entry: Option<u32>,
    /// Which thread's copy of the bytecode the frame executes, 0 for the code object's own (CPython 3.14+ without a GIL).
    pub frame_copy: Option<u32>,
    /// In a code object: pointer to the array of these copies, whose length comes first.
    pub code_copies: Option<u32>,
    /// In a code object: its own bytecode.
    pub code_bytecode: u32,
    /// Whether frames lie one after the other in pages (CPython 3.11+), so that one read of the page
    /// up to a frame has its callers too.
    pub contiguous: bool,
    /// In any object: pointer to its class.
    pub object_class: u32,
    /// Bytes of a code object that identify it: to be copied when it is first seen.
    pub code_len: u32,
    /// In it: pointer to its name.
    pub code_name: u32,
    /// In it: pointer to its file name.
    pub code_file: u32,
    /// In it: pointer to its line table.
    pub code_line_table: u32,
    /// Address of the function that every dying code object passes through (`PyCode_Type.tp_dealloc`);
    /// `None` when it is not known.
    pub code_dealloc: Option<u64>,
}

/// Where the counters of one device's allocator lie: `DeviceStats` of PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterAddresses {
    /// Address of `allocated_bytes.all.current`; `peak` follows it.
    pub allocated: u64,
    /// From there to `reserved_bytes.all.current`, in bytes.
    pub reserved: u32,
    /// From there to `active_bytes.all.current`, in bytes.
    pub active: u32,
    /// Address of the tables of allocated blocks, which all devices share; `None` before PyTorch 2.3.
    pub blocks: Option<u64>,
}

/// How to find the autograd node that the calling thread evaluates, and what created it.
///
/// Thread-local variables of libtorch_cpu are reached through glibc's DTV: block =
/// `*( *(fs + 8) + 16 * module )`, the variable lies at block + offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutogradInfo {
    /// TLS module id of libtorch_cpu.
    pub module: u64,
    /// Offset of `current_evaluating_node` (its first word is `Node*`).
    pub node: u64,
    /// Offset of `current_graph_task` (its first word is `GraphTask*`); `None` when it was not found.
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
    /// Address in the target at which to probe the creation of forward nodes: inside
    /// `at::sequence_number::get_and_increment()`, an instruction that uprobes emulate.
    pub sequence_site: u64,
    /// Address of `Engine::execute_with_graph_task`, and the number of the argument (0 = rdi, 1 = rsi,
    /// 2 = rdx) that points to a pointer to the `GraphTask`; `None` when it was not found.
    pub execute: Option<(u64, u8)>,
}
