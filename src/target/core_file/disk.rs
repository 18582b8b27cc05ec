//! Reads what a core file lacks from the files on disk.
//!
//! The kernel dumps the first page of each mapped ELF file (bit 4 of `/proc/PID/coredump_filter`),
//! nearly always with the build id. The file on disk must begin with that page.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::super::bounded_worker::BoundedWorker;
use super::super::job_files::{FileError, open_stored};

/// The smallest page size.
pub(super) const COMPARED: usize = 4096;
const MAX_NAMED: usize = 5;

#[derive(Debug, Default)]
pub(super) struct DiskFiles {
    known: BTreeMap<PathBuf, Result<Arc<File>, Refusal>>,
}

#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// Its code is missing, not only data that the program mapped.
    is_library: bool,
}

impl DiskFiles {
    pub(super) fn get(
        &mut self,
        path: &Path,
        bounded: &BoundedWorker,
        first_page: &dyn Fn() -> Option<Vec<u8>>,
    ) -> Result<Arc<File>, Refusal> {
        if let Some(known) = self.known.get(path) {
            return known.clone();
        }
        let is_library =
            path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"));
        let found = match first_page() {
            None => {
                let why = "it may be another file: its first page is not in the core file";
                Err(Refusal { why: why.to_owned(), is_library })
            }
            Some(page) if !page.starts_with(b"\x7fELF") => {
                Err(Refusal { why: "it is not an ELF file".to_owned(), is_library: false })
            }
            Some(page) => {
                same_file(path, page, bounded).map_err(|why| Refusal { why, is_library: true })
            }
        };
        self.known.insert(path.to_owned(), found.clone());
        found
    }

    pub(super) fn refusals(&self) -> Vec<String> {
        let refused = |(path, it): (&PathBuf, &Result<_, Refusal>)| {
            let refusal = it.as_ref().err().filter(|refusal| refusal.is_library)?;
            let path = path.display();
            Some(format!(
                "{path} is not in the core file, and not read from the disk: {}",
                refusal.why
            ))
        };
        let mut sentences: Vec<String> = self.known.iter().filter_map(refused).collect();
        if let Some(more) = sentences.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            sentences.truncate(MAX_NAMED);
            sentences.push(format!("{more} more files were not read either"));
        }
        sentences
    }
}

fn same_file(path: &Path, page: Vec<u8>, bounded: &BoundedWorker) -> Result<Arc<File>, String> {
    let path = path.to_owned();
    let work = move || {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = rustix::fs::open(&path, flags, Mode::empty())?;
        let (file, _) = open_stored(found.as_fd())?;
        let mut now = vec![0; COMPARED];
        file.read_exact_at(&mut now, 0)?;
        match now == page {
            true => Ok(file),
            false => Err(FileError::Io(io::Error::other("it is another file than was mapped"))),
        }
    };
    bounded.run(work).map(Arc::new).map_err(|error| error.to_string())
}
