//! Code objects: names, files, line tables.

mod addressed;
mod code_cache;
mod code_object;
mod generated_code;
mod known_functions;
mod line_table;

pub use addressed::{AddressedCode, CodeReader};
pub(in crate::python) use code_cache::{CodeCache, CodeLookup, RawFrame};
pub(in crate::python) use code_object::{BytecodeLocation, CodeObject};
pub(in crate::python) use known_functions::is_engine_function;
pub(in crate::python) use line_table::CodeLines;
