//! An out-of-memory exception: its message and stack.

use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// The result of searching the job's memory for an out-of-memory exception after the allocator
/// counted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomException {
    /// When the search ended.
    pub time: Nanos,
    /// The exception; `None`: it was gone already, or exceptions are unreadable.
    pub error: Option<RaisedError>,
}

/// The exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaisedError {
    /// The thread that raised or handled it; `None`: unknown.
    pub thread: Option<ThreadId>,
    /// The stack that raised it; `None`: no traceback.
    pub stack: Option<StackId>,
    /// PyTorch's message.
    pub text: String,
}
