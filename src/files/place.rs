//! Finds what is at an output path, and whether to trust it.
//!
//! Opens folder after folder and creates files in the last: nobody can swap a link in between.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The kernel's limit of links.
const MAX_LINKS: u32 = 40;
pub(super) const WRITABLE_BY_OTHERS: u32 = 0o022;
const FOLDER: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Why a path is refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlaceError {
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    #[error("{} is a directory", .0.display())]
    Directory(PathBuf),
    #[error("{} is {what} of user {user}, and memspy does not write to what others put there; name another file", path.display())]
    Foreign { path: PathBuf, what: &'static str, user: u32 },
    #[error("{source}")]
    Io { path: PathBuf, source: io::Error },
}

/// A file, whatever its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The file at `path`, if accessible.
    pub fn of(path: &Path) -> Option<FileIdentity> {
        rustix::fs::stat(path).ok().as_ref().map(FileIdentity::from)
    }
}

impl From<&Stat> for FileIdentity {
    fn from(stat: &Stat) -> Self {
        FileIdentity { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing, or a dangling link.
    Nothing,
    /// A stored file.
    File(FileIdentity),
    /// A device or pipe: written to, never replaced.
    Stream,
    /// A directory.
    Directory,
}

/// A name in an open folder.
#[derive(Debug)]
pub(super) struct OutputPlace {
    pub(super) folder: OwnedFd,
    pub(super) name: OsString,
    pub(super) kind: PathKind,
    /// What is there, if no directory.
    pub(super) stat: Option<Stat>,
    /// Only the kernel can follow the link.
    pub(super) is_kernel_link: bool,
}

pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Examines `path`; follows links of this user and root.
///
/// # Errors
///
/// Another user's link on the path, or pipe in a shared folder; no access.
pub fn place(path: &Path) -> Result<PathKind, PlaceError> {
    OutputPlace::find(path).map(|place| place.kind)
}

impl OutputPlace {
    pub(super) fn find(path: &Path) -> Result<OutputPlace, PlaceError> {
        let failed = |error: Errno| PlaceError::Io { path: path.to_owned(), source: error.into() };
        let mut walk = PathWalk::new(path).map_err(failed)?;
        while let Some(name) = walk.pending.pop() {
            let found = match rustix::fs::statat(&walk.folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) => found,
                Err(Errno::NOENT) if walk.pending.is_empty() => {
                    return Ok(walk.end(name, PathKind::Nothing, None));
                }
                Err(error) => return Err(failed(error)),
            };
            let is_last = walk.pending.is_empty();
            let kind = FileType::from_raw_mode(found.st_mode);
            let foreign =
                |path: PathBuf, what| Err(PlaceError::Foreign { path, what, user: found.st_uid });
            match kind {
                FileType::Symlink if !is_trusted(found.st_uid) => {
                    let shown = if is_last { path.to_owned() } else { walk.shown.join(&name) };
                    return foreign(shown, "a symbolic link");
                }
                FileType::Symlink => {
                    if let Some(end) = walk.follow(name, is_last).map_err(failed)? {
                        return Ok(end);
                    }
                }
                FileType::Directory => walk.enter(&name).map_err(failed)?,
                _ if !is_last => return Err(failed(Errno::NOTDIR)),
                FileType::RegularFile => {
                    let kind = PathKind::File(FileIdentity::from(&found));
                    return Ok(walk.end(name, kind, Some(found)));
                }
                kind if walk.is_planted(kind, found.st_uid) => {
                    return foreign(path.to_owned(), "a pipe or a device");
                }
                _ => return Ok(walk.end(name, PathKind::Stream, Some(found))),
            }
        }
        Ok(walk.end(OsString::from("."), PathKind::Directory, None))
    }
}

struct PathWalk {
    folder: OwnedFd,
    pending: Vec<OsString>,
    shown: PathBuf,
    links: u32,
}

impl PathWalk {
    fn new(path: &Path) -> Result<PathWalk, Errno> {
        let folder = rustix::fs::open(".", FOLDER, Mode::empty())?;
        let mut walk = PathWalk { folder, pending: Vec::new(), shown: PathBuf::new(), links: 0 };
        walk.add(path)?;
        Ok(walk)
    }

