//! A core file: the memory, mappings and threads of a process that crashed (or of which `gcore` made a copy).
//!
//! Linux leaves out of a core file what it can find elsewhere: the code and constants of programs and libraries, which the
//! files on the disk hold. They are read from there, but only if these are the same files (`disk.rs`).
//!
//! A core file comes from wherever somebody copied it from and may hold anything: every size in it is checked before it is
//! believed, every read is bounded, and it is never mapped (a file that is cut meanwhile would end memspy).

mod disk;
mod header;
mod notes;
mod start_stack;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::signal::Signal;
use parking_lot::Mutex;

use super::bounded_worker::BoundedWorker;
use super::mappings::{Mapping, Mappings};
use super::memory::{Addr, AddressRange, Memory, MemoryError};
use super::process::OsThread;
use crate::model::CoreOrigin;
use disk::{DiskFiles, Refusal};
use header::{CoreHeader, CoreSegment};
use notes::{CoreNotes, MappedFile};
use start_stack::StartStack;

/// Why a file could not be read as a core file.
#[derive(Debug, thiserror::Error)]
pub enum CoreError {
    /// It could not be opened or read.
    #[error("cannot read the core file {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a core file: {why}", path.display())]
    NotCore {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        why: String,
    },
    /// It is one, and damaged.
    #[error("the core file {} cannot be used: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// A thread in a core file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreThread {
    /// Its id, as the process itself saw it.
    pub id: u32,
    /// The signal that it was about to receive; 0 for none.
    pub signal: u16,
    /// Its general registers, in the order of `struct user_regs_struct`; empty for another machine than x86-64.
    pub registers: Vec<u64>,
}

/// A core file that was opened.
#[derive(Debug)]
pub(super) struct CoreFile {
    path: PathBuf,
    file: File,
    /// In the order of their addresses; they do not overlap.
    segments: Vec<CoreSegment>,
    mappings: Mappings,
    notes: CoreNotes,
    start: Option<StartStack>,
    /// Bytes that the headers promise and the file does not have.
    cut: u64,
    disk: Mutex<DiskFiles>,
    bounded: BoundedWorker,
}

impl CoreFile {
    /// Opens `path`.
    pub(super) fn open(path: &Path) -> Result<CoreFile, CoreError> {
        let file = header::open(path)?;
        let CoreHeader { mut segments, notes, cut, is_x86_64 } = CoreHeader::read(path, &file)?;
        let mut notes = CoreNotes::read(path, &file, &notes)?;
        if !is_x86_64 {
            notes.threads.iter_mut().for_each(|thread| thread.registers.clear());
        }
        header::add_files(&mut segments, &notes.files);
        let mappings = Mappings::of_core(&segments, &notes.files);
        let mut core = CoreFile {
            path: path.to_owned(),
            file,
            segments,
            mappings,
            notes,
            start: None,
            cut,
            disk: Mutex::default(),
            bounded: BoundedWorker::default(),
        };
        core.start = StartStack::find(&core, &core.segments, &core.notes.auxiliary_vector);
        Ok(core)
    }

    /// The process that it is of.
    pub(super) fn pid(&self) -> u32 {
        self.notes.pid
    }

    /// Its user.
    pub(super) fn user(&self) -> Option<u32> {
        self.notes.user
    }

    /// What was mapped.
    pub(super) fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// Its threads; the one that received the signal is the first.
    pub(super) fn threads(&self) -> &[CoreThread] {
        &self.notes.threads
    }

    /// The same, as those of a process that runs. It does not tell their names, but for the main one's, and their states no more.
    pub(super) fn os_threads(&self) -> impl Iterator<Item = OsThread> {
        self.threads().iter().map(|thread| OsThread {
            id: thread.id,
            id_in_target: thread.id,
            name: if thread.id == self.pid() { self.name().to_owned() } else { String::new() },
            state: '?',
        })
    }

    /// The kernel's name of its main thread, at most 15 bytes.
    pub(super) fn name(&self) -> &str {
        &self.notes.name
    }

    /// What the kernel told the program when it started.
    pub(super) fn auxiliary_vector(&self) -> &[u8] {
        &self.notes.auxiliary_vector
    }

