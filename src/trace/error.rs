//! Errors of creating and reading a trace.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files::PlaceError;
use crate::model::SinkError;

/// Why a trace could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The file exists, and overwriting was not requested.
    #[error("{} exists already", path.display())]
    Exists {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path is a directory.
    #[error("{} is a directory", path.display())]
    Directory {
        /// The path asked for.
        path: PathBuf,
    },
    /// The file or its head could not be written.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The path asked for.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl CreateError {
    pub(super) fn from_place(path: &Path, error: PlaceError) -> CreateError {
        let path = path.to_owned();
        match error {
            PlaceError::Exists(_) => CreateError::Exists { path },
            PlaceError::Directory(_) => CreateError::Directory { path },
            PlaceError::Io { source, .. } => CreateError::Create { path, source },
            foreign => CreateError::Create { path, source: io::Error::other(foreign) },
        }
    }
}

/// Why a trace could not be read. Damage inside a trace is no error: see [`super::ReplaySummary`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Not a regular file, such as a pipe, a device or a directory.
    #[error("{} is {what}, not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The file has no bytes.
    #[error("{} is empty", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file ends inside the first ten bytes.
    #[error("{} ends after {bytes} bytes, before the recording began", path.display())]
    HeadCut {
        /// The file.
        path: PathBuf,
        /// Bytes it has.
        bytes: u64,
    },
    /// The file does not begin like a trace.
    #[error("{} is not a memspy trace: it looks like {looks_like}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// The format that its first bytes suggest.
        looks_like: &'static str,
    },
    /// A later memspy wrote the file.
    #[error(
        "{} has trace format version {found}; this memspy reads versions up to {supported}: \
         read it with a newer memspy",
        path.display()
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u16,
        /// The latest version that this program reads.
        supported: u16,
    },
    /// Reading failed.
    #[error("cannot read {} at byte {offset}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Byte offset.
        offset: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The file shrank during reading.
    #[error(
        "{} became shorter while it was read: {bytes} bytes now, {expected} before",
        path.display()
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Bytes now.
        bytes: u64,
        /// Bytes when reading began.
        expected: u64,
    },
    /// The decompressor could not start.
    #[error("cannot set up the decompressor: {source}")]
    Decompressor {
        /// Its reason.
        source: io::Error,
    },
    /// The reading thread could not start.
    #[error("cannot start a thread that reads the trace: {source}")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// The sink refused a record.
    #[error("the trace's records could not be taken: {source}")]
    Sink {
        /// Its reason.
        source: SinkError,
    },
}
