//! Why Python stacks of a target cannot be read.

use crate::target::{Addr, MemoryError, ObjectError, ProcessError, SymbolError};

/// Why Python stacks of a target cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// No CPython is loaded.
    #[error("{program} (pid {pid}) is not a Python program: no CPython is loaded in it")]
    NotPython {
        /// The pid.
        pid: u32,
        /// The program that it runs.
        program: String,
    },
    /// The interpreter is starting or shutting down; try again later.
    #[error("the Python interpreter of process {pid} is not ready: {waiting_for}")]
    NotReady {
        /// The pid.
        pid: u32,
        /// What is missing.
        waiting_for: &'static str,
    },
    /// The CPython version is not known.
    #[error("CPython {found} is not known; known are {known}")]
    UnknownVersion {
        /// The version found.
        found: String,
        /// The versions supported.
        known: String,
    },
    /// This CPython build has a different layout.
    #[error("CPython {version}: {what} is not supported")]
    Unsupported {
        /// Its version.
        version: String,
        /// How it differs.
        what: &'static str,
    },
    /// The target's structures do not match the layout of its version.
    #[error("the memory of CPython {version} does not look as expected: {why}")]
    LayoutMismatch {
        /// Its version.
        version: String,
        /// What does not match.
        why: String,
    },
    /// The kernel refuses to let this user read the target.
    #[error("permission denied when trying to read the memory of process {pid}")]
    Denied {
        /// The pid.
        pid: u32,
    },
    /// The process has ended.
    #[error("process {pid} has exited")]
    Gone {
        /// The pid.
        pid: u32,
    },
    /// A required structure could not be read.
    #[error("cannot read {what} at {at}: {source}")]
    Unreadable {
        /// What was to be read.
        what: &'static str,
        /// Where.
        at: Addr,
        /// Why.
        source: MemoryError,
    },
    /// Reading process information failed.
    #[error(transparent)]
    Process(ProcessError),
    /// The interpreter's ELF object is invalid.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Looking up the interpreter's symbols failed.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// The built-in reader does not apply, and the py-spy crate must not be used.
    #[error(
        "{why}; the py-spy crate, which may know it, opens files that the job names: it is used only by a memspy with no more \
         rights than the job, as its own user"
    )]
    NoFallback {
        /// Why the built-in reader does not apply.
        why: String,
    },
    /// The built-in reader does not apply, and the py-spy crate failed.
    #[error("py-spy cannot read process {pid} either: {why}")]
    Fallback {
        /// The pid.
        pid: u32,
        /// Its error.
        why: String,
    },
}

impl PythonError {
    pub(super) fn unreadable(
        pid: u32,
        what: &'static str,
        at: Addr,
        source: MemoryError,
    ) -> PythonError {
        match source {
            MemoryError::Gone => PythonError::Gone { pid },
            MemoryError::Denied => PythonError::Denied { pid },
            source => PythonError::Unreadable { what, at, source },
        }
    }

    /// Whether the target may become readable later.
    pub fn is_transient(&self) -> bool {
        matches!(self, PythonError::NotReady { .. })
    }
}

impl From<ProcessError> for PythonError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::NotFound { pid } | ProcessError::Exited { pid } => {
                PythonError::Gone { pid }
            }
            ProcessError::Denied { pid, .. } => PythonError::Denied { pid },
            other => PythonError::Process(other),
        }
    }
}
