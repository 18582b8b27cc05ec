//! Facts about a core file.

/// A core file read in place of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreOrigin {
    /// The file.
    pub file: String,
    /// The fatal signal (`SIGABRT`); `None`: none, as in `gcore`'s copy.
    pub signal: Option<String>,
    /// The thread that received it.
    pub thread: Option<u32>,
    /// What it lacks, one sentence each.
    pub missing: Vec<String>,
}
