//! CPython 3.8 to 3.15: what each Python thread is executing, read from outside without stopping it.
//!
//! Turns a [`Process`](crate::target::Process) into [`ThreadSample`](crate::model::ThreadSample)s.
//! May import `model` and `target`, and alone knows CPython's structures and the py-spy crate.
//! Never stops or writes to the target, and never prints a stack that was not one at some instant as far as can be checked.
//! Start reading at [`PythonReader`]; how one stack is read without a stop is told in [`walk`].

mod activity;
mod attribute;
mod batch;
mod code;
mod code_object;
mod debug_offsets;
mod dicts;
mod error;
mod fallback;
mod heads;
mod heap;
mod interpreter;
mod layout;
mod line_cache;
mod line_table;
mod names;
mod objects;
mod own;
mod probed;
mod raised;
mod reader;
mod rows;
mod thread;
mod thread_states;
mod variables;
pub mod walk;
mod windows;

pub use attribute::IntegerAttribute;
pub use error::PythonError;
pub use heap::{Class, Edge, Heap, HeapError, Kind, Listing, Local, Object};
pub use layout::LayoutSource;
pub use line_cache::LineCache;
pub use own::SampleStats;
pub use probed::ProbedStacks;
pub use raised::{Exceptions, Raised};
pub use reader::{Coverage, PythonReader};
pub use variables::IntegerVariable;
