//! Creates files.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::place::{OutputPlace, PathKind, PlaceError};

/// Mode of new files: traces contain source text.
pub const OWNER_ONLY: u32 = 0o600;
const READ_AND_WRITE: u32 = 0o666;
const MAX_NAMES: u32 = 100;
/// Never opens an existing file or link.
const NEW: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// How to create files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileCreation {
    /// Whether to replace or refuse an existing file.
    pub replace: bool,
    /// Requested mode; `None`: the replaced file's, else owner only.
    pub mode: Option<u32>,
}

impl FileCreation {
    /// Whether to replace an existing file; default mode.
    pub fn replacing(replace: bool) -> FileCreation {
        FileCreation { replace, mode: None }
    }

    /// Opens a new file for writing; open handles and hard links keep a replaced one. Opens a pipe
    /// or device as it is.
    ///
    /// # Errors
    ///
    /// A file that must stay; no permission.
    pub fn create(self, path: &Path) -> Result<File, PlaceError> {
        let failed = |source: io::Error| match source.kind() {
            // Another program was faster.
            io::ErrorKind::AlreadyExists => PlaceError::Exists(path.to_owned()),
            _ => PlaceError::Io { path: path.to_owned(), source },
        };
        let place = OutputPlace::find(path)?;
        match place.kind {
            PathKind::Directory => Err(PlaceError::Directory(path.to_owned())),
            PathKind::Stream => open_stream(&place).map_err(failed),
            PathKind::File(_) if !self.replace => Err(PlaceError::Exists(path.to_owned())),
            PathKind::File(_) => {
                let file = TemporaryFile::beside(&place).map_err(failed)?;
                self.give_mode(&file.file, place.stat.as_ref()).map_err(failed)?;
                file.replace(&place).map_err(failed)
            }
            PathKind::Nothing => {
                let file = create_new(&place.folder, &place.name).map_err(failed)?;
                self.give_mode(&file, None).map_err(failed)?;
                Ok(file)
            }
        }
    }

    /// Writes a file, complete or not at all. Writes into a pipe or device.
    ///
    /// # Errors
    ///
    /// A file that must stay; no permission; `content` fails.
    pub fn write(
        self,
        path: &Path,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), PlaceError> {
        let failed = |source| PlaceError::Io { path: path.to_owned(), source };
        let place = OutputPlace::find(path)?;
        match place.kind {
            PathKind::Directory => return Err(PlaceError::Directory(path.to_owned())),
            PathKind::Stream => {
                let file = open_stream(&place).map_err(failed)?;
                return fill(&file, content).map_err(failed);
            }
            PathKind::File(_) if !self.replace => return Err(PlaceError::Exists(path.to_owned())),
            PathKind::File(_) | PathKind::Nothing => {}
        }
        let file = TemporaryFile::beside(&place).map_err(failed)?;
        self.give_mode(&file.file, place.stat.as_ref()).map_err(failed)?;
        fill(&file.file, content).map_err(failed)?;
        let named = if self.replace { file.replace(&place) } else { file.put(&place) };
        named.map(drop).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => PlaceError::Exists(path.to_owned()),
            _ => failed(error),
        })
    }

    fn give_mode(self, file: &File, old: Option<&Stat>) -> io::Result<()> {
        // Another user's mode does not decide who reads this file.
        let own = rustix::process::geteuid().as_raw();
        let kept = old.filter(|old| old.st_uid == own).map(|old| old.st_mode);
        match self.mode.or(kept) {
            Some(mode) => file.set_permissions(Permissions::from_mode(mode & READ_AND_WRITE)),
            None => Ok(()),
        }
    }
}

/// In the destination's folder; removed unless renamed.
struct TemporaryFile<'a> {
    folder: &'a OwnedFd,
    /// `None` after the rename.
    name: Option<OsString>,
    file: File,
}

impl<'a> TemporaryFile<'a> {
    fn beside(place: &'a OutputPlace) -> io::Result<TemporaryFile<'a>> {
        for _ in 0..MAX_NAMES {
            let name = OsString::from(format!(".memspy-{:016x}", RandomState::new().hash_one(0)));
            match create_new(&place.folder, &name) {
                Ok(file) => {
                    return Ok(TemporaryFile { folder: &place.folder, name: Some(name), file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::other("no name is free for a file next to it"))
    }

    fn replace(mut self, place: &OutputPlace) -> io::Result<File> {
        if let Some(name) = &self.name {
            rustix::fs::renameat(self.folder, name, &place.folder, &place.name)?;
            self.name = None;
        }
        self.file.try_clone()
    }

    /// Renames it, unless the name is taken.
    fn put(mut self, place: &OutputPlace) -> io::Result<File> {
        if let Some(name) = &self.name {
            let (folder, to) = (self.folder, &place.name);
            match rustix::fs::renameat_with(folder, name, folder, to, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
                Err(_) => {
                    // Some file systems (sshfs) cannot do this at once: take the name first, then
                    // replace that file.
                    create_new(folder, to)?;
                    rustix::fs::renameat(folder, name, folder, to)?;
                }
                Ok(()) => {}
            }
            self.name = None;
        }
        self.file.try_clone()
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.folder, name, AtFlags::empty());
        }
    }
}

fn create_new(folder: &OwnedFd, name: &OsString) -> io::Result<File> {
    let mode = Mode::from_raw_mode(OWNER_ONLY);
    Ok(File::from(rustix::fs::openat(folder, name, NEW, mode)?))
}

fn open_stream(place: &OutputPlace) -> io::Result<File> {
    let mut flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !place.is_kernel_link);
    Ok(File::from(rustix::fs::openat(&place.folder, &place.name, flags, Mode::empty())?))
}

fn fill(file: &File, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_requested_mode_ignores_the_umask() {
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
    fn another_users_file_mode_is_not_kept() {
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
    fn one_of_several_writers_wins_and_nothing_mixes() {
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
