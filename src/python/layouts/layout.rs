//! CPython's structure layouts as data; the readers know no version. Values come from
//! [`rows`](crate::python::layouts::layout_tables) and `_Py_DebugOffsets`.

use std::fmt;

use crate::abi::ObjectHeader;
use crate::target::{Addr, Field, Scalar};

/// Source of structure offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutSource {
    /// `_Py_DebugOffsets` (CPython 3.13+), completed by the version's row.
    DebugOffsets,
    /// The version's row, printed from CPython's headers.
    Row,
    /// The py-spy crate reads the stacks.
    PySpy,
}

impl fmt::Display for LayoutSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LayoutSource::DebugOffsets => "by the offsets it publishes (_Py_DebugOffsets)",
            LayoutSource::Row => "by the offsets of its headers",
            LayoutSource::PySpy => "by the py-spy crate (slower, and torn stacks go unnoticed)",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct PythonLayout {
    pub(in crate::python) minor: u8,
    pub(in crate::python) free_threaded: bool,
    pub(in crate::python) runtime: RuntimeLayout,
    pub(in crate::python) interpreter: InterpreterLayout,
    pub(in crate::python) gil: GilLayout,
    pub(in crate::python) thread: ThreadLayout,
    pub(in crate::python) frame: FrameLayout,
    pub(in crate::python) code: CodeLayout,
    pub(in crate::python) object: ObjectLayout,
    pub(in crate::python) dict: DictLayout,
    pub(in crate::python) instance: InstanceLayout,
    pub(in crate::python) heap: HeapLayout,
    pub(in crate::python) error: ErrorLayout,
    pub(in crate::python) debug_offsets: Option<OffsetsLayout>,
}

impl PythonLayout {
    /// `co_stacksize`, just before `co_firstlineno`; up to 3.10 `co_flags` is between
    /// (Include/cpython/code.h).
    pub(in crate::python) const fn stack_size(&self) -> Field<u32> {
        let before = if self.minor >= 11 { 4 } else { 8 };
        Field::at(self.code.first_line.offset - before)
    }
}

/// `_PyRuntimeState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct RuntimeLayout {
    pub(in crate::python) interpreters_head: Field<Addr>,
    /// `None` if each interpreter has its own.
    pub(in crate::python) gil: Option<usize>,
}

/// `PyInterpreterState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct InterpreterLayout {
    pub(in crate::python) next: Field<Addr>,
    pub(in crate::python) threads_head: Field<Addr>,
    pub(in crate::python) gil: Option<Field<Addr>>,
    /// `sys.modules`.
    pub(in crate::python) modules: Field<Addr>,
    /// Changes when a code object is freed.
    pub(in crate::python) code_generation: Option<Field<u64>>,
}

/// `struct _gil_runtime_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct GilLayout {
    pub(in crate::python) last_holder: Field<Addr>,
    pub(in crate::python) locked: Field<i32>,
}

/// `PyThreadState`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct ThreadLayout {
    pub(in crate::python) next: Field<Addr>,
    pub(in crate::python) interpreter: Field<Addr>,
    /// Leads to the innermost frame.
    pub(in crate::python) head: Field<Addr>,
    /// The head in a `_PyCFrame` (3.11, 3.12).
    pub(in crate::python) head_through: Option<Field<Addr>>,
    /// `pthread_self()`.
    pub(in crate::python) python_id: Field<u64>,
    pub(in crate::python) os_id: Option<Field<u64>>,
    /// Differs between threads that reuse the memory.
    pub(in crate::python) identity: Field<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum InstructionLayout {
    /// Byte offset in the bytecode.
    Bytes(Field<i32>),
    /// Offset in two-byte units.
    Units(Field<i32>),
    /// Address in the code object.
    Pointer(Field<u64>),
}

/// How a frame shows that it saved its stack pointer, as before calling a Python function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum SavedStack {
    /// Not visible: 3.14+ does not clear it.
    Unknown,
    /// `stacktop`: -1 while the frame, or C code it calls, runs.
    Index(Field<i32>),
}

/// How a frame called from C is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum EntryFrame {
    Unmarked,
    /// `is_entry`.
    Flag(Field<u8>),
    /// Its caller is a shim on the C stack: no code, and an owner of at least `from`.
    Shim {
        owner: Field<u8>,
        from: u8,
    },
}

/// `PyFrameObject` up to 3.10, `_PyInterpreterFrame` since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct FrameLayout {
    pub(in crate::python) len: usize,
    /// Since 3.14 with a tag.
    pub(in crate::python) code: Field<Addr>,
    pub(in crate::python) previous: Field<Addr>,
    pub(in crate::python) instruction: InstructionLayout,
    /// A byte, and its value while on a stack.
    pub(in crate::python) executing: Option<(Field<u8>, u8)>,
    pub(in crate::python) saved_stack: SavedStack,
    pub(in crate::python) entry: EntryFrame,
    /// `tlbc_index`: the thread's bytecode copy (3.14+ without a GIL).
    pub(in crate::python) copy: Option<Field<u32>>,
}

