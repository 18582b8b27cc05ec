//! CPython 3.8 to 3.15: what each thread executes, read without a stop.
//!
//! Turns a [`Process`](crate::target::Process) into [`ThreadSample`](crate::model::ThreadSample)s.
//! May import `model`, `abi`, `target`; only this room knows CPython's structures and py-spy. Never
//! stops or writes to the target, never returns an inconsistent stack. Start reading at
//! [`InterpreterReader`] and `stacks/walk.rs`.

mod attribute;
mod code;
mod dicts;
mod error;
mod exceptions;
mod follow;
mod heap;
mod layouts;
mod line_cache;
mod module_names;
mod objects;
mod reader;
mod scatter_read;
mod stacks;
mod variables;

pub use attribute::IntegerAttribute;
pub use code::{AddressedCode, CodeReader};
pub use error::InterpreterError;
pub use exceptions::{ExceptionFinder, FoundException};
pub use follow::{ChainFrame, ChainNamer, NamedChain, PolledStack, StackPoller};
pub use heap::{
    ClassKind, HeapError, HeapListing, HeapObject, LeadingObjects, LocalVariable, ObjectHeap,
    OnwardReferences, PyClass, ReferenceGraph, ReferenceKind, VariableHolder,
};
pub use layouts::LayoutSource;
pub use line_cache::LineCache;
pub use reader::{InterpreterReader, ReaderCoverage};
pub use stacks::{PollTarget, SampleStats, StackSymbolizer, ThreadKey};
pub use variables::IntegerVariable;
