//! Making a file: under its final name at once, or whole when it is done.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

use super::place::{PathKind, PlaceError, folder_of, place};

/// The mode of files when nothing else is asked for: traces hold source text.
pub const OWNER_ONLY: u32 = 0o600;
/// The rights to read and to write.
const READ_AND_WRITE: u32 = 0o666;

/// How files are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileCreation {
    /// Whether a file that is there is replaced; else it is refused.
    pub replace: bool,
    /// The mode asked for. Without one a new file is its owner's only, and one that replaces another has the mode of that.
    pub mode: Option<u32>,
}

impl FileCreation {
    /// Replaces what is there, or refuses it.
    pub fn replacing(replace: bool) -> FileCreation {
        FileCreation { replace, mode: None }
    }

    /// Makes the file `path`, to be written from now on. It replaces one that is there as a new file: who has the old one open, or
    /// a hard link to it, keeps the old one. A pipe or a device is opened as it is.
    ///
    /// # Errors
    /// Something is there that is not replaced; the file cannot be made.
    pub fn create(self, path: &Path) -> Result<File, PlaceError> {
        let failed = |source: io::Error| match source.kind() {
            // Another program was faster.
            io::ErrorKind::AlreadyExists => PlaceError::Exists(path.to_owned()),
            _ => PlaceError::Io { path: path.to_owned(), source },
        };
        match place(path)? {
            PathKind::Directory(at) => Err(PlaceError::Directory(at)),
            PathKind::Stream(at) => open_stream(&at).map_err(failed),
            PathKind::File(..) if !self.replace => Err(PlaceError::Exists(path.to_owned())),
            PathKind::File(at, old) => {
                let file = self.temporary(&at, Some(&old)).map_err(failed)?;
                file.persist(&at).map_err(|error| failed(error.error))
            }
            PathKind::Nothing(at) => {
                let mut options = OpenOptions::new();
                // Not through a link either: O_EXCL says so.
                let file = options.write(true).create_new(true).mode(OWNER_ONLY).open(at);
                let file = file.map_err(failed)?;
                self.give_mode(&file, None).map_err(failed)?;
                Ok(file)
            }
        }
    }

    /// Makes the file `path` with `content`: it is there when it is whole, or not at all. A pipe or a device is written to.
    ///
    /// # Errors
    /// Something is there that is not replaced; the file cannot be made, or `content` fails.
    pub fn write(
        self,
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), PlaceError> {
        let failed = |source| PlaceError::Io { path: path.to_owned(), source };
        let (at, old) = match place(path)? {
            PathKind::Directory(at) => return Err(PlaceError::Directory(at)),
            PathKind::Stream(at) => {
                let file = open_stream(&at).map_err(failed)?;
                return fill(&file, content).map_err(failed);
            }
            PathKind::File(..) if !self.replace => return Err(PlaceError::Exists(path.to_owned())),
            PathKind::File(at, old) => (at, Some(old)),
            PathKind::Nothing(at) => (at, None),
        };
        let file = self.temporary(&at, old.as_ref()).map_err(failed)?;
        fill(file.as_file(), content).map_err(failed)?;
        if self.replace {
            file.persist(&at).map_err(|error| failed(error.error))?;
            return Ok(());
        }
        put(file, &at).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => PlaceError::Exists(path.to_owned()),
            _ => failed(error),
        })
    }

    /// A file with a name that nobody can guess, beside `path`; it goes away unless it is given that name.
    fn temporary(self, path: &Path, old: Option<&Metadata>) -> io::Result<NamedTempFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".memspy-").permissions(Permissions::from_mode(OWNER_ONLY));
        let file = builder.tempfile_in(folder_of(path))?;
        self.give_mode(file.as_file(), old)?;
        Ok(file)
    }

    fn give_mode(self, file: &File, old: Option<&Metadata>) -> io::Result<()> {
        // The mode of a file that another user made says nothing about who is to read this one.
        let own = rustix::process::geteuid().as_raw();
        let kept = old.filter(|old| old.uid() == own).map(Metadata::mode);
        match self.mode.or(kept) {
            Some(mode) => file.set_permissions(Permissions::from_mode(mode & READ_AND_WRITE)),
            None => Ok(()),
        }
    }
}

/// Gives a whole file its name, unless something has it.
fn put(file: NamedTempFile, at: &Path) -> io::Result<()> {
    let error = match file.persist_noclobber(at) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if error.error.kind() == io::ErrorKind::AlreadyExists {
        return Err(error.error);
    }
    // Some file systems (sshfs) know neither way to do this at once: take the name first, then put the file there.
    OpenOptions::new().write(true).create_new(true).mode(OWNER_ONLY).open(at)?;
    error.file.persist(at).map(drop).map_err(|error| error.error)
}

fn open_stream(at: &PathBuf) -> io::Result<File> {
    let no_terminal = OFlags::NOCTTY.bits() as i32;
    OpenOptions::new().write(true).custom_flags(no_terminal).open(at)
}

fn fill(file: &File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_is_asked_for_is_given_whatever_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        let asked = FileCreation { replace: true, mode: Some(0o4666) };
        asked.create(&path).unwrap();
        assert_eq!(mode(&path), 0o666);
        FileCreation::replacing(true).create(&path).unwrap();
        assert_eq!(mode(&path), 0o666, "that of the file before");
        FileCreation { replace: true, mode: Some(0o640) }.write(&path, |_| Ok(())).unwrap();
        assert_eq!(mode(&path), 0o640);
    }

    #[test]
    fn the_mode_of_another_users_file_is_not_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let given = std::os::unix::fs::chown(&path, Some(65534), None);
        given.expect("this test has to run as root");
        FileCreation::replacing(true).create(&path).unwrap();
        let now = std::fs::metadata(&path).unwrap();
        assert_eq!((now.mode() & 0o777, now.uid()), (OWNER_ONLY, 0));
    }

    #[test]
    fn of_writers_to_one_name_one_wins_and_nothing_mixes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        let write = |replace: bool, n: u8| {
            let path = path.clone();
            std::thread::spawn(move || {
                let text = [b'0' + n; 100_000];
                FileCreation::replacing(replace).write(&path, |out| {
                    text.chunks(1000).try_for_each(|part| {
                        std::thread::yield_now();
                        out.write_all(part)
                    })
                })
            })
        };
        for replace in [false, true] {
            let threads: Vec<_> = (0..8).map(|n| write(replace, n)).collect();
            let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
            let written = results.iter().filter(|result| result.is_ok()).count();
            assert_eq!(written, if replace { 8 } else { 1 });
            let text = std::fs::read(&path).unwrap();
            assert_eq!(text.len(), 100_000);
            assert!(text.iter().all(|byte| *byte == text[0]));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
