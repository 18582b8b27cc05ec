//! A moving view of the file: memory use stays the same however large the file is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes read at a time, unless one block is larger. What is read stays as it is whatever becomes of the file, which a
/// mapped stretch does not: the kernel ends a program that looks at a mapped page which another one has cut off.
const WINDOW_BYTES: u64 = 1 << 20;

/// Why bytes could not be had.
#[derive(Debug)]
pub(crate) enum WindowError {
    /// The system refused.
    Failed(io::Error),
    /// The file has become shorter: its length now.
    Shrunk(u64),
}

/// The bytes of a trace.
#[derive(Debug)]
pub(crate) enum TraceWindow {
    /// A file, of which a stretch is in memory.
    File {
        /// The file.
        file: File,
        /// Offset of the stretch that was read last.
        start: u64,
        /// The stretch.
        stretch: Vec<u8>,
    },
    /// Bytes in memory.
    Memory(Arc<[u8]>),
}

impl TraceWindow {
    /// A file of which nothing has been read.
    pub(crate) fn new(file: File) -> TraceWindow {
        TraceWindow::File { file, start: 0, stretch: Vec::new() }
    }

    /// Bytes there are now.
    pub(crate) fn length(&self) -> io::Result<u64> {
        match self {
            TraceWindow::File { file, .. } => Ok(file.metadata()?.len()),
            TraceWindow::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// The `length` bytes at `offset`, which have to lie in the first `total` bytes of the file.
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
            TraceWindow::File { file, start, stretch } => {
                // What is in memory is good, but of a file that is being cut not much else will be.
                let now = file.metadata().map_err(WindowError::Failed)?.len();
                if end > now {
                    return Err(WindowError::Shrunk(now));
                }
                let inside = *start <= offset && end <= *start + stretch.len() as u64;
                if !inside {
                    let span = WINDOW_BYTES.max(length as u64).min(total.saturating_sub(offset));
                    stretch.clear();
                    if span as usize > stretch.capacity()
                        || stretch.capacity() as u64 > 2 * WINDOW_BYTES
                    {
                        // The old stretch goes first, so that never two are held.
                        *stretch = Vec::with_capacity(span as usize);
                    }
                    stretch.resize(span as usize, 0);
                    *start = offset;
                    if let Err(error) = file.read_exact_at(stretch, offset) {
                        stretch.clear();
                        return Err(match error.kind() {
                            io::ErrorKind::UnexpectedEof => {
                                WindowError::Shrunk(file.metadata().map_or(0, |file| file.len()))
                            }
                            _ => WindowError::Failed(error),
                        });
                    }
                }
                let from = (offset - *start) as usize;
                stretch.get(from..from + length).ok_or(WindowError::Shrunk(total))
            }
        }
    }
}
