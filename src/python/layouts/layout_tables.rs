//! A [`PythonLayout`] per minor version (64-bit Linux), printed by
//! `scripts/print-cpython-layout.sh`.

use crate::python::layouts::layout::{
    AttributeLayout, CodeLayout, DictLayout, DictSize, EntryFrame, ErrorLayout, FrameLayout,
    GcState, GeneratorFrame, GilLayout, HeapLayout, InstanceLayout, InstructionLayout,
    InterpreterLayout, LineFormat, LocalNames, ObjectLayout, OffsetsLayout, PythonLayout,
    RefcountLayout, RuntimeLayout, SavedStack, ThreadLayout,
};
use crate::target::Field;

pub(in crate::python) const ROWS: [&PythonLayout; 11] =
    [&V3_8, &V3_9, &V3_10, &V3_11, &V3_12, &V3_13, &V3_14, &V3_15, &V3_13T, &V3_14T, &V3_15T];

pub(in crate::python) fn row(minor: u8, free_threaded: bool) -> Option<&'static PythonLayout> {
    ROWS.into_iter().find(|row| row.minor == minor && row.free_threaded == free_threaded)
}

/// From the headers of 3.8.18.
#[rustfmt::skip]
pub(in crate::python) const V3_8: PythonLayout = PythonLayout {
    minor: 8, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(32), gil: Some(1152), },
    interpreter: InterpreterLayout { next: Field::at(0), threads_head: Field::at(8), gil: None, modules: Field::at(56), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(24), head_through: None, python_id: Field::at(176), os_id: None, identity: Field::at(256), },
    frame: FrameLayout { len: 120, code: Field::at(32), previous: Field::at(24), instruction: InstructionLayout::Bytes(Field::at(104)), executing: Some((Field::at(116), 1)), saved_stack: SavedStack::Unknown, entry: EntryFrame::Unmarked, copy: None, },
    code: CodeLayout { len: 128, name: Field::at(112), file: Field::at(104), line_table: Field::at(120), first_line: Field::at(40), line_format: LineFormat::Increments, instructions: 0, version: None, copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 48, compact_start: 72, int_len: Field::at(16), int_len_bit: 0, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: None, size: DictSize::Slots(Field::at(8)), entry_count: Field::at(32), indices: 40, values_start: 0, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(872), attributes: AttributeLayout::Dict, },
    heap: HeapLayout { gc: GcState::OfRuntime(344), collecting: Field::at(200), tuple_items: 24,
        function_code: Field::at(16), function_globals: Field::at(24), function_defaults: Field::at(32), function_kwdefaults: Field::at(40), function_closure: Field::at(48), function_dict: Field::at(72),
        generator: GeneratorFrame::Pointer(Field::at(16)), frame_of_object: None, frame_locals: 360, frame_globals: Field::at(48), local_names: LocalNames::Apart { variables: Field::at(72), cells: Field::at(88), free: Field::at(80) }, },
    error: ErrorLayout { current: Field::at(96), current_traceback: Some(Field::at(104)), handled: Field::at(144), handled_value: Field::at(8), handled_before: Field::at(24), args: Field::at(24), traceback: Field::at(32), context: Field::at(40), cause: Field::at(48),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: None,
};

