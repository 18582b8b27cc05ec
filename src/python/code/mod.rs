//! Code objects: names, files, line tables.

pub(super) mod addressed;
pub(super) mod code_cache;
pub(super) mod code_object;
pub(super) mod generated_code;
pub(super) mod line_cache;
pub(super) mod line_table;
