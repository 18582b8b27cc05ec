//! CPython 3.8 to 3.15: what each Python thread is executing, read from outside without stopping it.
//!
//! Turns a [`Process`](crate::target::Process) into [`ThreadSample`](crate::model::ThreadSample)s.
//! May import `model` and `target`, and alone knows CPython's structures and the py-spy crate.
//! Never stops or writes to the target, and never prints a stack that was not one at some instant as far as can be checked.
//! Start reading at [`PythonReader`]; how one stack is read without a stop is told in [`walk`].

mod activity;
mod attribute;
mod scatter_read;
mod code_cache;
mod code_object;
mod debug_offsets;
mod dicts;
mod error;
mod fallback;
mod thread_list;
mod heap;
mod interpreter;
mod layout;
mod line_cache;
mod line_table;
mod thread_names;
mod objects;
mod stack_sampler;
mod bpf_stacks;
mod exceptions;
mod reader;
mod layout_tables;
mod thread;
mod thread_states;
mod variables;
pub mod walk;
mod read_windows;

pub use attribute::IntegerAttribute;
pub use error::PythonError;
pub use heap::{PyClass, ReferenceKind, PythonHeap, HeapError, ClassKind, Listing, LocalVariable, HeapObject};
pub use layout::LayoutSource;
pub use line_cache::LineCache;
pub use stack_sampler::SampleStats;
pub use bpf_stacks::StackSymbolizer;
pub use exceptions::{ExceptionFinder, FoundException};
pub use reader::{ReaderCoverage, PythonReader};
pub use variables::IntegerVariable;
