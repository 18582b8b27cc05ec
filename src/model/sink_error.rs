//! Why a sink takes no more records.

use std::error::Error;
use std::io;

/// Why a sink takes no more records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// What it writes them to failed.
    #[error(transparent)]
    Write(#[from] io::Error),
    /// The thread that the records are passed to has ended; its own error says why.
    #[error("the trace can no longer be written")]
    ThreadEnded,
    /// The thread that the records are passed to ended without an error of its own.
    #[error("the writing thread ended unexpectedly")]
    ThreadFailed,
    /// No file is open to write them to.
    #[error("no segment of the recording has begun")]
    NotBegun,
    /// What it makes of them failed, or would cost too much.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

impl SinkError {
    /// What a sink makes of its records failed.
    pub fn failed(error: impl Error + Send + Sync + 'static) -> SinkError {
        SinkError::Failed(Box::new(error))
    }

    /// The system's error, where writing failed.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            SinkError::Write(error) => Some(error),
            _ => None,
        }
    }

    /// Whether whoever was to read what is written reads no more.
    pub fn is_broken_pipe(&self) -> bool {
        self.io().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// What a sink answers.
pub type SinkResult<T = ()> = Result<T, SinkError>;