/// From the headers of 3.9.18.
#[rustfmt::skip]
pub(in crate::python) const V3_9: PythonLayout = PythonLayout {
    minor: 9, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(32), gil: Some(352), },
    interpreter: InterpreterLayout { next: Field::at(0), threads_head: Field::at(8), gil: None, modules: Field::at(856), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(24), head_through: None, python_id: Field::at(176), os_id: None, identity: Field::at(256), },
    frame: FrameLayout { len: 120, code: Field::at(32), previous: Field::at(24), instruction: InstructionLayout::Bytes(Field::at(104)), executing: Some((Field::at(116), 1)), saved_stack: SavedStack::Unknown, entry: EntryFrame::Unmarked, copy: None, },
    code: CodeLayout { len: 128, name: Field::at(112), file: Field::at(104), line_table: Field::at(120), first_line: Field::at(40), line_format: LineFormat::Increments, instructions: 0, version: None, copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 48, compact_start: 72, int_len: Field::at(16), int_len_bit: 0, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: None, size: DictSize::Slots(Field::at(8)), entry_count: Field::at(32), indices: 40, values_start: 0, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(864), attributes: AttributeLayout::Dict, },
    heap: HeapLayout { gc: GcState::OfInterpreter(616), collecting: Field::at(200), tuple_items: 24,
        function_code: Field::at(16), function_globals: Field::at(24), function_defaults: Field::at(32), function_kwdefaults: Field::at(40), function_closure: Field::at(48), function_dict: Field::at(72),
        generator: GeneratorFrame::Pointer(Field::at(16)), frame_of_object: None, frame_locals: 360, frame_globals: Field::at(48), local_names: LocalNames::Apart { variables: Field::at(72), cells: Field::at(88), free: Field::at(80) }, },
    error: ErrorLayout { current: Field::at(96), current_traceback: Some(Field::at(104)), handled: Field::at(144), handled_value: Field::at(8), handled_before: Field::at(24), args: Field::at(24), traceback: Field::at(32), context: Field::at(40), cause: Field::at(48),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: None,
};

/// From the headers of 3.10.13.
#[rustfmt::skip]
pub(in crate::python) const V3_10: PythonLayout = PythonLayout {
    minor: 10, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(32), gil: Some(352), },
    interpreter: InterpreterLayout { next: Field::at(0), threads_head: Field::at(8), gil: None, modules: Field::at(856), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(24), head_through: None, python_id: Field::at(176), os_id: None, identity: Field::at(256), },
    frame: FrameLayout { len: 112, code: Field::at(32), previous: Field::at(24), instruction: InstructionLayout::Units(Field::at(96)), executing: Some((Field::at(108), 0)), saved_stack: SavedStack::Unknown, entry: EntryFrame::Unmarked, copy: None, },
    code: CodeLayout { len: 128, name: Field::at(112), file: Field::at(104), line_table: Field::at(120), first_line: Field::at(40), line_format: LineFormat::Ranges, instructions: 0, version: None, copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 48, compact_start: 72, int_len: Field::at(16), int_len_bit: 0, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: None, size: DictSize::Slots(Field::at(8)), entry_count: Field::at(32), indices: 40, values_start: 0, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(872), attributes: AttributeLayout::Dict, },
    heap: HeapLayout { gc: GcState::OfInterpreter(616), collecting: Field::at(200), tuple_items: 24,
        function_code: Field::at(48), function_globals: Field::at(16), function_defaults: Field::at(56), function_kwdefaults: Field::at(64), function_closure: Field::at(72), function_dict: Field::at(88),
        generator: GeneratorFrame::Pointer(Field::at(16)), frame_of_object: None, frame_locals: 352, frame_globals: Field::at(48), local_names: LocalNames::Apart { variables: Field::at(72), cells: Field::at(88), free: Field::at(80) }, },
    error: ErrorLayout { current: Field::at(96), current_traceback: Some(Field::at(104)), handled: Field::at(144), handled_value: Field::at(8), handled_before: Field::at(24), args: Field::at(24), traceback: Field::at(32), context: Field::at(40), cause: Field::at(48),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: None,
};

