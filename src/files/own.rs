//! Private folders and files, where others may write.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::place::{OutputPlace, PathKind, PlaceError, WRITABLE_BY_OTHERS, is_trusted};

const FOLDER: u32 = 0o700;

/// Creates a folder for this user only.
///
/// # Errors
///
/// Something exists, another user's link is on the path, or no permission.
pub fn create_folder(path: &Path) -> Result<(), PlaceError> {
    let failed = |error: Errno| PlaceError::Io { path: path.to_owned(), source: error.into() };
    let place = OutputPlace::find(path)?;
    match place.kind {
        PathKind::Nothing => {
            let made = rustix::fs::mkdirat(&place.folder, &place.name, Mode::from(FOLDER));
            made.map_err(|error| match error {
                Errno::EXIST => PlaceError::Exists(path.to_owned()),
                error => failed(error),
            })
        }
        _ => Err(PlaceError::Exists(path.to_owned())),
    }
}

/// Reuses this user's folder.
///
/// # Errors
///
/// No folder, or others may write to it.
pub fn use_folder(path: &Path) -> Result<(), PlaceError> {
    let failed = |source| PlaceError::Io { path: path.to_owned(), source };
    let found = fs::symlink_metadata(path).map_err(failed)?;
    let what = if found.is_symlink() { "a symbolic link" } else { "a folder" };
    if !is_trusted(found.uid()) {
        return Err(PlaceError::Foreign { path: path.to_owned(), what, user: found.uid() });
    }
    if !is_closed_folder(&found) {
        let why = "it is not a folder that only its owner may write to";
        return Err(failed(io::Error::other(why)));
    }
    let place = OutputPlace::find(path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&place.folder, &place.name, flags, Mode::empty())
        .and_then(|folder| rustix::fs::fchmod(folder, Mode::from(FOLDER)))
        .map_err(|error| failed(error.into()))
}

/// Whether it is this user's folder, writable by nobody else.
pub fn is_own_folder(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|found| is_closed_folder(&found) && found.uid() == own)
}

fn is_closed_folder(found: &Metadata) -> bool {
    found.is_dir() && found.mode() & WRITABLE_BY_OTHERS == 0
}

/// Reads a small file that only this user or root can write.
pub fn read_own(path: &Path, limit: u64) -> Option<String> {
    // Check after opening: the name may soon lead elsewhere.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = fs::File::options().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    let found = file.metadata().ok()?;
    let closed = found.is_file() && found.mode() & WRITABLE_BY_OTHERS == 0;
    if !closed || !is_trusted(found.uid()) || found.len() > limit {
        return None;
    }
    let mut text = String::new();
    file.take(limit).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn files_that_others_may_write_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        let mode = |mode| fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        fs::write(&path, "text").unwrap();
        mode(0o600);
        assert_eq!(read_own(&path, 4).as_deref(), Some("text"));
        assert_eq!(read_own(&path, 3), None);
        mode(0o622);
        assert_eq!(read_own(&path, 4), None);
        mode(0o600);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_own(&link, 4), None);
        let given = std::os::unix::fs::chown(&path, Some(65534), None);
        given.expect("this test has to run as root");
        assert_eq!(read_own(&path, 4), None);
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read_own(&pipe, 4), None);
    }

    #[test]
    fn only_this_users_own_folder_is_reused() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("a.ring");
        create_folder(&folder).unwrap();
        assert!(is_own_folder(&folder));
        use_folder(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        use_folder(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, FOLDER);
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        assert!(use_folder(&folder).is_err() && !is_own_folder(&folder));
    }
}
