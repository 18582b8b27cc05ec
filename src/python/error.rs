//! Errors of the room.

use crate::target::{Addr, MemoryError, ObjectError, ProcessError, SymbolError};

/// Why stacks cannot be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum InterpreterError {
    #[error("{program} (pid {pid}) is not a Python program: no CPython is loaded in it")]
    NotPython { pid: u32, program: String },
    #[error("the Python interpreter of process {pid} is not ready: {waiting_for}")]
    NotReady { pid: u32, waiting_for: &'static str },
    #[error("CPython {found} is not known; known are {known}")]
    UnknownVersion { found: String, known: String },
    #[error("CPython {version}: {what} is not supported")]
    Unsupported { version: String, what: &'static str },
    #[error("the memory of CPython {version} does not look as expected: {why}")]
    LayoutMismatch { version: String, why: String },
    #[error("permission denied when trying to read the memory of process {pid}")]
    Denied { pid: u32 },
    #[error("process {pid} has exited")]
    Gone { pid: u32 },
    #[error("cannot read {what} at {at}: {source}")]
    Unreadable { what: &'static str, at: Addr, source: MemoryError },
    #[error(transparent)]
    Process(ProcessError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Symbol(#[from] SymbolError),
    #[error(
        "{why}; the py-spy crate, which may know it, opens files that the job names: it is used only by a memspy with no more \
         rights than the job, as its own user"
    )]
    NoFallback { why: String },
    #[error("py-spy cannot read process {pid} either: {why}")]
    Fallback { pid: u32, why: String },
}

impl InterpreterError {
    pub(super) fn unreadable(
        pid: u32,
        what: &'static str,
        at: Addr,
        source: MemoryError,
    ) -> InterpreterError {
        match source {
            MemoryError::Gone => InterpreterError::Gone { pid },
            MemoryError::Denied => InterpreterError::Denied { pid },
            source => InterpreterError::Unreadable { what, at, source },
        }
    }

    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        matches!(self, InterpreterError::NotReady { .. })
    }
}

impl From<ProcessError> for InterpreterError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::NotFound { pid } | ProcessError::Exited { pid } => {
                InterpreterError::Gone { pid }
            }
            ProcessError::Denied { pid, .. } => InterpreterError::Denied { pid },
            other => InterpreterError::Process(other),
        }
    }
}
