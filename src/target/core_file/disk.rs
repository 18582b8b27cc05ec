//! The files on the disk that hold what a core file leaves out, and whether they are still those that were mapped.
//!
//! The kernel writes the first page of each mapped ELF file into a core file (bit 4 of `/proc/PID/coredump_filter`), for this
//! very question: it holds the file's headers and, in nearly all files, the build id. A file with the same first page is the
//! same one; any other is not read.

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

/// Bytes that have to be the same: the smallest page there is.
pub(super) const COMPARED: usize = 4096;
/// Files told of by their names, where many are missing.
const MAX_TOLD: usize = 5;

/// The files that were asked for.
#[derive(Debug, Default)]
pub(super) struct DiskFiles {
    known: BTreeMap<PathBuf, Result<Arc<File>, Refusal>>,
}

/// Why a file is not read.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) why: String,
    /// Whether code and constants are missing for it, and not just some file that the program reads through a mapping.
    is_library: bool,
}

impl DiskFiles {
    /// The file `path`, if it begins as it was mapped (`first_page`); else why it is not read.
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
                let why = "whether it is the same file cannot be told, because its first page is not in the core file";
                Err(Refusal { why: why.to_owned(), is_library })
            }
            Some(page) if !page.starts_with(b"\x7fELF") => {
                Err(Refusal { why: "it is no ELF file".to_owned(), is_library: false })
            }
            Some(page) => {
                same_file(path, page, bounded).map_err(|why| Refusal { why, is_library: true })
            }
        };
        self.known.insert(path.to_owned(), found.clone());
        found
    }

    /// Why files that were needed are not read, a sentence each.
    pub(super) fn refusals(&self) -> Vec<String> {
        let refused = |(path, it): (&PathBuf, &Result<_, Refusal>)| {
            let refusal = it.as_ref().err().filter(|refusal| refusal.is_library)?;
            let path = path.display();
            Some(format!(
                "{path} is not in the core file, and not read from the disk: {}",
                refusal.why
            ))
        };
        let mut told: Vec<String> = self.known.iter().filter_map(refused).collect();
        if let Some(more) = told.len().checked_sub(MAX_TOLD).filter(|more| *more > 0) {
            told.truncate(MAX_TOLD);
            told.push(format!("{more} more files were not read either"));
        }
        told
    }
}

/// Opens `path`, if it is a stored file that begins with `page`.
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
