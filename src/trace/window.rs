//! A moving window over the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Unless a block is larger. Copied, not mapped: access to a truncated file's lost page would kill
/// memspy.
const WINDOW_BYTES: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) enum WindowError {
    Failed(io::Error),
    /// To this length.
    Shrunk(u64),
}

#[derive(Debug)]
pub(crate) enum TraceWindow {
    /// One range is in memory.
    File {
        file: File,
        /// In the file.
        start: u64,
        bytes: Vec<u8>,
    },
    Memory(Arc<[u8]>),
}

impl TraceWindow {
    pub(crate) fn new(file: File) -> TraceWindow {
        TraceWindow::File { file, start: 0, bytes: Vec::new() }
    }

    pub(crate) fn length(&self) -> io::Result<u64> {
        match self {
            TraceWindow::File { file, .. } => Ok(file.metadata()?.len()),
            TraceWindow::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// `length` bytes at `offset`, inside the first `total` bytes of the file.
    pub(crate) fn bytes(
        &mut self,
        offset: u64,
        length: usize,
        total: u64,
    ) -> Result<&[u8], WindowError> {
        let end = offset.saturating_add(length as u64);
        match self {
            TraceWindow::Memory(bytes) => {
                let found = bytes.get(offset as usize..end as usize);
                found.ok_or(WindowError::Shrunk(bytes.len() as u64))
            }
            TraceWindow::File { file, start, bytes } => {
                // These bytes are good, but little else will be in a file that is being truncated.
                let now = file.metadata().map_err(WindowError::Failed)?.len();
                if end > now {
                    return Err(WindowError::Shrunk(now));
                }
                let inside = *start <= offset && end <= *start + bytes.len() as u64;
                if !inside {
                    let span = WINDOW_BYTES.max(length as u64).min(total.saturating_sub(offset));
                    bytes.clear();
                    if span as usize > bytes.capacity()
                        || bytes.capacity() as u64 > 2 * WINDOW_BYTES
                    {
                        // Free the old range first, so that there are never two.
                        *bytes = Vec::with_capacity(span as usize);
                    }
                    bytes.resize(span as usize, 0);
                    *start = offset;
                    if let Err(error) = file.read_exact_at(bytes, offset) {
                        bytes.clear();
                        return Err(match error.kind() {
                            io::ErrorKind::UnexpectedEof => {
                                WindowError::Shrunk(file.metadata().map_or(0, |file| file.len()))
                            }
                            _ => WindowError::Failed(error),
                        });
                    }
                }
                let from = (offset - *start) as usize;
                bytes.get(from..from + length).ok_or(WindowError::Shrunk(total))
            }
        }
    }
}