/// From the headers of 3.11.7.
#[rustfmt::skip]
pub(in crate::python) const V3_11: PythonLayout = PythonLayout {
    minor: 11, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(40), gil: Some(360), },
    interpreter: InterpreterLayout { next: Field::at(0), threads_head: Field::at(16), gil: None, modules: Field::at(888), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(56), head_through: Some(Field::at(8)), python_id: Field::at(152), os_id: Some(Field::at(160)), identity: Field::at(160), },
    frame: FrameLayout { len: 72, code: Field::at(32), previous: Field::at(48), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Index(Field::at(64)), entry: EntryFrame::Flag(Field::at(68)), copy: None, },
    code: CodeLayout { len: 184, name: Field::at(128), file: Field::at(112), line_table: Field::at(136), first_line: Field::at(72), line_format: LineFormat::Locations, instructions: 184, version: None, copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 48, compact_start: 72, int_len: Field::at(16), int_len_bit: 0, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 0, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(872), attributes: AttributeLayout::Split { dict: -24, values: -32 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(648), collecting: Field::at(200), tuple_items: 24,
        function_code: Field::at(48), function_globals: Field::at(16), function_defaults: Field::at(56), function_kwdefaults: Field::at(64), function_closure: Field::at(72), function_dict: Field::at(88),
        generator: GeneratorFrame::Inside(80), frame_of_object: Some(Field::at(24)), frame_locals: 72, frame_globals: Field::at(8), local_names: LocalNames::Together { names: Field::at(96), kinds: Field::at(104) }, },
    error: ErrorLayout { current: Field::at(104), current_traceback: Some(Field::at(112)), handled: Field::at(120), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(24), traceback: Field::at(40), context: Field::at(48), cause: Field::at(56),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: None,
};

/// From the headers of 3.12.1.
#[rustfmt::skip]
pub(in crate::python) const V3_12: PythonLayout = PythonLayout {
    minor: 12, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(40), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(0), threads_head: Field::at(72), gil: Some(Field::at(384)), modules: Field::at(944), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(56), head_through: Some(Field::at(0)), python_id: Field::at(136), os_id: Some(Field::at(144)), identity: Field::at(144), },
    frame: FrameLayout { len: 72, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Index(Field::at(64)), entry: EntryFrame::Shim { owner: Field::at(70), from: 3 }, copy: None, },
    code: CodeLayout { len: 192, name: Field::at(128), file: Field::at(112), line_table: Field::at(136), first_line: Field::at(68), line_format: LineFormat::Locations, instructions: 192, version: Some(Field::at(92)), copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 40, compact_start: 56, int_len: Field::at(16), int_len_bit: 3, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 0, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(880), attributes: AttributeLayout::Tagged { word: -24 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(112), collecting: Field::at(200), tuple_items: 24,
        function_code: Field::at(48), function_globals: Field::at(16), function_defaults: Field::at(56), function_kwdefaults: Field::at(64), function_closure: Field::at(72), function_dict: Field::at(88),
        generator: GeneratorFrame::Inside(72), frame_of_object: Some(Field::at(24)), frame_locals: 72, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(96), kinds: Field::at(104) }, },
    error: ErrorLayout { current: Field::at(96), current_traceback: None, handled: Field::at(104), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(24), traceback: Field::at(40), context: Field::at(48), cause: Field::at(56),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: None,
};

/// From the headers of 3.13.0.
#[rustfmt::skip]
pub(in crate::python) const V3_13: PythonLayout = PythonLayout {
    minor: 13, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(632), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(7264), threads_head: Field::at(7344), gil: Some(Field::at(16)), modules: Field::at(7656), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(72), head_through: None, python_id: Field::at(152), os_id: Some(Field::at(160)), identity: Field::at(160), },
    frame: FrameLayout { len: 72, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Index(Field::at(64)), entry: EntryFrame::Shim { owner: Field::at(70), from: 3 }, copy: None, },
    code: CodeLayout { len: 200, name: Field::at(128), file: Field::at(112), line_table: Field::at(136), first_line: Field::at(68), line_format: LineFormat::Locations, instructions: 200, version: Some(Field::at(92)), copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 40, compact_start: 56, int_len: Field::at(16), int_len_bit: 3, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 8, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(880), attributes: AttributeLayout::Inline { dict: -24 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(7400), collecting: Field::at(200), tuple_items: 24,
        function_code: Field::at(48), function_globals: Field::at(16), function_defaults: Field::at(56), function_kwdefaults: Field::at(64), function_closure: Field::at(72), function_dict: Field::at(88),
        generator: GeneratorFrame::Inside(72), frame_of_object: Some(Field::at(24)), frame_locals: 72, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(96), kinds: Field::at(104) }, },
    error: ErrorLayout { current: Field::at(112), current_traceback: None, handled: Field::at(120), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(24), traceback: Field::at(40), context: Field::at(48), cause: Field::at(56),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: Some(OffsetsLayout { free_threaded: Field::at(16), interpreters_head: Field::at(40), next_interpreter: Field::at(64), threads_head: Field::at(72), modules: Field::at(88), gil: Field::at(112),
        own_gil: Field::at(120), own_gil_locked: Field::at(136), own_gil_holder: Field::at(144), code_generation: None,
        next_thread: Field::at(168), interpreter: Field::at(176), head: Field::at(184), python_id: Field::at(192), os_id: Field::at(200),
        frame_len: Field::at(256), frame_code: Field::at(240), previous: Field::at(232), instruction: Field::at(248), owner: Field::at(264),
        gc: Field::at(80), gc_collecting: Field::at(576), local_names: Field::at(328), tuple_items: Field::at(408), code_len: Field::at(344), name: Field::at(296), file: Field::at(280), line_table: Field::at(304), first_line: Field::at(312), type_of: Field::at(360),
        bytes_len: Field::at(520), bytes_start: Field::at(528), text_len: Field::at(552), text_state: Field::at(544), ascii_start: Field::at(560), dict_keys: Field::at(456), dict_values: Field::at(464),
    }),
};

/// From the headers of 3.14.10.
#[rustfmt::skip]
pub(in crate::python) const V3_14: PythonLayout = PythonLayout {
    minor: 14, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(808), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(7272), threads_head: Field::at(7344), gil: Some(Field::at(16)), modules: Field::at(7688), code_generation: Some(Field::at(7992)), },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(72), head_through: None, python_id: Field::at(152), os_id: Some(Field::at(160)), identity: Field::at(160), },
    frame: FrameLayout { len: 80, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Unknown, entry: EntryFrame::Shim { owner: Field::at(74), from: 3 }, copy: None, },
    code: CodeLayout { len: 208, name: Field::at(128), file: Field::at(112), line_table: Field::at(136), first_line: Field::at(68), line_format: LineFormat::Locations, instructions: 208, version: Some(Field::at(92)), copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 40, compact_start: 56, int_len: Field::at(16), int_len_bit: 3, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 8, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(880), attributes: AttributeLayout::Inline { dict: -24 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(7408), collecting: Field::at(192), tuple_items: 32,
        function_code: Field::at(48), function_globals: Field::at(16), function_defaults: Field::at(56), function_kwdefaults: Field::at(64), function_closure: Field::at(72), function_dict: Field::at(88),
        generator: GeneratorFrame::Inside(72), frame_of_object: Some(Field::at(24)), frame_locals: 80, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(96), kinds: Field::at(104) }, },
    error: ErrorLayout { current: Field::at(112), current_traceback: None, handled: Field::at(120), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(24), traceback: Field::at(40), context: Field::at(48), cause: Field::at(56),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: Some(OffsetsLayout { free_threaded: Field::at(16), interpreters_head: Field::at(40), next_interpreter: Field::at(64), threads_head: Field::at(72), modules: Field::at(96), gil: Field::at(120),
        own_gil: Field::at(128), own_gil_locked: Field::at(144), own_gil_holder: Field::at(152), code_generation: Some(Field::at(160)),
        next_thread: Field::at(192), interpreter: Field::at(200), head: Field::at(208), python_id: Field::at(216), os_id: Field::at(224),
        frame_len: Field::at(280), frame_code: Field::at(264), previous: Field::at(256), instruction: Field::at(272), owner: Field::at(288),
        gc: Field::at(88), gc_collecting: Field::at(656), local_names: Field::at(368), tuple_items: Field::at(456), code_len: Field::at(384), name: Field::at(336), file: Field::at(320), line_table: Field::at(344), first_line: Field::at(352), type_of: Field::at(408),
        bytes_len: Field::at(600), bytes_start: Field::at(608), text_len: Field::at(632), text_state: Field::at(624), ascii_start: Field::at(640), dict_keys: Field::at(536), dict_values: Field::at(544),
    }),
};

