//! A moving view of the file: memory use stays the same however large the file is.

use std::fs::File;
use std::io;
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};

/// Bytes mapped at a time, unless one block is larger.
const SPAN: u64 = 8 << 20;

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
    /// A file, of which a stretch is mapped.
    File {
        /// The file.
        file: File,
        /// Offset of the mapped stretch, and the stretch.
        view: Option<(u64, Mmap)>,
    },
    /// Bytes in memory.
    Memory(Arc<[u8]>),
}

impl Window {
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
        let now = self.length().map_err(Unreadable::Failed)?;
        if end > now {
            return Err(Unreadable::Shrunk(now));
        }
        match self {
            Window::Memory(bytes) => {
                let found = bytes.get(offset as usize..end as usize);
                found.ok_or(Unreadable::Shrunk(now))
            }
            Window::File { file, view } => {
                let inside = view.as_ref().is_some_and(|(start, map)| {
                    *start <= offset && end <= *start + map.len() as u64
                });
                if !inside {
                    // The old stretch goes first, so that never two are mapped.
                    *view = None;
                    let span = SPAN.max(length as u64).min(total.min(now) - offset);
                    *view = Some((offset, map(file, offset, span).map_err(Unreadable::Failed)?));
                }
                view.as_ref()
                    .and_then(|(start, map)| {
                        let from = (offset - start) as usize;
                        map.get(from..from + length)
                    })
                    .ok_or(Unreadable::Shrunk(now))
            }
        }
    }
}

fn map(file: &File, offset: u64, span: u64) -> io::Result<Mmap> {
    let length = usize::try_from(span).map_err(io::Error::other)?;
    let mut options = MmapOptions::new();
    options.offset(offset).len(length);
    // SAFETY: the map is read-only and its bytes are only ever taken as bytes. A recorder only
    // appends, and a new recording to the same path replaces the file instead of truncating it, so
    // whole blocks do not change below us; what another program changes is seen by the checksum, or
    // harms no more than the answer. `bytes` compares the file's length before every access; a
    // program that truncates the file between that and the access ends us with SIGBUS.
    unsafe { options.map(file) }
}
