//! CPython's structure layouts: offsets per version.

mod debug_offsets;
pub(super) mod interpreter;
mod layout;
pub(super) mod layout_tables;

pub use layout::LayoutSource;
pub(in crate::python) use layout::{
    AttributeLayout, CodeLayout, DictSize, EntryFrame, FrameLayout, GcState, GeneratorFrame,
    InstructionLayout, LineFormat, LocalNames, ObjectLayout, PythonLayout, RefcountLayout,
    SavedStack,
};
