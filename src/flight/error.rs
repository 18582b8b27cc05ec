//! Errors of keeping or writing the last part of a recording.

use std::io;
use std::path::PathBuf;

use crate::render::{file_word, in_sentence, suggestion};
use crate::trace::{CreateError, ReadError};

/// Why the last part could not be kept or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// A folder of segments exists.
    #[error(
        "a recording that did not end in order left its segments; {} makes a trace of them, --force overwrites them",
        in_sentence(&suggestion(["join", &file_word(&folder.to_string_lossy()), "-o", "FILE"]))
    )]
    SegmentsLeft {
        /// The folder.
        folder: PathBuf,
        /// Why it is refused.
        source: CreateError,
    },
    /// The folder could not be created.
    #[error("nothing was recorded")]
    NothingRecorded {
        /// Why.
        source: CreateError,
    },
    /// The last segment could not be written.
    #[error("what was recorded last could not be written")]
    Flush {
        /// The system's reason.
        source: io::Error,
    },
    /// The trace could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The segments could not be joined.
    #[error("cannot write {}", path.display())]
    Join {
        /// The trace.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// The trace could not be finished.
    #[error("cannot write {}", path.display())]
    Finish {
        /// The trace.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The segments could not be removed.
    #[error("the segments in {} cannot be removed", folder.display())]
    Remove {
        /// The folder.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}