/// From the headers of 3.15.2.
#[rustfmt::skip]
pub(in crate::python) const V3_15: PythonLayout = PythonLayout {
    minor: 15, free_threaded: false,
    runtime: RuntimeLayout { interpreters_head: Field::at(936), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(7264), threads_head: Field::at(7336), gil: Some(Field::at(16)), modules: Field::at(7592), code_generation: Some(Field::at(7944)), },
    gil: GilLayout { last_holder: Field::at(8), locked: Field::at(16), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(72), head_through: None, python_id: Field::at(176), os_id: Some(Field::at(184)), identity: Field::at(184), },
    frame: FrameLayout { len: 80, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Unknown, entry: EntryFrame::Shim { owner: Field::at(74), from: 3 }, copy: None, },
    code: CodeLayout { len: 208, name: Field::at(128), file: Field::at(112), line_table: Field::at(136), first_line: Field::at(68), line_format: LineFormat::Locations, instructions: 208, version: Some(Field::at(92)), copies: None, },
    object: ObjectLayout { head_len: 16, references: RefcountLayout::One(Field::at(0)), type_of: Field::at(8), bytes_len: Field::at(16), bytes_start: 32, text_len: Field::at(16), text_state: Field::at(32), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 40, compact_start: 56, int_len: Field::at(16), int_len_bit: 3, int_digits: 24, },
    dict: DictLayout { keys: Field::at(32), values: Field::at(40), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 8, },
    instance: InstanceLayout { type_flags: Field::at(168), dict_offset: Field::at(288), basic_size: Field::at(32), cached_keys: Field::at(888), attributes: AttributeLayout::Inline { dict: -24 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(7400), collecting: Field::at(112), tuple_items: 32,
        function_code: Field::at(48), function_globals: Field::at(16), function_defaults: Field::at(56), function_kwdefaults: Field::at(64), function_closure: Field::at(72), function_dict: Field::at(88),
        generator: GeneratorFrame::Inside(72), frame_of_object: Some(Field::at(24)), frame_locals: 80, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(96), kinds: Field::at(104) }, },
    error: ErrorLayout { current: Field::at(136), current_traceback: None, handled: Field::at(144), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(24), traceback: Field::at(40), context: Field::at(48), cause: Field::at(56),
        next: Field::at(16), frame: Field::at(24), instruction: Field::at(32), line: Field::at(36), },
    debug_offsets: Some(OffsetsLayout { free_threaded: Field::at(16), interpreters_head: Field::at(40), next_interpreter: Field::at(64), threads_head: Field::at(72), modules: Field::at(96), gil: Field::at(120),
        own_gil: Field::at(128), own_gil_locked: Field::at(144), own_gil_holder: Field::at(152), code_generation: Some(Field::at(160)),
        next_thread: Field::at(192), interpreter: Field::at(200), head: Field::at(208), python_id: Field::at(240), os_id: Field::at(248),
        frame_len: Field::at(344), frame_code: Field::at(328), previous: Field::at(320), instruction: Field::at(336), owner: Field::at(352),
        gc: Field::at(88), gc_collecting: Field::at(760), local_names: Field::at(432), tuple_items: Field::at(552), code_len: Field::at(448), name: Field::at(400), file: Field::at(384), line_table: Field::at(408), first_line: Field::at(416), type_of: Field::at(472),
        bytes_len: Field::at(696), bytes_start: Field::at(704), text_len: Field::at(728), text_state: Field::at(720), ascii_start: Field::at(736), dict_keys: Field::at(632), dict_values: Field::at(640),
    }),
};

