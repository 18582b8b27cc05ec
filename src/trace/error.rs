//! What can go wrong when a trace is created or read.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::files::PlaceError;
use crate::model::SinkError;

/// Why a trace could not be created.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Something stands there already and was not to be overwritten.
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
    /// The file could not be made or its head not be written.
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

/// Why a trace could not be read. Damage inside a trace is not an error: see [`super::ReplaySummary`].
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
    /// A pipe, a device, a directory: only a regular file can be read.
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
    /// The file ends inside the ten bytes that every trace begins with.
    #[error("{} ends after {bytes} bytes, before the recording began", path.display())]
    HeadCut {
        /// The file.
        path: PathBuf,
        /// Bytes it has.
        bytes: u64,
    },
    /// The file does not begin as a trace does.
    #[error("{} is not a memspy trace: it looks like {looks_like}", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// What its first bytes look like.
        looks_like: &'static str,
    },
    /// The file was written by a later memspy.
    #[error(
        "{} has trace format version {found}; this memspy reads versions up to {supported}: \
         read it with a newer memspy",
        path.display()
    )]
    NewerVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The latest version this program reads.
        supported: u16,
    },
    /// Reading failed.
    #[error("cannot read {} at byte {offset}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The file lost bytes that it had when reading began.
    #[error(
        "{} became shorter while it was read: {bytes} bytes now, {expected} before",
        path.display()
    )]
    Shrunk {
        /// The file.
        path: PathBuf,
        /// Bytes it has now.
        bytes: u64,
        /// Bytes it had.
        expected: u64,
    },
    /// The decompressor could not be set up.
    #[error("cannot set up the decompressor: {source}")]
    Decompressor {
        /// Its reason.
        source: io::Error,
    },
    /// The thread that reads ahead could not be started.
    #[error("cannot start a thread that reads the trace: {source}")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
    /// The receiver of the records takes no more.
    #[error("the trace's records could not be taken: {source}")]
    Sink {
        /// Its reason.
        source: SinkError,
    },
}
