/* Prints one row of src/python/layouts/layout_tables.rs: where this CPython keeps what a stack reader needs; without a GIL, one of
 * src/python/heap/blocks.rs as well.
 *
 * Compiled by print-cpython-layout.sh against the internal headers of one interpreter and run there;
 * it only evaluates offsetof and sizeof, so it needs no library of that interpreter.
 */
#define Py_BUILD_CORE 1
#define Py_BUILD_CORE_MODULE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include "frameobject.h"
#include "traceback.h"
#if PY_VERSION_HEX >= 0x03090000
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
#else
#include "internal/pycore_pystate.h"
#endif
#include "internal/pycore_gil.h"
#if PY_VERSION_HEX >= 0x030B0000
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
#include "internal/pycore_dict.h"
#endif
#if PY_VERSION_HEX >= 0x030E0000
#include "internal/pycore_interpframe.h"
#endif
#ifdef Py_GIL_DISABLED
#include "internal/pycore_tstate.h"
#define SUFFIX "T"
#else
#define SUFFIX ""
#endif

/* Bit number of a bit field in PyASCIIObject.state, found by setting it. */
#define BIT(member)                                        \
    ({                                                     \
        union {                                            \
            PyASCIIObject o;                               \
            unsigned char b[sizeof(PyASCIIObject)];        \
        } u = {.b = {0}};                                  \
        u.o.state.member = ~0;                             \
        unsigned word;                                     \
        __builtin_memcpy(&word, u.b + STATE, 4);           \
        __builtin_ctz(word);                               \
    })
/* `state` follows `length` and `hash` in every version. */
#define STATE (offsetof(PyASCIIObject, hash) + 8)

#define FIELD(name, T, m) printf(" %s: Field::at(%zu),", name, offsetof(T, m))
#define SOME(name, T, m) printf(" %s: Some(Field::at(%zu)),", name, offsetof(T, m))
#define NONE(name) printf(" %s: None,", name)

/* Prints one row of src/python/heap/blocks.rs: where mimalloc keeps the objects of a build without a GIL. */
static void print_mimalloc(void)
{
#ifdef Py_GIL_DISABLED
    typedef struct mi_heap_s heap;
    typedef struct mi_tld_s tld;
    typedef mi_page_t page;
    typedef mi_segment_t segment;
    /* A bit field has no offset: its bit is found by setting it. */
    union {
        page p;
        unsigned char b[sizeof(page)];
    } tag = {.b = {0}};
    int from = 0;
    printf("\n/// From the headers of %s.\n", PY_VERSION);
    printf("#[rustfmt::skip]\n");
#ifdef MI_MAX_SLICE_OFFSET_COUNT
    printf("const V2_5: Mimalloc = Mimalloc {\n   ");
    tag.p.heap_tag = 1;
#else
    printf("const V2_1: Mimalloc = Mimalloc {\n   ");
    tag.p.tag = 1;
#endif
    while (!tag.b[from])
        from++;
    printf(" heap_len: %zu,", sizeof(heap));
    FIELD("heap_tld", heap, tld);
    FIELD("heap_thread", heap, thread_id);
    FIELD("heap_pages", heap, page_count);
    FIELD("heap_tag", heap, tag);
    printf(" heap_queues: %zu, queues: %d, queue_len: %zu,\n   ", offsetof(heap, pages),
           (int)(sizeof(((heap *)0)->pages) / sizeof(mi_page_queue_t)), sizeof(mi_page_queue_t));
#ifdef MI_MAX_SLICE_OFFSET_COUNT
    FIELD("tld_abandoned", tld, segments.subproc);
    printf(" abandoned: Abandoned::Counted {");
    FIELD("count", mi_subproc_t, abandoned_count);
    FIELD("owner", segment, subproc);
    FIELD("thread", segment, thread_id);
#else
    FIELD("tld_abandoned", tld, segments.abandoned);
    printf(" abandoned: Abandoned::Listed { lists: [Field::at(%zu), Field::at(%zu)],",
           offsetof(mi_abandoned_pool_t, abandoned), offsetof(mi_abandoned_pool_t, abandoned_visited));
    FIELD("next", segment, abandoned_next);
#endif
    printf(" },\n    page_len: %zu,", sizeof(page));
    FIELD("page_slices", page, slice_count);
    printf(" page_tag: Field::at(%d), page_tag_bit: %d,", from, __builtin_ctz(tag.b[from]));
    FIELD("page_capacity", page, capacity);
    FIELD("page_used", page, used);
    printf(" page_used_mask: %#x,\n   ", sizeof(((page *)0)->used) == 2 ? 0xffff : 0xffffffff);
    FIELD("page_free", page, free);
    FIELD("page_local_free", page, local_free);
    FIELD("page_thread_free", page, xthread_free);
    FIELD("page_next", page, next);
    printf("\n   ");
#ifdef MI_MAX_SLICE_OFFSET_COUNT
    printf(" blocks: Blocks::Told {");
    FIELD("size", page, block_size);
    FIELD("start", page, page_start);
#else
    printf(" blocks: Blocks::Computed {");
    FIELD("size", page, xblock_size);
#endif
    printf(" },");
    FIELD("segment_abandoned", segment, abandoned);
    FIELD("segment_entries", segment, slice_entries);
    printf(" segment_slices: %zu,\n};\n", offsetof(segment, slices));
#endif
}

