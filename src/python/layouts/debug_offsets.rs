//! `_Py_DebugOffsets` of CPython 3.13+, at the start of `_PyRuntime`. Each offset is bounded: the
//! target may write anything there.

use crate::python::layouts::layout::{
    AttributeLayout, CodeLayout, EntryFrame, GcState, InstructionLayout, LocalNames, OffsetsLayout,
    PythonLayout, SavedStack,
};
use crate::target::{Field, Scalar};

pub(in crate::python) const LEN: usize = 1024;
const COOKIE: &[u8; 8] = b"xdebugpy";
/// `version`, as `PY_VERSION_HEX`.
const VERSION: Field<u64> = Field::at(8);
/// The runtime and interpreters have some 100 KiB.
const MAX_STATE_BYTES: u64 = 1 << 20;
const MAX_OBJECT_BYTES: u64 = 2048;

pub(in crate::python) fn version(runtime: &[u8]) -> Option<u32> {
    if !runtime.starts_with(COOKIE) {
        return None;
    }
    VERSION.get(runtime).and_then(|v| u32::try_from(v).ok())
}

pub(in crate::python) fn free_threaded(runtime: &[u8], at: &OffsetsLayout) -> bool {
    at.free_threaded.get(runtime).is_some_and(|flag| flag != 0)
}

/// The error names an invalid offset.
pub(in crate::python) fn overlay(
    row: &PythonLayout,
    at: &OffsetsLayout,
    runtime: &[u8],
) -> Result<PythonLayout, &'static str> {
    let offsets = PublishedOffsets { at, runtime };
    let own_gil = offsets.state(at.own_gil, "interpreter_state.gil_runtime_state")?;
    let code_len = offsets.object(at.code_len, "code_object.co_code_adaptive")?;
    let frame_len = offsets.object(at.frame_len, "interpreter_frame.localsplus")?;
    let ascii_start = offsets.object(at.ascii_start, "unicode_object.asciiobject_size")?;
    let mut layout = *row;
    offsets.interpreter(&mut layout)?;
    offsets.gil(own_gil, &mut layout)?;
    offsets.thread(&mut layout)?;
    offsets.frame(frame_len, &mut layout)?;
    offsets.code(code_len, &mut layout)?;
    offsets.heap(frame_len, &mut layout)?;
    offsets.objects(ascii_start, &mut layout)?;
    whole_fields(&layout)?;
    Ok(layout)
}

/// Each method checks some offsets, and names the first invalid one.
struct PublishedOffsets<'a> {
    at: &'a OffsetsLayout,
    runtime: &'a [u8],
}

impl PublishedOffsets<'_> {
    fn bounded(
        &self,
        field: Field<u64>,
        largest: u64,
        name: &'static str,
    ) -> Result<usize, &'static str> {
        match field.get(self.runtime) {
            Some(offset) if offset <= largest => Ok(offset as usize),
            _ => Err(name),
        }
    }

    fn state(&self, field: Field<u64>, name: &'static str) -> Result<usize, &'static str> {
        self.bounded(field, MAX_STATE_BYTES, name)
    }

    fn object(&self, field: Field<u64>, name: &'static str) -> Result<usize, &'static str> {
        self.bounded(field, MAX_OBJECT_BYTES, name)
    }

    fn interpreter(&self, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let state = |field, name| self.state(field, name);
        layout.runtime.interpreters_head =
            Field::at(state(at.interpreters_head, "runtime_state.interpreters_head")?);
        let interpreter = &mut layout.interpreter;
        interpreter.next = Field::at(state(at.next_interpreter, "interpreter_state.next")?);
        interpreter.threads_head =
            Field::at(state(at.threads_head, "interpreter_state.threads_head")?);
        interpreter.gil = Some(Field::at(state(at.gil, "interpreter_state.ceval_gil")?));
        interpreter.modules = Field::at(state(at.modules, "interpreter_state.imports_modules")?);
        interpreter.code_generation = match at.code_generation {
            Some(field) => {
                Some(Field::at(state(field, "interpreter_state.code_object_generation")?))
            }
            None => None,
        };
        Ok(())
    }

    fn gil(&self, own_gil: usize, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let in_gil = |field, name| {
            let offset = self.state(field, name)?.checked_sub(own_gil).ok_or(name)?;
            if offset <= MAX_OBJECT_BYTES as usize { Ok(offset) } else { Err(name) }
        };
        layout.gil.last_holder =
            Field::at(in_gil(at.own_gil_holder, "interpreter_state.gil_runtime_state_holder")?);
        layout.gil.locked =
            Field::at(in_gil(at.own_gil_locked, "interpreter_state.gil_runtime_state_locked")?);
        Ok(())
    }

    fn thread(&self, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let object = |field, name| self.object(field, name);
        let thread = &mut layout.thread;
        thread.next = Field::at(object(at.next_thread, "thread_state.next")?);
        thread.interpreter = Field::at(object(at.interpreter, "thread_state.interp")?);
        thread.head = Field::at(object(at.head, "thread_state.current_frame")?);
        thread.python_id = Field::at(object(at.python_id, "thread_state.thread_id")?);
        let os_id = Field::at(object(at.os_id, "thread_state.native_thread_id")?);
        thread.os_id = Some(os_id);
        thread.identity = os_id;
        Ok(())
    }

    fn frame(&self, frame_len: usize, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let object = |field, name| self.object(field, name);
        let frame = &mut layout.frame;
        frame.len = frame_len;
        frame.code = Field::at(object(at.frame_code, "interpreter_frame.executable")?);
        frame.previous = Field::at(object(at.previous, "interpreter_frame.previous")?);
        frame.instruction = InstructionLayout::Pointer(Field::at(object(
            at.instruction,
            "interpreter_frame.instr_ptr",
        )?));
        if let EntryFrame::Shim { from, .. } = frame.entry {
            let owner = Field::at(object(at.owner, "interpreter_frame.owner")?);
            frame.entry = EntryFrame::Shim { owner, from };
        }
        Ok(())
    }

    fn code(&self, code_len: usize, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let object = |field, name| self.object(field, name);
        layout.code = CodeLayout {
            len: code_len,
            name: Field::at(object(at.name, "code_object.qualname")?),
            file: Field::at(object(at.file, "code_object.filename")?),
            line_table: Field::at(object(at.line_table, "code_object.linetable")?),
            first_line: Field::at(object(at.first_line, "code_object.firstlineno")?),
            instructions: code_len,
            ..layout.code
        };
        Ok(())
    }

    fn heap(&self, frame_len: usize, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let object = |field, name| self.object(field, name);
        let heap = &mut layout.heap;
        heap.gc = GcState::OfInterpreter(self.state(at.gc, "interpreter_state.gc")?);
        heap.collecting = Field::at(object(at.gc_collecting, "gc.collecting")?);
        heap.tuple_items = object(at.tuple_items, "tuple_object.ob_item")?;
        heap.frame_locals = frame_len;
        let names = object(at.local_names, "code_object.localsplusnames")?;
        // `co_localspluskinds` is not published, but always follows.
        heap.local_names =
            LocalNames::Together { names: Field::at(names), kinds: Field::at(names + 8) };
        Ok(())
    }

    fn objects(&self, ascii_start: usize, layout: &mut PythonLayout) -> Result<(), &'static str> {
        let at = self.at;
        let object = |field, name| self.object(field, name);
        let text = &mut layout.object;
        // Not published, but never changed.
        text.compact_start = ascii_start + (text.compact_start - text.ascii_start);
        text.ascii_start = ascii_start;
        text.type_of = Field::at(object(at.type_of, "pyobject.ob_type")?);
        text.bytes_len = Field::at(object(at.bytes_len, "bytes_object.ob_size")?);
        text.bytes_start = object(at.bytes_start, "bytes_object.ob_sval")?;
        text.text_len = Field::at(object(at.text_len, "unicode_object.length")?);
        text.text_state = Field::at(object(at.text_state, "unicode_object.state")?);
        layout.dict.keys = Field::at(object(at.dict_keys, "dict_object.ma_keys")?);
        layout.dict.values = Field::at(object(at.dict_values, "dict_object.ma_values")?);
        Ok(())
    }
}

