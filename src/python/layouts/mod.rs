//! CPython's structure layouts: offsets per version.

pub(super) mod debug_offsets;
pub(super) mod interpreter;
pub(super) mod layout;
pub(super) mod layout_tables;
