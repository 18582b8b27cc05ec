//! Facts about a core file.

/// A core file as the source of a process's facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreOrigin {
    /// The file.
    pub file: String,
    /// The signal that ended the process (`SIGABRT`); `None` if there was none, as in `gcore`'s
    /// copy.
    pub signal: Option<String>,
    /// The thread that received it.
    pub thread: Option<u32>,
    /// What it lacks, one sentence each.
    pub missing: Vec<String>,
}
