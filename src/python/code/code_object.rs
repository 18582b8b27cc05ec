//! Reads a code object: name, file, lines.

use crate::model::Function;
use crate::python::code::known_functions::is_wait_function;
use crate::python::code::line_table::CodeLines;
use crate::python::layouts::{InstructionLayout, PythonLayout};
use crate::python::objects::{DecodeError, PyString, bytes, text};
use crate::target::{Addr, Field, Memory};

const MAX_COPIES: u64 = 1 << 16;
pub(in crate::python) const MAX_TABLE_LEN: usize = 16 << 20;
/// `_Py_CODEUNIT`.
const UNIT: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::python) enum BytecodeLocation {
    Offsets,
    At(u64),
    /// First the original, then the threads' copies, of `len` bytes each.
    Copied {
        starts: Vec<u64>,
        len: u64,
    },
}

impl BytecodeLocation {
    pub(in crate::python) fn offset(&self, instruction: u64) -> Option<i64> {
        match self {
            BytecodeLocation::Offsets => Some(instruction as i64),
            BytecodeLocation::At(start) => Some(instruction.wrapping_sub(*start) as i64),
            BytecodeLocation::Copied { starts, len } => starts
                .iter()
                .map(|start| instruction.wrapping_sub(*start))
                .find(|offset| offset < len)
                .map(|offset| offset as i64),
        }
    }

    /// An ended thread's copy may be freed.
    pub(in crate::python) fn forget_copies(&mut self) {
        if let BytecodeLocation::Copied { starts, .. } = self {
            starts.truncate(1);
        }
    }
}

#[derive(Debug)]
pub(in crate::python) struct CodeObject {
    pub(in crate::python) head: Vec<u8>,
    pub(in crate::python) name: PyString,
    pub(in crate::python) file: PyString,
    pub(in crate::python) table: Vec<u8>,
    pub(in crate::python) table_at: Addr,
    pub(in crate::python) function: Function,
    pub(in crate::python) lines: CodeLines,
    pub(in crate::python) waits: bool,
    pub(in crate::python) bytecode: BytecodeLocation,
}

impl CodeObject {
    pub(in crate::python) fn read(
        memory: &dyn Memory,
        layout: &PythonLayout,
        code_type: Option<Addr>,
        at: Addr,
    ) -> Result<CodeObject, DecodeError> {
        CodeObject::read_within(memory, layout, code_type, at, MAX_TABLE_LEN)
    }

    /// Omits a line table longer than `most`.
    pub(in crate::python) fn read_within(
        memory: &dyn Memory,
        layout: &PythonLayout,
        code_type: Option<Addr>,
        at: Addr,
        most: usize,
    ) -> Result<CodeObject, DecodeError> {
        let fields = &layout.code;
        let head = memory.vec(at, fields.len)?;
        let class = layout.object.type_of.get(&head).ok_or(DecodeError::Malformed)?;
        if code_type.is_some_and(|expected| expected != class) {
            return Err(DecodeError::Malformed);
        }
        let of = |field: Field<Addr>| field.get(&head).ok_or(DecodeError::Malformed);
        let first_line = fields.first_line.get(&head).ok_or(DecodeError::Malformed)?;
        let name = text(memory, &layout.object, of(fields.name)?)?;
        let file = text(memory, &layout.object, of(fields.file)?)?;
        let table_object = of(fields.line_table)?;
        let (table, lines) = match bytes(memory, &layout.object, table_object, most)? {
            Some(table) => {
                let lines = CodeLines::decode(fields.line_format, &table, first_line);
                (table, lines)
            }
            None => (Vec::new(), CodeLines::unknown(first_line)),
        };
        let function = Function {
            name: name.text.as_str().into(),
            file: file.text.as_str().into(),
            first_line,
            last_line: lines.last_line(),
            is_native: false,
        };
        let bytecode = match layout.frame.instruction {
            InstructionLayout::Pointer(_) => {
                BytecodeLocation::At(at.0 + fields.instructions as u64)
            }
            InstructionLayout::Bytes(_) | InstructionLayout::Units(_) => BytecodeLocation::Offsets,
        };
        Ok(CodeObject {
            waits: is_wait_function(&file.text, &name.text),
            table_at: table_object + layout.object.bytes_start as u64,
            head,
            name,
            file,
            table,
            function,
            lines,
            bytecode,
        })
    }

    /// `_PyCodeArray` (Include/cpython/code.h).
    pub(in crate::python) fn with_copies(
        &self,
        memory: &dyn Memory,
        layout: &PythonLayout,
    ) -> Result<BytecodeLocation, DecodeError> {
        let (BytecodeLocation::At(own), Some(copies)) = (&self.bytecode, layout.code.copies) else {
            return Ok(self.bytecode.clone());
        };
        let units = layout.object.bytes_len.get(&self.head).ok_or(DecodeError::Malformed)?;
        let array =
            copies.get(&self.head).filter(|at| at.is_plausible()).ok_or(DecodeError::Malformed)?;
        let count = memory.u64(array)?;
        if count > MAX_COPIES {
            return Err(DecodeError::Malformed);
        }
        let entries = memory.vec(array + 8, count as usize * 8)?;
        let entries = entries.chunks_exact(8).filter_map(|entry| Field::<u64>::at(0).get(entry));
        let mut starts = vec![*own];
        starts.extend(entries.skip(1).filter(|start| Addr(*start).is_plausible()));
        Ok(BytecodeLocation::Copied { starts, len: units.saturating_mul(UNIT) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_found_in_any_bytecode_copy() {
        let mut bytecode =
            BytecodeLocation::Copied { starts: vec![0x1000, 0x5000, 0x3000], len: 0x40 };
        for (instruction, offset) in
            [(0x1000, Some(0)), (0x503e, Some(0x3e)), (0x3002, Some(2)), (0x1040, None), (0, None)]
        {
            assert_eq!(bytecode.offset(instruction), offset, "{instruction:#x}");
        }
        bytecode.forget_copies();
        assert_eq!((bytecode.offset(0x1002), bytecode.offset(0x5002)), (Some(2), None));
        // Up to 3.12 frames store the previous instruction.
        assert_eq!(BytecodeLocation::At(0x1000).offset(0xffe), Some(-2));
        assert_eq!(BytecodeLocation::Offsets.offset(u64::MAX), Some(-1));
    }
}