/// From the headers of 3.13.15.
#[rustfmt::skip]
pub(in crate::python) const V3_13T: PythonLayout = PythonLayout {
    minor: 13, free_threaded: true,
    runtime: RuntimeLayout { interpreters_head: Field::at(632), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(7264), threads_head: Field::at(7344), gil: Some(Field::at(16)), modules: Field::at(7664), code_generation: None, },
    gil: GilLayout { last_holder: Field::at(16), locked: Field::at(24), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(72), head_through: None, python_id: Field::at(152), os_id: Some(Field::at(160)), identity: Field::at(160), },
    frame: FrameLayout { len: 72, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Index(Field::at(64)), entry: EntryFrame::Shim { owner: Field::at(70), from: 3 }, copy: None, },
    code: CodeLayout { len: 216, name: Field::at(144), file: Field::at(128), line_table: Field::at(152), first_line: Field::at(84), line_format: LineFormat::Locations, instructions: 216, version: Some(Field::at(108)), copies: None, },
    object: ObjectLayout { head_len: 32, references: RefcountLayout::Split { local: Field::at(12), shared: Field::at(16), flags: Field::at(11) }, type_of: Field::at(24), bytes_len: Field::at(32), bytes_start: 48, text_len: Field::at(32), text_state: Field::at(48), text_kind_bit: 2, text_compact_bit: 5, text_ascii_bit: 6, ascii_start: 56, compact_start: 72, int_len: Field::at(32), int_len_bit: 3, int_digits: 40, },
    dict: DictLayout { keys: Field::at(48), values: Field::at(56), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 8, },
    instance: InstanceLayout { type_flags: Field::at(184), dict_offset: Field::at(304), basic_size: Field::at(48), cached_keys: Field::at(896), attributes: AttributeLayout::Inline { dict: -8 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(7400), collecting: Field::at(200), tuple_items: 40,
        function_code: Field::at(64), function_globals: Field::at(32), function_defaults: Field::at(72), function_kwdefaults: Field::at(80), function_closure: Field::at(88), function_dict: Field::at(104),
        generator: GeneratorFrame::Inside(88), frame_of_object: Some(Field::at(40)), frame_locals: 72, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(112), kinds: Field::at(120) }, },
    error: ErrorLayout { current: Field::at(112), current_traceback: None, handled: Field::at(120), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(40), traceback: Field::at(56), context: Field::at(64), cause: Field::at(72),
        next: Field::at(32), frame: Field::at(40), instruction: Field::at(48), line: Field::at(52), },
    debug_offsets: Some(OffsetsLayout { free_threaded: Field::at(16), interpreters_head: Field::at(40), next_interpreter: Field::at(64), threads_head: Field::at(72), modules: Field::at(88), gil: Field::at(112),
        own_gil: Field::at(120), own_gil_locked: Field::at(136), own_gil_holder: Field::at(144), code_generation: None,
        next_thread: Field::at(168), interpreter: Field::at(176), head: Field::at(184), python_id: Field::at(192), os_id: Field::at(200),
        frame_len: Field::at(256), frame_code: Field::at(240), previous: Field::at(232), instruction: Field::at(248), owner: Field::at(264),
        gc: Field::at(80), gc_collecting: Field::at(576), local_names: Field::at(328), tuple_items: Field::at(408), code_len: Field::at(344), name: Field::at(296), file: Field::at(280), line_table: Field::at(304), first_line: Field::at(312), type_of: Field::at(360),
        bytes_len: Field::at(520), bytes_start: Field::at(528), text_len: Field::at(552), text_state: Field::at(544), ascii_start: Field::at(560), dict_keys: Field::at(456), dict_values: Field::at(464),
    }),
};

