//! The core file of a crashed process, or of `gcore`.
//!
//! Its sizes are checked, as it may hold anything. It is never mapped: access to a truncated
//! mapping would kill memspy. Code and constants are read from the files on disk (`disk.rs`).

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

/// Why a core file could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CoreError {
    #[error("cannot read the core file {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is not a core file: {why}", path.display())]
    NotCore { path: PathBuf, why: String },
    #[error("the core file {} cannot be used: {why}", path.display())]
    Malformed { path: PathBuf, why: String },
}

/// A thread in a core file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreThread {
    /// As the process saw it.
    pub id: u32,
    /// Pending signal; 0: none.
    pub signal: u16,
    /// General registers, ordered as `struct user_regs_struct`; empty unless x86-64.
    pub registers: Vec<u64>,
}

#[derive(Debug)]
pub(super) struct CoreFile {
    path: PathBuf,
    file: File,
    segments: Vec<CoreSegment>,
    mappings: Mappings,
    notes: CoreNotes,
    start: Option<StartStack>,
    cut: u64,
    disk: Mutex<DiskFiles>,
    bounded: BoundedWorker,
}

impl CoreFile {
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

    pub(super) fn pid(&self) -> u32 {
        self.notes.pid
    }

    pub(super) fn user(&self) -> Option<u32> {
        self.notes.user
    }

    pub(super) fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// The receiver of the signal is first.
    pub(super) fn threads(&self) -> &[CoreThread] {
        &self.notes.threads
    }

    /// Only the main thread's name is known; no states are.
    pub(super) fn os_threads(&self) -> impl Iterator<Item = OsThread> {
        self.threads().iter().map(|thread| OsThread {
            id: thread.id,
            id_in_target: thread.id,
            name: if thread.id == self.pid() { self.name().to_owned() } else { String::new() },
            state: '?',
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.notes.name
    }

    pub(super) fn auxiliary_vector(&self) -> &[u8] {
        &self.notes.auxiliary_vector
    }

    /// From the process's memory, else the kernel's copy (79 bytes).
    pub(super) fn command(&self) -> Vec<String> {
        match &self.start {
            Some(start) if !start.arguments.is_empty() => start.arguments.clone(),
            _ => self.notes.arguments.split_whitespace().map(str::to_owned).collect(),
        }
    }

    pub(super) fn environment(&self, name: &str) -> Option<String> {
        let variables = &self.start.as_ref()?.variables;
        variables.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    }

    /// The file mapped at the program headers' address.
    pub(super) fn program(&self) -> Option<PathBuf> {
        let headers = self.notes.program_headers()?;
        self.mappings.find(headers)?.path.clone()
    }

    pub(super) fn open_mapped(&self, mapping: &Mapping) -> io::Result<File> {
        let Some(path) = &mapping.path else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no file is mapped there"));
        };
        self.on_disk(path).map_err(|refusal| io::Error::other(refusal.why))?.try_clone()
    }

    pub(super) fn bounded(&self) -> &BoundedWorker {
        &self.bounded
    }

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

    fn on_disk(&self, path: &Path) -> Result<Arc<File>, Refusal> {
        // The check reads only the core file, so it does not lock again.
        self.disk.lock().get(path, &self.bounded, &|| self.first_page_of(path))
    }

    fn first_page_of(&self, path: &Path) -> Option<Vec<u8>> {
        let mapping = self.mappings.object_at(path)?;
        let mut page = vec![0; disk::COMPARED];
        self.read_dumped(mapping.start, &mut page).then_some(page)
    }

    fn segment(&self, addr: Addr) -> Option<&CoreSegment> {
        let next = self.segments.partition_point(|segment| segment.start <= addr.0);
        self.segments[..next].last().filter(|segment| addr.0 < segment.end)
    }

    /// `false` if the core file lacks some bytes.
    fn read_dumped(&self, addr: Addr, out: &mut [u8]) -> bool {
        let Some(segment) = self.segment(addr) else { return false };
        let inside = addr.0 - segment.start;
        let fits = inside.checked_add(out.len() as u64).is_some_and(|end| end <= segment.dumped);
        fits && self.file.read_exact_at(out, segment.offset + inside).is_ok()
    }

    fn read_mapped_file(&self, addr: Addr, out: &mut [u8]) -> bool {
        let Some(mapping) = self.mappings.find(addr) else { return false };
        let Some(path) = &mapping.path else { return false };
        let Some(at) = mapping.offset.checked_add(addr.0 - mapping.start.0) else { return false };
        match self.on_disk(path) {
            Ok(file) => file.read_exact_at(out, at).is_ok(),
            Err(_) => false,
        }
    }

    /// Across adjacent mappings.
    fn fill(&self, mut addr: Addr, mut out: &mut [u8]) -> bool {
        while !out.is_empty() {
            let Some(segment) = self.segment(addr) else { return false };
            let inside = addr.0 - segment.start;
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