fn whole_fields(layout: &PythonLayout) -> Result<(), &'static str> {
    fn inside<T: Scalar>(field: Field<T>, len: usize) -> bool {
        field.end() <= len
    }
    let (frame, code) = (&layout.frame, &layout.code);
    let instruction = match frame.instruction {
        InstructionLayout::Bytes(f) | InstructionLayout::Units(f) => inside(f, frame.len),
        InstructionLayout::Pointer(f) => inside(f, frame.len),
    };
    let saved = match frame.saved_stack {
        SavedStack::Unknown => true,
        SavedStack::Index(f) => inside(f, frame.len),
    };
    let entry = match frame.entry {
        EntryFrame::Unmarked => true,
        EntryFrame::Flag(f) => inside(f, frame.len),
        EntryFrame::Shim { owner, .. } => inside(owner, frame.len),
    };
    let frame_fits = inside(frame.code, frame.len) && inside(frame.previous, frame.len);
    let copy = frame.copy.is_none_or(|f| inside(f, frame.len));
    if !(frame_fits && instruction && saved && entry && copy) {
        return Err("interpreter_frame.localsplus");
    }
    let code_fits = inside(code.name, code.len)
        && inside(code.file, code.len)
        && inside(code.line_table, code.len)
        && inside(code.first_line, code.len)
        && code.version.is_none_or(|f| inside(f, code.len))
        && code.copies.is_none_or(|f| inside(f, code.len));
    if !code_fits {
        return Err("code_object.co_code_adaptive");
    }
    match layout.instance.attributes {
        AttributeLayout::Dict => Err("a row without inline attributes"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::python::layouts::layout_tables::{ROWS, row};

    #[test]
    fn every_layout_row_is_valid() {
        for row in ROWS {
            if row.debug_offsets.is_some() {
                whole_fields(row).unwrap();
            }
        }
    }

    #[test]
    fn zeros_are_refused() {
        let row = row(13, false).unwrap();
        assert!(overlay(row, &row.debug_offsets.unwrap(), &[0; LEN]).is_err());
        assert!(overlay(row, &row.debug_offsets.unwrap(), &[]).is_err());
        assert_eq!(version(&[0; LEN]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_bounded_offsets_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), LEN),
            small in proptest::collection::vec(0u64..300, LEN / 8),
        ) {
            let small: Vec<u8> = small.iter().flat_map(|n| n.to_le_bytes()).collect();
            for row in ROWS {
                let Some(at) = row.debug_offsets else { continue };
                for bytes in [&bytes, &small] {
                    if let Ok(layout) = overlay(row, &at, bytes) {
                        prop_assert!(layout.frame.len <= MAX_OBJECT_BYTES as usize);
                        prop_assert!(layout.frame.code.end() <= layout.frame.len);
                    }
                }
            }
        }
    }
}
