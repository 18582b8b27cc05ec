//! Resolves pairs of code object and instruction offset.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::python::code::code_object::CodeObject;
use crate::python::code::line_table::CodeLines;
use crate::python::layouts::CodeLayout;
use crate::python::layouts::interpreter::Interpreter;
use crate::python::objects::text;
use crate::target::{Addr, Field, Memory};

/// An instruction's function, file and line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressedCode {
    /// `co_name`.
    pub name: Arc<str>,
    /// `co_filename`.
    pub file: Arc<str>,
    /// 0 for none.
    pub line: u32,
}

type NamedCode = (Arc<str>, Arc<str>, CodeLines);

/// Reads code objects that their recorder keeps alive.
pub struct CodeReader {
    memory: Box<dyn Memory>,
    interpreter: Interpreter,
    codes: FxHashMap<Addr, Option<NamedCode>>,
}

impl CodeReader {
    pub(in crate::python) fn new(memory: Box<dyn Memory>, interpreter: Interpreter) -> CodeReader {
        CodeReader { memory, interpreter, codes: FxHashMap::default() }
    }

    /// Addresses may have been reused.
    pub fn forget(&mut self) {
        self.codes.clear();
    }

    /// `None` without a code object at `code`.
    pub fn at(&mut self, code: Addr, offset: i32) -> Option<AddressedCode> {
        let (memory, interpreter) = (&*self.memory, &self.interpreter);
        let known = self.codes.entry(code).or_insert_with(|| {
            let code =
                CodeObject::read(memory, &interpreter.layout, interpreter.code_type, code).ok()?;
            // Since 3.11 the layout names `co_qualname`, after `co_filename` and `co_name`
            // (Include/cpython/code.h).
            let CodeLayout { name, file, .. } = interpreter.layout.code;
            let name = match name.offset == file.offset + 16 {
                true => {
                    let at = Field::<Addr>::at(file.offset + 8).get(&code.head)?;
                    text(memory, &interpreter.layout.object, at).ok()?.text
                }
                false => code.name.text,
            };
            Some((name.into(), code.file.text.into(), code.lines))
        });
        let (name, file, lines) = known.as_ref()?;
        let line = lines.at(i64::from(offset));
        Some(AddressedCode { name: Arc::clone(name), file: Arc::clone(file), line })
    }
}