impl FrameLayout {
    /// Whether a returned frame loses its code (`clear_thread_frame`, Python/ceval.c, 3.14+).
    pub(in crate::python) fn clears_code(&self) -> bool {
        let shows_return = self.executing.is_some() || self.saved_stack != SavedStack::Unknown;
        !shows_return
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum LineFormat {
    /// `co_lnotab` (Objects/lnotab_notes.txt, 3.9).
    Increments,
    /// `co_linetable` (Objects/lnotab_notes.txt, 3.10).
    Ranges,
    /// `co_linetable` (Objects/locations.md, 3.11+).
    Locations,
}

/// `PyCodeObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct CodeLayout {
    pub(in crate::python) len: usize,
    /// `co_qualname`, else `co_name`.
    pub(in crate::python) name: Field<Addr>,
    pub(in crate::python) file: Field<Addr>,
    pub(in crate::python) line_table: Field<Addr>,
    pub(in crate::python) first_line: Field<u32>,
    pub(in crate::python) line_format: LineFormat,
    /// For [`InstructionLayout::Pointer`].
    pub(in crate::python) instructions: usize,
    /// Unique per interpreter, unless 0.
    pub(in crate::python) version: Option<Field<u32>>,
    /// `co_tlbc` (`_PyCodeArray`: a count, then pointers).
    pub(in crate::python) copies: Option<Field<Addr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum RefcountLayout {
    /// Negative if immortal (3.12+, Include/refcount.h).
    One(Field<i32>),
    /// Without a GIL: the owning thread's count; the others' in the upper bits of `shared`; the
    /// collector's flags.
    Split { local: Field<u32>, shared: Field<i64>, flags: Field<u8> },
}

/// `PyObject`, `PyBytesObject`, `PyASCIIObject`, `PyCompactUnicodeObject`, `PyLongObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct ObjectLayout {
    pub(in crate::python) head_len: usize,
    pub(in crate::python) references: RefcountLayout,
    pub(in crate::python) type_of: Field<Addr>,
    pub(in crate::python) bytes_len: Field<u64>,
    pub(in crate::python) bytes_start: usize,
    pub(in crate::python) text_len: Field<u64>,
    pub(in crate::python) text_state: Field<u32>,
    pub(in crate::python) text_kind_bit: u8,
    pub(in crate::python) text_compact_bit: u8,
    pub(in crate::python) text_ascii_bit: u8,
    pub(in crate::python) ascii_start: usize,
    pub(in crate::python) compact_start: usize,
    pub(in crate::python) int_len: Field<u64>,
    pub(in crate::python) int_len_bit: u8,
    pub(in crate::python) int_digits: usize,
}

impl ObjectLayout {
    pub(in crate::python) const fn head(&self) -> ObjectHeader {
        ObjectHeader { len: self.head_len, class: self.type_of.offset }
    }

