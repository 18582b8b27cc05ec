//! What stands at a path that is to be written to, and whether it may be trusted.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Links of links that are followed; the kernel follows as many.
const MAX_LINKS: u32 = 40;
/// Modes that let others than the owner write.
pub(super) const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why something could not be made at a path.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Something stands there already and was not to be overwritten.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// A directory stands there.
    #[error("{} is a directory", .0.display())]
    Directory(PathBuf),
    /// What stands there was put there by another user.
    #[error("{} is {what} of user {user}, and what others put there is not written to; name another file", path.display())]
    Foreign {
        /// The path asked for.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// Whose it is.
        user: u32,
    },
    /// The system's reason.
    #[error("{source}")]
    Io {
        /// The path asked for.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

/// What stands at a path.
#[derive(Debug)]
pub enum PathKind {
    /// Nothing; or a link that leads nowhere.
    Nothing(PathBuf),
    /// A stored file.
    File(PathBuf, Metadata),
    /// A device or a pipe: something that is written to, never replaced.
    Stream(PathBuf),
    /// A directory.
    Directory(PathBuf),
}

/// Whether what belongs to `user` is to be trusted as memspy's own.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// The folder that `path` is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// What stands at `path`; links of this user (and of root) are followed.
///
/// # Errors
/// A link, or a pipe in a folder of everybody, that another user put there; a path that cannot be looked at.
pub fn place(path: &Path) -> Result<PathKind, PlaceError> {
    let failed = |source| PlaceError::Io { path: path.to_owned(), source };
    let foreign = |what, user| PlaceError::Foreign { path: path.to_owned(), what, user };
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        let found = match fs::symlink_metadata(&at) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(PathKind::Nothing(at));
            }
            Err(error) => return Err(failed(error)),
        };
        if !found.is_symlink() {
            return if found.is_dir() {
                Ok(PathKind::Directory(at))
            } else if found.is_file() {
                Ok(PathKind::File(at, found))
            } else if is_planted(&at, &found) {
                Err(foreign("a pipe or a device", found.uid()))
            } else {
                Ok(PathKind::Stream(at))
            };
        }
        if !is_trusted(found.uid()) {
            return Err(foreign("a symbolic link", found.uid()));
        }
        let next = folder_of(&at).join(fs::read_link(&at).map_err(failed)?);
        if fs::symlink_metadata(&next).is_err() {
            // A link of /proc leads to what has no name (`pipe:[123]`): only the kernel can follow it.
            return match fs::metadata(&at) {
                Ok(there) if !there.is_file() && !there.is_dir() => Ok(PathKind::Stream(at)),
                _ => Ok(PathKind::Nothing(at)),
            };
        }
        at = next;
    }
    Err(failed(io::Error::other("too many symbolic links")))
}

/// Whether another user may have put this pipe there for memspy to write into: what the kernel's `fs.protected_fifos` is
/// about.
fn is_planted(path: &Path, found: &Metadata) -> bool {
    let device = found.file_type().is_char_device() || found.file_type().is_block_device();
    let folder = fs::metadata(folder_of(path));
    let open = folder
        .is_ok_and(|folder| folder.mode() & WRITABLE_BY_OTHERS != 0 || !is_trusted(folder.uid()));
    !device && open && !is_trusted(found.uid())
}