    fn add(&mut self, path: &Path) -> Result<(), Errno> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT);
        }
        if path.is_absolute() {
            self.folder = rustix::fs::open("/", FOLDER, Mode::empty())?;
            self.shown = PathBuf::from("/");
        }
        // `components` leaves out the end of `x/` and `x/.`: a directory.
        let ends_in_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/")
            || path.as_os_str().as_encoded_bytes().ends_with(b"/.");
        if ends_in_folder {
            self.pending.push(OsString::from("."));
        }
        let names = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsString::from("..")),
            Component::CurDir => Some(OsString::from(".")),
            Component::RootDir | Component::Prefix(_) => None,
        });
        self.pending.extend(names);
        Ok(())
    }

    fn enter(&mut self, name: &OsStr) -> Result<(), Errno> {
        self.folder = rustix::fs::openat(&self.folder, name, FOLDER, Mode::empty())?;
        self.shown.push(name);
        Ok(())
    }

    /// Follows the link, unless it dangles or only the kernel can.
    fn follow(&mut self, name: OsString, is_last: bool) -> Result<Option<OutputPlace>, Errno> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlinkat(&self.folder, &name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        let is_there = rustix::fs::statat(&self.folder, &target, AtFlags::SYMLINK_NOFOLLOW).is_ok();
        if is_last && !is_there {
            // Links of /proc may lead to a nameless file (`pipe:[123]`).
            let there = rustix::fs::statat(&self.folder, &name, AtFlags::empty()).ok();
            let is_stream = there.is_some_and(|there| {
                let kind = FileType::from_raw_mode(there.st_mode);
                !matches!(kind, FileType::RegularFile | FileType::Directory)
            });
            let kind = if is_stream { PathKind::Stream } else { PathKind::Nothing };
            let folder = self.folder.try_clone().map_err(|_| Errno::MFILE)?;
            return Ok(Some(OutputPlace {
                folder,
                name,
                kind,
                stat: None,
                is_kernel_link: is_stream,
            }));
        }
        self.add(&target)?;
        Ok(None)
    }

    /// Whether another user may have planted this pipe (as in the kernel's `fs.protected_fifos`).
    fn is_planted(&self, kind: FileType, user: u32) -> bool {
        let device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        let open = rustix::fs::fstat(&self.folder).is_ok_and(|folder| {
            folder.st_mode & WRITABLE_BY_OTHERS != 0 || !is_trusted(folder.st_uid)
        });
        !device && open && !is_trusted(user)
    }

    fn end(self, name: OsString, kind: PathKind, stat: Option<Stat>) -> OutputPlace {
        OutputPlace { folder: self.folder, name, kind, stat, is_kernel_link: false }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn another_users_links_are_refused_and_own_links_followed() {
        let outer = tempfile::tempdir().unwrap();
        let at = |name: &str| outer.path().join(name);
        fs::create_dir_all(at("real/deep")).unwrap();
        fs::write(at("real/deep/x"), "").unwrap();
        symlink("real/deep", at("own")).unwrap();
        symlink(at("real"), at("theirs")).unwrap();
        lchown(at("theirs"), Some(65534), None).expect("this test has to run as root");
        symlink("theirs/deep", at("over")).unwrap();
        let file = PathKind::File(FileIdentity::of(&at("real/deep/x")).unwrap());
        assert_eq!(place(&at("own/x")).unwrap(), file);
        assert_eq!(place(&at("own/../deep/./x")).unwrap(), file);
        assert_eq!(place(&at("own/new")).unwrap(), PathKind::Nothing);
        for folder in ["own", "own/", "own/.", "own/.."] {
            assert_eq!(place(&at(folder)).unwrap(), PathKind::Directory, "{folder}");
        }
        for planted in ["theirs/deep/x", "theirs/new", "over/x", "over/new"] {
            let error = place(&at(planted)).unwrap_err();
            let PlaceError::Foreign { path, user: 65534, .. } = &error else { panic!("{error}") };
            assert_eq!(*path, at("theirs"));
        }
        assert!(place(&at("nowhere/x")).is_err() && place(&at("own/x/y")).is_err());
        symlink("round", at("round")).unwrap();
        assert!(place(&at("round")).is_err());
        assert_eq!(place(Path::new("/dev/null")).unwrap(), PathKind::Stream);
        assert!(place(Path::new("")).is_err());
    }
}
