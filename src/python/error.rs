//! Why a target's Python stacks cannot be read.

use crate::target::{Addr, MemoryError, ObjectError, ProcessError, SymbolError};

/// Why a target's Python stacks cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// No CPython is loaded in it.
    #[error("{program} (pid {pid}) is not a Python program: no CPython is loaded in it")]
    NotPython {
        /// The pid.
        pid: u32,
        /// The program it runs, as it names it.
        program: String,
    },
    /// The interpreter is still starting (or already shutting down): try again later.
    #[error("the Python interpreter of process {pid} is not ready: {waiting_for}")]
    NotReady {
        /// The pid.
        pid: u32,
        /// What is not there yet.
        waiting_for: &'static str,
    },
    /// A CPython whose structures are not known.
    #[error("CPython {found} is not known; known are {known}")]
    UnknownVersion {
        /// What was found.
        found: String,
        /// What would be understood.
        known: String,
    },
    /// A CPython build whose structures are known to differ.
    #[error("CPython {version}: {what} is not supported")]
    Unsupported {
        /// Its version.
        version: String,
        /// What about it.
        what: &'static str,
    },
    /// The structures of the target do not look as those of its version should.
    #[error("the memory of CPython {version} does not look as expected: {why}")]
    LayoutMismatch {
        /// Its version.
        version: String,
        /// What does not fit.
        why: String,
    },
    /// The kernel does not let this user read the target.
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
    /// A structure that must be there could not be read.
    #[error("cannot read {what} at {at}: {source}")]
    Unreadable {
        /// What was to be read.
        what: &'static str,
        /// Where.
        at: Addr,
        /// Why.
        source: MemoryError,
    },
    /// Something about the process could not be learned.
    #[error(transparent)]
    Process(ProcessError),
    /// The object that holds the interpreter could not be understood.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The symbols of the interpreter could not be looked up.
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    /// The own reader does not apply, and the py-spy crate may not be used.
    #[error(
        "{why}; the py-spy crate, which may know it, opens files that the job names: it is used only by a memspy with no more \
         rights than the job, as its own user"
    )]
    NoFallback {
        /// Why the own reader does not apply.
        why: String,
    },
    /// The py-spy crate, used where the own reader does not apply, failed as well.
    #[error("py-spy cannot read process {pid} either: {why}")]
    Fallback {
        /// The pid.
        pid: u32,
        /// What it said.
        why: String,
    },
}

impl PythonError {
    /// The error for a read of `what` at `at` that failed with `source`.
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

    /// Whether the target may become readable a little later.
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
