//! Where what is told of a process comes from, if that is a core file.

/// What a core file says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreOrigin {
    /// The file.
    pub file: String,
    /// The signal that ended the process (`SIGABRT`); `None` where there was none, as in a copy that `gcore` made.
    pub signal: Option<String>,
    /// The thread that received it.
    pub thread: Option<u32>,
    /// What is missing in it, a sentence each.
    pub missing: Vec<String>,
}