/// From the headers of 3.14.4.
#[rustfmt::skip]
pub(in crate::python) const V3_14T: PythonLayout = PythonLayout {
    minor: 14, free_threaded: true,
    runtime: RuntimeLayout { interpreters_head: Field::at(808), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(7272), threads_head: Field::at(7344), gil: Some(Field::at(16)), modules: Field::at(7712), code_generation: Some(Field::at(8024)), },
    gil: GilLayout { last_holder: Field::at(16), locked: Field::at(24), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(72), head_through: None, python_id: Field::at(152), os_id: Some(Field::at(160)), identity: Field::at(160), },
    frame: FrameLayout { len: 80, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Unknown, entry: EntryFrame::Shim { owner: Field::at(78), from: 3 }, copy: Some(Field::at(72)), },
    code: CodeLayout { len: 232, name: Field::at(144), file: Field::at(128), line_table: Field::at(152), first_line: Field::at(84), line_format: LineFormat::Locations, instructions: 232, version: Some(Field::at(108)), copies: Some(Field::at(224)), },
    object: ObjectLayout { head_len: 32, references: RefcountLayout::Split { local: Field::at(12), shared: Field::at(16), flags: Field::at(11) }, type_of: Field::at(24), bytes_len: Field::at(32), bytes_start: 48, text_len: Field::at(32), text_state: Field::at(48), text_kind_bit: 8, text_compact_bit: 11, text_ascii_bit: 12, ascii_start: 56, compact_start: 72, int_len: Field::at(32), int_len_bit: 3, int_digits: 40, },
    dict: DictLayout { keys: Field::at(48), values: Field::at(56), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 8, },
    instance: InstanceLayout { type_flags: Field::at(184), dict_offset: Field::at(304), basic_size: Field::at(48), cached_keys: Field::at(896), attributes: AttributeLayout::Inline { dict: -8 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(7408), collecting: Field::at(192), tuple_items: 48,
        function_code: Field::at(64), function_globals: Field::at(32), function_defaults: Field::at(72), function_kwdefaults: Field::at(80), function_closure: Field::at(88), function_dict: Field::at(104),
        generator: GeneratorFrame::Inside(88), frame_of_object: Some(Field::at(40)), frame_locals: 80, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(112), kinds: Field::at(120) }, },
    error: ErrorLayout { current: Field::at(112), current_traceback: None, handled: Field::at(120), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(40), traceback: Field::at(56), context: Field::at(64), cause: Field::at(72),
        next: Field::at(32), frame: Field::at(40), instruction: Field::at(48), line: Field::at(52), },
    debug_offsets: Some(OffsetsLayout { free_threaded: Field::at(16), interpreters_head: Field::at(40), next_interpreter: Field::at(64), threads_head: Field::at(72), modules: Field::at(96), gil: Field::at(120),
        own_gil: Field::at(128), own_gil_locked: Field::at(144), own_gil_holder: Field::at(152), code_generation: Some(Field::at(160)),
        next_thread: Field::at(192), interpreter: Field::at(200), head: Field::at(208), python_id: Field::at(216), os_id: Field::at(224),
        frame_len: Field::at(280), frame_code: Field::at(264), previous: Field::at(256), instruction: Field::at(272), owner: Field::at(288),
        gc: Field::at(88), gc_collecting: Field::at(656), local_names: Field::at(368), tuple_items: Field::at(456), code_len: Field::at(384), name: Field::at(336), file: Field::at(320), line_table: Field::at(344), first_line: Field::at(352), type_of: Field::at(408),
        bytes_len: Field::at(600), bytes_start: Field::at(608), text_len: Field::at(632), text_state: Field::at(624), ascii_start: Field::at(640), dict_keys: Field::at(536), dict_values: Field::at(544),
    }),
};

