//! CPython 3.8 to 3.15: what each Python thread is executing, read from outside without stopping it.
//!
//! Turns a [`Process`](crate::target::Process) into [`ThreadSample`](crate::model::ThreadSample)s.
//! May import `model` and `target`, and alone knows CPython's structures and the py-spy crate.
//! Never stops or writes to the target, and never prints a stack that was not one at some instant as far as can be checked.
//! Start reading at [`PythonReader`]; how one stack is read without a stop is told in [`walk`].

mod activity;
mod attribute;
mod bpf_stacks;
mod code_cache;
mod code_object;
mod debug_offsets;
mod dicts;
mod error;
mod exceptions;
mod fallback;
mod heap;
mod interpreter;
mod layout;
mod layout_tables;
mod line_cache;
mod line_table;
mod objects;
mod read_windows;
mod reader;
mod scatter_read;
mod stack_sampler;
mod thread;
mod thread_list;
mod thread_names;
mod thread_states;
mod variables;
pub mod walk;

pub use attribute::IntegerAttribute;
pub use bpf_stacks::StackSymbolizer;
pub use error::PythonError;
pub use exceptions::{ExceptionFinder, FoundException};
pub use heap::{
    ClassKind, HeapError, HeapObject, Listing, LocalVariable, PyClass, PythonHeap, ReferenceKind,
};
pub use layout::LayoutSource;
pub use line_cache::LineCache;
pub use reader::{PythonReader, ReaderCoverage};
pub use stack_sampler::SampleStats;
pub use variables::IntegerVariable;