    /// For fields displaced only by the object head's length.
    pub(in crate::python) const fn shift<T: Scalar>(&self, usual: Field<T>) -> Field<T> {
        Field::at(self.head().shift(usual.offset))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum DictSize {
    /// `dk_size`: slots of 1, 2, 4 or 8 bytes.
    Slots(Field<u64>),
    /// `dk_log2_index_bytes`.
    IndexBytes(Field<u8>),
}

/// `PyDictObject`, `PyDictKeysObject`, `PyDictValues`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct DictLayout {
    pub(in crate::python) keys: Field<Addr>,
    pub(in crate::python) values: Field<Addr>,
    /// `dk_kind`. If 0 or absent, entries have a hash.
    pub(in crate::python) kind: Option<Field<u8>>,
    pub(in crate::python) size: DictSize,
    pub(in crate::python) entry_count: Field<u64>,
    pub(in crate::python) indices: usize,
    pub(in crate::python) values_start: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum AttributeLayout {
    Dict,
    /// 3.11: dictionary and values, both before the object.
    Split {
        dict: i64,
        values: i64,
    },
    /// 3.12: one word before the object, for values (plus 1) or a dictionary.
    Tagged {
        word: i64,
    },
    /// 3.13+: a dictionary before the object, or values in it.
    Inline {
        dict: i64,
    },
}

/// `PyTypeObject`, `PyHeapTypeObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct InstanceLayout {
    pub(in crate::python) type_flags: Field<u64>,
    pub(in crate::python) dict_offset: Field<i64>,
    pub(in crate::python) basic_size: Field<u64>,
    pub(in crate::python) cached_keys: Field<Addr>,
    pub(in crate::python) attributes: AttributeLayout,
}

/// `struct _gc_runtime_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum GcState {
    OfRuntime(usize),
    OfInterpreter(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum GeneratorFrame {
    /// `PyFrameObject`.
    Pointer(Field<Addr>),
    /// `_PyInterpreterFrame`.
    Inside(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) enum LocalNames {
    /// Names in `co_localsplusnames`, `CO_FAST_*` bytes in `co_localspluskinds`.
    Together { names: Field<Addr>, kinds: Field<Addr> },
    /// `co_varnames`, `co_cellvars`, `co_freevars`, in frame order.
    Apart { variables: Field<Addr>, cells: Field<Addr>, free: Field<Addr> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct HeapLayout {
    pub(in crate::python) gc: GcState,
    pub(in crate::python) collecting: Field<i32>,
    pub(in crate::python) tuple_items: usize,
    pub(in crate::python) function_code: Field<Addr>,
    pub(in crate::python) function_globals: Field<Addr>,
    pub(in crate::python) function_defaults: Field<Addr>,
    pub(in crate::python) function_kwdefaults: Field<Addr>,
    pub(in crate::python) function_closure: Field<Addr>,
    pub(in crate::python) function_dict: Field<Addr>,
    pub(in crate::python) generator: GeneratorFrame,
    /// `PyFrameObject`'s frame, if separate.
    pub(in crate::python) frame_of_object: Option<Field<Addr>>,
    /// `localsplus`.
    pub(in crate::python) frame_locals: usize,
    pub(in crate::python) frame_globals: Field<Addr>,
    pub(in crate::python) local_names: LocalNames,
}

/// `PyThreadState`, `_PyErr_StackItem`, `PyBaseExceptionObject`, `PyTracebackObject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct ErrorLayout {
    /// In the thread: the exception being raised.
    pub(in crate::python) current: Field<Addr>,
    /// Its traceback, if not yet in the exception.
    pub(in crate::python) current_traceback: Option<Field<Addr>>,
    /// Innermost `_PyErr_StackItem`.
    pub(in crate::python) handled: Field<Addr>,
    pub(in crate::python) handled_value: Field<Addr>,
    pub(in crate::python) handled_before: Field<Addr>,
    pub(in crate::python) args: Field<Addr>,
    pub(in crate::python) traceback: Field<Addr>,
    pub(in crate::python) context: Field<Addr>,
    pub(in crate::python) cause: Field<Addr>,
    pub(in crate::python) next: Field<Addr>,
    pub(in crate::python) frame: Field<Addr>,
    /// Byte offset in every version.
    pub(in crate::python) instruction: Field<i32>,
    /// Negative until computed (3.12+).
    pub(in crate::python) line: Field<i32>,
}

/// `_Py_DebugOffsets` (Include/internal/pycore_debug_offsets.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::python) struct OffsetsLayout {
    pub(in crate::python) free_threaded: Field<u64>,
    pub(in crate::python) interpreters_head: Field<u64>,
    pub(in crate::python) next_interpreter: Field<u64>,
    pub(in crate::python) threads_head: Field<u64>,
    pub(in crate::python) modules: Field<u64>,
    pub(in crate::python) gil: Field<u64>,
    pub(in crate::python) own_gil: Field<u64>,
    pub(in crate::python) own_gil_locked: Field<u64>,
    pub(in crate::python) own_gil_holder: Field<u64>,
    pub(in crate::python) code_generation: Option<Field<u64>>,
    pub(in crate::python) next_thread: Field<u64>,
    pub(in crate::python) interpreter: Field<u64>,
    pub(in crate::python) head: Field<u64>,
    pub(in crate::python) python_id: Field<u64>,
    pub(in crate::python) os_id: Field<u64>,
    pub(in crate::python) frame_len: Field<u64>,
    pub(in crate::python) frame_code: Field<u64>,
    pub(in crate::python) previous: Field<u64>,
    pub(in crate::python) instruction: Field<u64>,
    pub(in crate::python) owner: Field<u64>,
    pub(in crate::python) gc: Field<u64>,
    pub(in crate::python) gc_collecting: Field<u64>,
    pub(in crate::python) local_names: Field<u64>,
    pub(in crate::python) tuple_items: Field<u64>,
    pub(in crate::python) code_len: Field<u64>,
    pub(in crate::python) name: Field<u64>,
    pub(in crate::python) file: Field<u64>,
    pub(in crate::python) line_table: Field<u64>,
    pub(in crate::python) first_line: Field<u64>,
    pub(in crate::python) type_of: Field<u64>,
    pub(in crate::python) bytes_len: Field<u64>,
    pub(in crate::python) bytes_start: Field<u64>,
    pub(in crate::python) text_len: Field<u64>,
    pub(in crate::python) text_state: Field<u64>,
    pub(in crate::python) ascii_start: Field<u64>,
    pub(in crate::python) dict_keys: Field<u64>,
    pub(in crate::python) dict_values: Field<u64>,
}