int main(void)
{
    printf("/// From the headers of %s.\n", PY_VERSION);
    printf("#[rustfmt::skip]\n");
    printf("pub(super) const V3_%d" SUFFIX ": Layout = Layout {\n", PY_MINOR_VERSION);
    printf("    minor: %d, free_threaded: %s,\n", PY_MINOR_VERSION, *SUFFIX ? "true" : "false");

    printf("    runtime: RuntimeLayout {");
    FIELD("interpreters_head", _PyRuntimeState, interpreters.head);
#if PY_VERSION_HEX < 0x030C0000
    printf(" gil: Some(%zu),", offsetof(_PyRuntimeState, ceval.gil));
#else
    NONE("gil");
#endif
    printf(" },\n    interpreter: InterpreterLayout {");
    FIELD("next", PyInterpreterState, next);
#if PY_VERSION_HEX >= 0x030B0000
    FIELD("threads_head", PyInterpreterState, threads.head);
#else
    FIELD("threads_head", PyInterpreterState, tstate_head);
#endif
#if PY_VERSION_HEX >= 0x030C0000
    SOME("gil", PyInterpreterState, ceval.gil);
    FIELD("modules", PyInterpreterState, imports.modules);
#else
    NONE("gil");
    FIELD("modules", PyInterpreterState, modules);
#endif
#if PY_VERSION_HEX >= 0x030E0000
    SOME("code_generation", PyInterpreterState, _code_object_generation);
#else
    NONE("code_generation");
#endif
    printf(" },\n    gil: GilLayout {");
    FIELD("last_holder", struct _gil_runtime_state, last_holder);
    FIELD("locked", struct _gil_runtime_state, locked);
    printf(" },\n    thread: ThreadLayout {");
    FIELD("next", PyThreadState, next);
    FIELD("interpreter", PyThreadState, interp);
#if PY_VERSION_HEX >= 0x030D0000
    FIELD("head", PyThreadState, current_frame);
    NONE("head_through");
#elif PY_VERSION_HEX >= 0x030B0000
    FIELD("head", PyThreadState, cframe);
    SOME("head_through", _PyCFrame, current_frame);
#else
    FIELD("head", PyThreadState, frame);
    NONE("head_through");
#endif
    FIELD("python_id", PyThreadState, thread_id);
#if PY_VERSION_HEX >= 0x030B0000
    SOME("os_id", PyThreadState, native_thread_id);
    FIELD("identity", PyThreadState, native_thread_id);
#else
    NONE("os_id");
    FIELD("identity", PyThreadState, id);
#endif

    printf(" },\n    frame: FrameLayout {");
#if PY_VERSION_HEX >= 0x030B0000
    printf(" len: %zu,", offsetof(_PyInterpreterFrame, localsplus));
#if PY_VERSION_HEX >= 0x030D0000
    FIELD("code", _PyInterpreterFrame, f_executable);
#else
    FIELD("code", _PyInterpreterFrame, f_code);
#endif
    FIELD("previous", _PyInterpreterFrame, previous);
#if PY_VERSION_HEX >= 0x030D0000
    printf(" instruction: Instruction::Pointer(Field::at(%zu)),",
           offsetof(_PyInterpreterFrame, instr_ptr));
#else
    printf(" instruction: Instruction::Pointer(Field::at(%zu)),",
           offsetof(_PyInterpreterFrame, prev_instr));
#endif
    NONE("executing");
#if PY_VERSION_HEX >= 0x030E0000
    printf(" saved_stack: SavedStack::Unknown,");
#else
    printf(" saved_stack: SavedStack::Index(Field::at(%zu)),",
           offsetof(_PyInterpreterFrame, stacktop));
#endif
#if PY_VERSION_HEX >= 0x030C0000
    /* The lowest value of `owner` that is no Python frame. */
    printf(" entry: Entry::Shim { owner: Field::at(%zu), from: %d },",
           offsetof(_PyInterpreterFrame, owner), 3);
#else
    printf(" entry: Entry::Flag(Field::at(%zu)),", offsetof(_PyInterpreterFrame, is_entry));
#endif
#else
    printf(" len: %zu,", offsetof(PyFrameObject, f_blockstack));
    FIELD("code", PyFrameObject, f_code);
    FIELD("previous", PyFrameObject, f_back);
#if PY_VERSION_HEX >= 0x030A0000
    printf(" instruction: Instruction::Units(Field::at(%zu)),", offsetof(PyFrameObject, f_lasti));
    printf(" executing: Some((Field::at(%zu), %d)),", offsetof(PyFrameObject, f_state),
           FRAME_EXECUTING);
#else
    printf(" instruction: Instruction::Bytes(Field::at(%zu)),", offsetof(PyFrameObject, f_lasti));
    printf(" executing: Some((Field::at(%zu), 1)),", offsetof(PyFrameObject, f_executing));
#endif
    printf(" saved_stack: SavedStack::Unknown,");
    printf(" entry: Entry::Unmarked,");
#endif
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030E0000
    SOME("copy", _PyInterpreterFrame, tlbc_index);
#else
    NONE("copy");
#endif

    printf(" },\n    code: CodeLayout {");
#if PY_VERSION_HEX >= 0x030B0000
    printf(" len: %zu,", offsetof(PyCodeObject, co_code_adaptive));
    FIELD("name", PyCodeObject, co_qualname);
#else
    printf(" len: %zu,", offsetof(PyCodeObject, co_zombieframe));
    FIELD("name", PyCodeObject, co_name);
#endif
    FIELD("file", PyCodeObject, co_filename);
#if PY_VERSION_HEX >= 0x030A0000
    FIELD("line_table", PyCodeObject, co_linetable);
#else
    FIELD("line_table", PyCodeObject, co_lnotab);
#endif
    FIELD("first_line", PyCodeObject, co_firstlineno);
#if PY_VERSION_HEX >= 0x030B0000
    printf(" line_format: LineFormat::Locations,");
    printf(" instructions: %zu,", offsetof(PyCodeObject, co_code_adaptive));
#elif PY_VERSION_HEX >= 0x030A0000
    printf(" line_format: LineFormat::Ranges, instructions: 0,");
#else
    printf(" line_format: LineFormat::Increments, instructions: 0,");
#endif
#if PY_VERSION_HEX >= 0x030C0000
    SOME("version", PyCodeObject, co_version);
#else
    NONE("version");
#endif
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030E0000
    SOME("copies", PyCodeObject, co_tlbc);
#else
    NONE("copies");
#endif

    printf(" },\n    object: ObjectLayout {");
    printf(" head_len: %zu,", sizeof(PyObject));
#ifdef Py_GIL_DISABLED
    printf(" references: References::Split { local: Field::at(%zu), shared: Field::at(%zu), flags: Field::at(%zu) },",
           offsetof(PyObject, ob_ref_local), offsetof(PyObject, ob_ref_shared),
           offsetof(PyObject, ob_gc_bits));
#else
    printf(" references: References::One(Field::at(%zu)),", offsetof(PyObject, ob_refcnt));
#endif
    FIELD("type_of", PyObject, ob_type);
    FIELD("bytes_len", PyVarObject, ob_size);
    printf(" bytes_start: %zu,", offsetof(PyBytesObject, ob_sval));
    FIELD("text_len", PyASCIIObject, length);
    printf(" text_state: Field::at(%zu),", STATE);
    printf(" text_kind_bit: %d, text_compact_bit: %d, text_ascii_bit: %d,",
           BIT(kind), BIT(compact), BIT(ascii));
    printf(" ascii_start: %zu, compact_start: %zu,", sizeof(PyASCIIObject),
           sizeof(PyCompactUnicodeObject));

    /* Include/internal/pycore_long.h: the number of digits, above bits of sign since 3.12. */
    FIELD("int_len", PyVarObject, ob_size);
#if PY_VERSION_HEX >= 0x030C0000
    printf(" int_len_bit: 3, int_digits: %zu,", offsetof(PyLongObject, long_value.ob_digit));
#else
    printf(" int_len_bit: 0, int_digits: %zu,", offsetof(PyLongObject, ob_digit));
#endif
    printf(" },\n    dict: DictLayout {");
    FIELD("keys", PyDictObject, ma_keys);
    FIELD("values", PyDictObject, ma_values);
#if PY_VERSION_HEX >= 0x030B0000
    printf(" kind: Some(Field::at(%zu)),", offsetof(PyDictKeysObject, dk_kind));
    printf(" size: DictSize::IndexBytes(Field::at(%zu)),",
           offsetof(PyDictKeysObject, dk_log2_index_bytes));
    FIELD("entry_count", PyDictKeysObject, dk_nentries);
    printf(" indices: %zu,", offsetof(PyDictKeysObject, dk_indices));
    printf(" values_start: %zu,", offsetof(struct _dictvalues, values));
#else
    /* struct _dictkeysobject (Objects/dict-common.h) is not installed: refcnt, size, lookup, usable, nentries. */
    NONE("kind");
    printf(" size: DictSize::Slots(Field::at(8)), entry_count: Field::at(32),");
    printf(" indices: 40, values_start: 0,");
#endif
    printf(" },\n    instance: InstanceLayout {");
    FIELD("type_flags", PyTypeObject, tp_flags);
    FIELD("dict_offset", PyTypeObject, tp_dictoffset);
    FIELD("basic_size", PyTypeObject, tp_basicsize);
    FIELD("cached_keys", PyHeapTypeObject, ht_cached_keys);
#if PY_VERSION_HEX >= 0x030D0000
    /* Include/internal/pycore_object.h: without a GIL there is no PyGC_Head before an object. */
    printf(" attributes: Attributes::Inline { dict: %d },", *SUFFIX ? -8 : -24);
#elif PY_VERSION_HEX >= 0x030C0000
    printf(" attributes: Attributes::Tagged { word: -24 },");
#elif PY_VERSION_HEX >= 0x030B0000
    printf(" attributes: Attributes::Split { dict: -24, values: -32 },");
#else
    printf(" attributes: Attributes::Dict,");
#endif
    printf(" },\n    heap: HeapLayout {");
#if PY_VERSION_HEX >= 0x03090000
    printf(" gc: GcState::OfInterpreter(%zu),", offsetof(PyInterpreterState, gc));
#else
    printf(" gc: GcState::OfRuntime(%zu),", offsetof(_PyRuntimeState, gc));
#endif
    FIELD("collecting", struct _gc_runtime_state, collecting);
    printf(" tuple_items: %zu,", offsetof(PyTupleObject, ob_item));
    printf("\n       ");
    FIELD("function_code", PyFunctionObject, func_code);
    FIELD("function_globals", PyFunctionObject, func_globals);
    FIELD("function_defaults", PyFunctionObject, func_defaults);
    FIELD("function_kwdefaults", PyFunctionObject, func_kwdefaults);
    FIELD("function_closure", PyFunctionObject, func_closure);
    FIELD("function_dict", PyFunctionObject, func_dict);
    printf("\n       ");
#if PY_VERSION_HEX >= 0x030B0000
    printf(" generator: GeneratorFrame::Inside(%zu),", offsetof(PyGenObject, gi_iframe));
    SOME("frame_of_object", PyFrameObject, f_frame);
    printf(" frame_locals: %zu,", offsetof(_PyInterpreterFrame, localsplus));
    FIELD("frame_globals", _PyInterpreterFrame, f_globals);
    printf(" local_names: LocalNames::Together { names: Field::at(%zu), kinds: Field::at(%zu) },",
           offsetof(PyCodeObject, co_localsplusnames), offsetof(PyCodeObject, co_localspluskinds));
#else
    printf(" generator: GeneratorFrame::Pointer(Field::at(%zu)),", offsetof(PyGenObject, gi_frame));
    NONE("frame_of_object");
    printf(" frame_locals: %zu,", offsetof(PyFrameObject, f_localsplus));
    FIELD("frame_globals", PyFrameObject, f_globals);
    printf(" local_names: LocalNames::Apart { variables: Field::at(%zu), cells: Field::at(%zu), free: Field::at(%zu) },",
           offsetof(PyCodeObject, co_varnames), offsetof(PyCodeObject, co_cellvars), offsetof(PyCodeObject, co_freevars));
#endif
    printf(" },\n    error: ErrorLayout {");
#if PY_VERSION_HEX >= 0x030C0000
    FIELD("current", PyThreadState, current_exception);
    NONE("current_traceback");
#else
    FIELD("current", PyThreadState, curexc_value);
    SOME("current_traceback", PyThreadState, curexc_traceback);
#endif
    FIELD("handled", PyThreadState, exc_info);
    FIELD("handled_value", _PyErr_StackItem, exc_value);
    FIELD("handled_before", _PyErr_StackItem, previous_item);
    FIELD("args", PyBaseExceptionObject, args);
    FIELD("traceback", PyBaseExceptionObject, traceback);
    FIELD("context", PyBaseExceptionObject, context);
    FIELD("cause", PyBaseExceptionObject, cause);
    printf("\n       ");
    FIELD("next", PyTracebackObject, tb_next);
    FIELD("frame", PyTracebackObject, tb_frame);
    FIELD("instruction", PyTracebackObject, tb_lasti);
    FIELD("line", PyTracebackObject, tb_lineno);
    printf(" },\n");
#if PY_VERSION_HEX >= 0x030D0000
#define AT(name, m) printf(" %s: Field::at(%zu),", name, offsetof(_Py_DebugOffsets, m))
    printf("    debug_offsets: Some(OffsetsLayout {");
    AT("free_threaded", free_threaded);
    AT("interpreters_head", runtime_state.interpreters_head);
    AT("next_interpreter", interpreter_state.next);
    AT("threads_head", interpreter_state.threads_head);
    AT("modules", interpreter_state.imports_modules);
    AT("gil", interpreter_state.ceval_gil);
    printf("\n       ");
    AT("own_gil", interpreter_state.gil_runtime_state);
    AT("own_gil_locked", interpreter_state.gil_runtime_state_locked);
    AT("own_gil_holder", interpreter_state.gil_runtime_state_holder);
#if PY_VERSION_HEX >= 0x030E0000
    printf(" code_generation: Some(Field::at(%zu)),",
           offsetof(_Py_DebugOffsets, interpreter_state.code_object_generation));
#else
    NONE("code_generation");
#endif
    printf("\n       ");
    AT("next_thread", thread_state.next);
    AT("interpreter", thread_state.interp);
    AT("head", thread_state.current_frame);
    AT("python_id", thread_state.thread_id);
    AT("os_id", thread_state.native_thread_id);
    printf("\n       ");
    AT("frame_len", interpreter_frame.localsplus);
    AT("frame_code", interpreter_frame.executable);
    AT("previous", interpreter_frame.previous);
    AT("instruction", interpreter_frame.instr_ptr);
    AT("owner", interpreter_frame.owner);
    printf("\n       ");
    AT("gc", interpreter_state.gc);
    AT("gc_collecting", gc.collecting);
    AT("local_names", code_object.localsplusnames);
    AT("tuple_items", tuple_object.ob_item);
    AT("code_len", code_object.co_code_adaptive);
    AT("name", code_object.qualname);
    AT("file", code_object.filename);
    AT("line_table", code_object.linetable);
    AT("first_line", code_object.firstlineno);
    AT("type_of", pyobject.ob_type);
    printf("\n       ");
    AT("bytes_len", bytes_object.ob_size);
    AT("bytes_start", bytes_object.ob_sval);
    AT("text_len", unicode_object.length);
    AT("text_state", unicode_object.state);
    AT("ascii_start", unicode_object.asciiobject_size);
    AT("dict_keys", dict_object.ma_keys);
    AT("dict_values", dict_object.ma_values);
    printf("\n    }),\n");
#else
    printf("    debug_offsets: None,\n");
#endif
    printf("};\n");
    print_mimalloc();
    return 0;
}
