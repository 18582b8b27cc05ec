//! Errors of keeping or writing the last part of a recording.

use std::io;
use std::path::PathBuf;

use crate::render::{file_word, in_sentence, suggestion};
use crate::trace::{CreateError, ReadError};

/// Why the last part could not be kept or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum RingError {
    #[error(
        "a recording that did not end in order left its segments; {} makes a trace of them, --force overwrites them",
        in_sentence(&suggestion(["join", &file_word(&folder.to_string_lossy()), "-o", "FILE"]))
    )]
    SegmentsLeft { folder: PathBuf, source: CreateError },
    #[error("nothing was recorded")]
    NothingRecorded { source: CreateError },
    #[error("what was recorded last could not be written")]
    Flush { source: io::Error },
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error("cannot write {}", path.display())]
    Join { path: PathBuf, source: ReadError },
    #[error("cannot write {}", path.display())]
    Finish { path: PathBuf, source: io::Error },
    #[error("the segments in {} cannot be removed", folder.display())]
    Remove { folder: PathBuf, source: io::Error },
}
