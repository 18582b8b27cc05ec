//! A moving view of the file: memory use stays the same however large the file is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes read at a time, unless one block is larger. What is read stays as it is whatever becomes of the file, which a
/// mapped stretch does not: the kernel ends a program that looks at a mapped page which another one has cut off.
const SPAN: u64 = 1 << 20;

/// Why bytes could not be had.
#[derive(Debug)]
pub(crate) enum Unreadable {
    /// The system refused.
    Failed(io::Error),
    /// The file has become shorter: its length now.
    Shrunk(u64),
}

/// The bytes of a trace.
#[derive(Debug)]
pub(crate) enum Window {
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

impl Window {
    /// A file of which nothing has been read.
    pub(crate) fn of(file: File) -> Window {
        Window::File { file, start: 0, stretch: Vec::new() }
    }

    /// Bytes there are now.
    pub(crate) fn length(&self) -> io::Result<u64> {
        match self {
            Window::File { file, .. } => Ok(file.metadata()?.len()),
            Window::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }

    /// The `length` bytes at `offset`, which have to lie in the first `total` bytes of the file.
    pub(crate) fn bytes(
        &mut self,
        offset: u64,
        length: usize,
        total: u64,
    ) -> Result<&[u8], Unreadable> {
        let end = offset.saturating_add(length as u64);
        match self {
            Window::Memory(bytes) => {
                let found = bytes.get(offset as usize..end as usize);
                found.ok_or(Unreadable::Shrunk(bytes.len() as u64))
            }
            Window::File { file, start, stretch } => {
                // What is in memory is good, but of a file that is being cut not much else will be.
                let now = file.metadata().map_err(Unreadable::Failed)?.len();
                if end > now {
                    return Err(Unreadable::Shrunk(now));
                }
                let inside = *start <= offset && end <= *start + stretch.len() as u64;
                if !inside {
                    let span = SPAN.max(length as u64).min(total.saturating_sub(offset));
                    stretch.clear();
                    if span as usize > stretch.capacity() || stretch.capacity() as u64 > 2 * SPAN {
                        // The old stretch goes first, so that never two are held.
                        *stretch = Vec::with_capacity(span as usize);
                    }
                    stretch.resize(span as usize, 0);
                    *start = offset;
                    if let Err(error) = file.read_exact_at(stretch, offset) {
                        stretch.clear();
                        return Err(match error.kind() {
                            io::ErrorKind::UnexpectedEof => {
                                Unreadable::Shrunk(file.metadata().map_or(0, |file| file.len()))
                            }
                            _ => Unreadable::Failed(error),
                        });
                    }
                }
                let from = (offset - *start) as usize;
                stretch.get(from..from + length).ok_or(Unreadable::Shrunk(total))
            }
        }
    }
}
