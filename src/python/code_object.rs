//! A code object, read: what it is called, where its lines are, and by what it can be recognised.

use super::activity::waits;
use super::layout::{Instruction, Layout};
use super::line_table::Lines;
use super::objects::{ObjectFault, Text, bytes, text};
use crate::model::Function;
use crate::target::{Addr, Memory};

/// A code object of the target.
#[derive(Debug)]
pub(super) struct CodeObject {
    /// Its first bytes, as many as the layout says.
    pub(super) head: Vec<u8>,
    pub(super) name: Text,
    pub(super) file: Text,
    pub(super) table: Vec<u8>,
    /// Where the bytes of the line table are.
    pub(super) table_at: Addr,
    pub(super) function: Function,
    pub(super) lines: Lines,
    /// Whether it is a place where threads wait without allocating.
    pub(super) waits: bool,
    /// What is to be subtracted from a frame's instruction to get an offset in bytes.
    pub(super) instructions: u64,
}

impl CodeObject {
    /// Reads the one at `at`; `Odd` when what lies there is none.
    pub(super) fn read(
        memory: &dyn Memory,
        layout: &Layout,
        code_type: Option<Addr>,
        at: Addr,
    ) -> Result<CodeObject, ObjectFault> {
        let fields = &layout.code;
        let head = memory.vec(at, fields.len)?;
        let class = layout.object.type_of.of(&head).ok_or(ObjectFault::Odd)?;
        if code_type.is_some_and(|expected| expected != class) {
            return Err(ObjectFault::Odd);
        }
        let of = |field: crate::target::Field<Addr>| field.of(&head).ok_or(ObjectFault::Odd);
        let first_line = fields.first_line.of(&head).ok_or(ObjectFault::Odd)?;
        let name = text(memory, &layout.object, of(fields.name)?)?;
        let file = text(memory, &layout.object, of(fields.file)?)?;
        let table = bytes(memory, &layout.object, of(fields.line_table)?)?;
        let lines = Lines::decode(fields.line_format, &table, first_line);
        let function = Function {
            name: name.text.as_str().into(),
            file: file.text.as_str().into(),
            first_line,
            last_line: lines.last_line(),
        };
        let instructions = match layout.frame.instruction {
            Instruction::Pointer(_) => at.0 + fields.instructions as u64,
            Instruction::Bytes(_) | Instruction::Units(_) => 0,
        };
        Ok(CodeObject {
            waits: waits(&file.text, &name.text),
            table_at: of(fields.line_table)? + layout.object.bytes_start as u64,
            head,
            name,
            file,
            table,
            function,
            lines,
            instructions,
        })
    }
}
