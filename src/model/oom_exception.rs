//! An out-of-memory error as the program saw it: its words, and the line that asked for the memory.

use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// The allocator counted an out-of-memory error, and the exception that says so was looked for in the job's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomException {
    /// When the search was over.
    pub time: Nanos,
    /// What was found; `None` when the job was done with its exception before it was seen, or exceptions cannot be read.
    pub error: Option<RaisedError>,
}

/// The exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaisedError {
    /// The thread that raised or handled it; `None` when it is not known.
    pub thread: Option<ThreadId>,
    /// Where it was raised, and by whom that was called; `None` when it had no traceback.
    pub stack: Option<StackId>,
    /// Its words, as PyTorch wrote them.
    pub text: String,
}
