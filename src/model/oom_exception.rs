//! An out-of-memory exception in the job.

use super::record::Nanos;
use super::stack::{StackId, ThreadId};

/// Result of a search for an out-of-memory exception after the allocator counted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomException {
    /// End of the search.
    pub time: Nanos,
    /// `None`: gone already, or unreadable.
    pub error: Option<RaisedError>,
}

/// The exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaisedError {
    /// Thread that raised or handled it, if known.
    pub thread: Option<ThreadId>,
    /// Where it was raised, if it has a traceback.
    pub stack: Option<StackId>,
    /// PyTorch's message.
    pub text: String,
}
