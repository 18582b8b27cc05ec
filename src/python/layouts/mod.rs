//! Where CPython keeps things: offsets per version, printed from headers or told by the interpreter itself.

pub(super) mod debug_offsets;
pub(super) mod interpreter;
pub(super) mod layout;
pub(super) mod layout_tables;