    /// The command line: as it lies in the process's memory, else as far as the kernel notes it (79 bytes).
    pub(super) fn command(&self) -> Vec<String> {
        match &self.start {
            Some(start) if !start.arguments.is_empty() => start.arguments.clone(),
            _ => self.notes.arguments.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// A variable of the environment it was started with.
    pub(super) fn environment(&self, name: &str) -> Option<String> {
        let variables = &self.start.as_ref()?.variables;
        variables.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    }

    /// The file of its program: the one mapped where the program's headers are.
    pub(super) fn program(&self) -> Option<PathBuf> {
        let headers = self.notes.program_headers()?;
        self.mappings.find(headers)?.path.clone()
    }

    /// Opens the file on the disk that was mapped there, if it is still the same one.
    pub(super) fn open_mapped(&self, mapping: &Mapping) -> io::Result<File> {
        let Some(path) = &mapping.path else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no file is mapped there"));
        };
        self.on_disk(path).map_err(|refusal| io::Error::other(refusal.why))?.try_clone()
    }

    /// What waits for files.
    pub(super) fn bounded(&self) -> &BoundedWorker {
        &self.bounded
    }

    /// What it says of itself.
    pub(super) fn origin(&self) -> CoreOrigin {
        let first = self.notes.threads.first().filter(|thread| thread.signal > 0);
        let mut missing = Vec::new();
        if self.cut > 0 {
            missing.push(format!(
                "the core file is cut: {} bytes that its headers promise are not in it (a full disk, or 'ulimit -c')",
                self.cut
            ));
        }
        missing.extend(self.disk.lock().refusals());
        CoreOrigin {
            file: self.path.display().to_string(),
            signal: first.map(|thread| signal_name(thread.signal)),
            thread: first.map(|thread| thread.id),
            missing,
        }
    }

    /// The file `path` on the disk, if it is the same as was mapped; else why not.
    fn on_disk(&self, path: &Path) -> Result<Arc<File>, Refusal> {
        // The check reads from the core file only, never from the disk's files again.
        self.disk.lock().get(path, &self.bounded, &|| self.first_page_of(path))
    }

    /// The beginning of the file `path` as it was mapped; `None` where that is not in the core file.
    fn first_page_of(&self, path: &Path) -> Option<Vec<u8>> {
        let mapping = self.mappings.object_at(path)?;
        let mut page = vec![0; disk::COMPARED];
        self.read_dumped(mapping.start, &mut page).then_some(page)
    }

    fn segment(&self, addr: Addr) -> Option<&CoreSegment> {
        let next = self.segments.partition_point(|segment| segment.start <= addr.0);
        self.segments[..next].last().filter(|segment| addr.0 < segment.end)
    }

    /// Fills `out` with what the core file itself holds; whether it holds all of it.
    fn read_dumped(&self, addr: Addr, out: &mut [u8]) -> bool {
        let Some(segment) = self.segment(addr) else { return false };
        let inside = addr.0 - segment.start;
        let fits = inside.checked_add(out.len() as u64).is_some_and(|end| end <= segment.dumped);
        fits && self.file.read_exact_at(out, segment.offset + inside).is_ok()
    }

    /// Fills `out` from the file that was mapped there.
    fn read_mapped_file(&self, addr: Addr, out: &mut [u8]) -> bool {
        let Some(mapping) = self.mappings.find(addr) else { return false };
        let Some(path) = &mapping.path else { return false };
        let Some(at) = mapping.offset.checked_add(addr.0 - mapping.start.0) else { return false };
        match self.on_disk(path) {
            Ok(file) => file.read_exact_at(out, at).is_ok(),
            Err(_) => false,
        }
    }

    /// Fills `out`, piece by piece: mappings that lie side by side are read as one.
    fn fill(&self, mut addr: Addr, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            let Some(segment) = self.segment(addr) else { return false };
            let inside = addr.0 - segment.start;
            // First what was dumped, then the rest of the segment.
            let is_dumped = inside < segment.dumped;
            let end = if is_dumped { segment.dumped } else { segment.end - segment.start };
            let Some((now, later)) =
                out.split_at_mut_checked((end - inside).min(out.len() as u64) as usize)
            else {
                return false;
            };
            let is_read = match is_dumped {
                true => self.read_dumped(addr, now),
                false => self.read_mapped_file(addr, now),
            };
            if !is_read {
                return false;
            }
            addr = addr + now.len() as u64;
            out = later;
        }
        true
    }
}

fn signal_name(number: u16) -> String {
    match Signal::try_from(i32::from(number)) {
        Ok(signal) => signal.as_str().to_owned(),
        Err(_) => format!("signal {number}"),
    }
}

impl Memory for CoreFile {
    fn read_spans(&self, spans: &[AddressRange], mut out: &mut [u8]) -> Result<(), MemoryError> {
        for (index, span) in spans.iter().enumerate() {
            let fault = MemoryError::Fault { span: *span, index };
            let (now, later) = out.split_at_mut_checked(span.len).ok_or(fault)?;
            if !self.fill(span.addr, now) {
                return Err(fault);
            }
            out = later;
        }
        Ok(())
    }
}

impl Mappings {
    /// Those of a core file: a segment each, with the file that the notes tell.
    fn of_core(segments: &[CoreSegment], files: &[MappedFile]) -> Mappings {
        let list = segments.iter().map(|segment| {
            let next = files.partition_point(|file| file.start <= segment.start);
            let file = files[..next].last().filter(|file| segment.start < file.end);
            let offset = file.and_then(|file| file.offset.checked_add(segment.start - file.start));
            let name = file.map(|file| (file.path.strip_suffix(" (deleted)"), &file.path));
            Mapping {
                start: Addr(segment.start),
                end: Addr(segment.end),
                offset: offset.unwrap_or(0),
                readable: segment.readable,
                writable: segment.writable,
                executable: segment.executable,
                path: name.map(|(kept, whole)| PathBuf::from(kept.unwrap_or(whole))),
                deleted: name.is_some_and(|(kept, _)| kept.is_some()),
            }
        });
        Mappings::from_list(list.collect())
    }
}