/// From the headers of 3.15.2.
#[rustfmt::skip]
pub(in crate::python) const V3_15T: PythonLayout = PythonLayout {
    minor: 15, free_threaded: true,
    runtime: RuntimeLayout { interpreters_head: Field::at(936), gil: None, },
    interpreter: InterpreterLayout { next: Field::at(7264), threads_head: Field::at(7336), gil: Some(Field::at(16)), modules: Field::at(7592), code_generation: Some(Field::at(7952)), },
    gil: GilLayout { last_holder: Field::at(16), locked: Field::at(24), },
    thread: ThreadLayout { next: Field::at(8), interpreter: Field::at(16), head: Field::at(72), head_through: None, python_id: Field::at(176), os_id: Some(Field::at(184)), identity: Field::at(184), },
    frame: FrameLayout { len: 80, code: Field::at(0), previous: Field::at(8), instruction: InstructionLayout::Pointer(Field::at(56)), executing: None, saved_stack: SavedStack::Unknown, entry: EntryFrame::Shim { owner: Field::at(78), from: 3 }, copy: Some(Field::at(72)), },
    code: CodeLayout { len: 232, name: Field::at(144), file: Field::at(128), line_table: Field::at(152), first_line: Field::at(84), line_format: LineFormat::Locations, instructions: 232, version: Some(Field::at(108)), copies: Some(Field::at(224)), },
    object: ObjectLayout { head_len: 32, references: RefcountLayout::Split { local: Field::at(12), shared: Field::at(16), flags: Field::at(11) }, type_of: Field::at(24), bytes_len: Field::at(32), bytes_start: 48, text_len: Field::at(32), text_state: Field::at(48), text_kind_bit: 8, text_compact_bit: 11, text_ascii_bit: 12, ascii_start: 56, compact_start: 72, int_len: Field::at(32), int_len_bit: 3, int_digits: 40, },
    dict: DictLayout { keys: Field::at(48), values: Field::at(56), kind: Some(Field::at(10)), size: DictSize::IndexBytes(Field::at(9)), entry_count: Field::at(24), indices: 32, values_start: 8, },
    instance: InstanceLayout { type_flags: Field::at(184), dict_offset: Field::at(304), basic_size: Field::at(48), cached_keys: Field::at(904), attributes: AttributeLayout::Inline { dict: -8 }, },
    heap: HeapLayout { gc: GcState::OfInterpreter(7400), collecting: Field::at(112), tuple_items: 48,
        function_code: Field::at(64), function_globals: Field::at(32), function_defaults: Field::at(72), function_kwdefaults: Field::at(80), function_closure: Field::at(88), function_dict: Field::at(104),
        generator: GeneratorFrame::Inside(88), frame_of_object: Some(Field::at(40)), frame_locals: 80, frame_globals: Field::at(24), local_names: LocalNames::Together { names: Field::at(112), kinds: Field::at(120) }, },
    error: ErrorLayout { current: Field::at(136), current_traceback: None, handled: Field::at(144), handled_value: Field::at(0), handled_before: Field::at(8), args: Field::at(40), traceback: Field::at(56), context: Field::at(64), cause: Field::at(72),
        next: Field::at(32), frame: Field::at(40), instruction: Field::at(48), line: Field::at(52), },
    debug_offsets: Some(OffsetsLayout { free_threaded: Field::at(16), interpreters_head: Field::at(40), next_interpreter: Field::at(64), threads_head: Field::at(72), modules: Field::at(96), gil: Field::at(120),
        own_gil: Field::at(128), own_gil_locked: Field::at(144), own_gil_holder: Field::at(152), code_generation: Some(Field::at(160)),
        next_thread: Field::at(192), interpreter: Field::at(200), head: Field::at(208), python_id: Field::at(240), os_id: Field::at(248),
        frame_len: Field::at(344), frame_code: Field::at(328), previous: Field::at(320), instruction: Field::at(336), owner: Field::at(352),
        gc: Field::at(88), gc_collecting: Field::at(760), local_names: Field::at(432), tuple_items: Field::at(552), code_len: Field::at(448), name: Field::at(400), file: Field::at(384), line_table: Field::at(408), first_line: Field::at(416), type_of: Field::at(472),
        bytes_len: Field::at(696), bytes_start: Field::at(704), text_len: Field::at(728), text_state: Field::at(720), ascii_start: Field::at(736), dict_keys: Field::at(632), dict_values: Field::at(640),
    }),
};
