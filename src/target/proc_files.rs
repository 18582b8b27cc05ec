//! Reads files below `/proc` up to a limit; nothing else in memspy opens any.
//!
//! The job chooses some lengths: its command line may be gigabytes of memory (`PR_SET_MM_MAP`).

use std::fs::{self, File, ReadDir};
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// `stat`, `status` and the like: mostly 65,536 groups.
pub const MAX_FIELDS: usize = 1 << 20;
/// A longer command line is cut and marked.
pub const MAX_COMMAND_LINE: usize = 64 << 10;
/// `execve` accepts at most 6 MiB.
pub const MAX_ENVIRONMENT: usize = 6 << 20;
/// A million mappings of some 100 bytes.
pub const MAX_MAPPINGS: usize = 128 << 20;

/// A file's first bytes, up to a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FirstBytes {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The file is longer.
    pub is_cut: bool,
}

/// `process`: `self`, a pid or `PID/task/TID`. For links and folders; for files use the functions
/// below.
pub(super) fn path(process: impl std::fmt::Display, name: &str) -> PathBuf {
    root().join(process.to_string()).join(name)
}

/// The file's first `limit` bytes.
pub fn read(process: impl std::fmt::Display, name: &str, limit: usize) -> io::Result<FirstBytes> {
    first_bytes(&path(process, name), limit)
}

/// A file that the kernel writes.
///
/// # Errors
/// Unreadable, or longer than [`MAX_FIELDS`].
pub fn fields(process: impl std::fmt::Display, name: &str) -> io::Result<String> {
    whole_text(&path(process, name))
}

/// A file of no process, such as `meminfo`.
///
/// # Errors
/// As [`fields`].
pub fn of_kernel(name: &str) -> io::Result<String> {
    whole_text(&root().join(name))
}

/// Names memspy's own open file.
pub fn own_descriptor(descriptor: BorrowedFd<'_>) -> PathBuf {
    path("self/fd", &descriptor.as_raw_fd().to_string())
}

/// memspy's program, even if replaced.
pub fn own_program() -> PathBuf {
    path("self", "exe")
}

/// The caller's buffer bounds each read.
pub(super) fn open_for_thread(pid: u32, thread: u32, name: &str) -> io::Result<File> {
    File::open(path(format_args!("{pid}/task/{thread}"), name))
}

/// Where a process's link leads.
pub fn link(process: impl std::fmt::Display, name: &str) -> io::Result<PathBuf> {
    fs::read_link(path(process, name))
}

/// Lists a process's folder; an empty name is `/proc/PID`.
pub fn folder(process: impl std::fmt::Display, name: &str) -> io::Result<ReadDir> {
    fs::read_dir(path(process, name))
}

pub(super) fn root() -> PathBuf {
    PathBuf::from("/proc")
}

/// The pids of all processes, unordered.
pub fn pids() -> impl Iterator<Item = u32> + use<> {
    pids_in(&root())
}

pub(super) fn pids_in(proc: &Path) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Gives lines without ends to `take` until it returns `false`.
///
/// # Errors
/// Unreadable, or longer than `limit` bytes.
pub fn each_line(
    process: impl std::fmt::Display,
    name: &str,
    limit: usize,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    each_line_of(&path(process, name), limit, take)
}

/// Below `/proc` or a folder like it.
pub(super) fn each_line_of(
    path: &Path,
    limit: usize,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    lines_of(File::open(path)?, &path.display().to_string(), limit, take)
}

pub(super) fn first_bytes(path: &Path, limit: usize) -> io::Result<FirstBytes> {
    first_bytes_of(File::open(path)?, limit)
}

pub(super) fn whole_text(path: &Path) -> io::Result<String> {
    let FirstBytes { bytes, is_cut } = first_bytes(path, MAX_FIELDS)?;
    match is_cut {
        true => Err(too_long(&path.display().to_string(), MAX_FIELDS)),
        false => String::from_utf8(bytes).map_err(io::Error::other),
    }
}

fn first_bytes_of(from: impl Read, limit: usize) -> io::Result<FirstBytes> {
    let mut bytes = Vec::new();
    // One more byte shows whether the file is longer.
    from.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    let is_cut = bytes.len() > limit;
    bytes.truncate(limit);
    Ok(FirstBytes { bytes, is_cut })
}

fn lines_of(
    from: impl Read,
    name: &str,
    limit: usize,
    take: &mut dyn FnMut(&[u8]) -> bool,
) -> io::Result<()> {
    let mut from = BufReader::with_capacity(64 << 10, from.take(limit as u64 + 1));
    let (mut line, mut read) = (Vec::new(), 0);
    loop {
        line.clear();
        match from.read_until(b'\n', &mut line)? {
            0 => return Ok(()),
            length => read += length,
        }
        if read > limit {
            return Err(too_long(name, limit));
        }
        if !take(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(());
        }
    }
}

fn too_long(what: &str, limit: usize) -> io::Error {
    let why =
        format!("{what} is longer than {limit} bytes, which is as much as memspy reads of it");
    io::Error::new(io::ErrorKind::FileTooLarge, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless(u64);

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(b'a');
            self.0 += into.len() as u64;
            Ok(into.len())
        }
    }

    #[test]
    fn an_endless_file_is_read_up_to_the_limit() {
        let mut endless = Endless(0);
        let first = first_bytes_of(&mut endless, 1000).unwrap();
        assert_eq!((first.bytes.len(), first.is_cut), (1000, true));
        assert_eq!(endless.0, 1001);
        let mut endless = Endless(0);
        let error = lines_of(&mut endless, "maps", 1000, &mut |_| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("maps is longer than 1000 bytes"), "{error}");
        assert!(endless.0 <= 1001, "{}", endless.0);
    }

    #[test]
    fn a_file_as_long_as_the_limit_is_whole() {
        let first = first_bytes_of(&b"abcd"[..], 4).unwrap();
        assert_eq!(first, FirstBytes { bytes: b"abcd".to_vec(), is_cut: false });
        let mut lines = Vec::new();
        let mut take = |line: &[u8]| {
            lines.push(line.to_vec());
            true
        };
        lines_of(&b"a\nbc\n\nd"[..], "maps", 7, &mut take).unwrap();
        assert_eq!(lines, [&b"a"[..], b"bc", b"", b"d"]);
    }

    #[test]
    fn own_files_are_read() {
        assert!(fields("self", "status").unwrap().contains("Pid:"));
        assert!(of_kernel("meminfo").unwrap().contains("MemAvailable"));
        assert!(pids().any(|pid| pid == std::process::id()));
        assert!(link("self", "exe").unwrap().is_absolute());
        assert!(!read("self", "cmdline", MAX_COMMAND_LINE).unwrap().bytes.is_empty());
    }
}
