//! Opens files that a target names, inside its root and with its user's rights.
//!
//! The job chooses the names, and memspy may have more rights than the job's user. So `openat2`
//! resolves them below the job's root, on a thread with the user, groups and capabilities of the
//! job (the kernel keeps these per thread).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::{setfsgid, setfsuid};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::proc_files;
use super::process::Process;

/// `openat2` wants a retry while names change.
const MAX_ATTEMPTS: u32 = 32;
/// <linux/auxvec.h>: the program has more rights than the user who started it.
const AT_SECURE: u64 = 23;
/// Finds without opening.
const FOUND: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// File systems with generated files, some different for each reader (<linux/magic.h>): proc,
/// sysfs, debugfs, tracefs, securityfs, cgroup, cgroup2, bpf, configfs, selinuxfs, pstore,
/// efivarfs, nsfs, binfmt_misc.
const GENERATED: [u32; 14] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0x6265_6570,
    0xf97c_ff8c,
    0x6165_676c,
    0xde5e_81e4,
    0x6e73_6673,
    0x4249_4e4d,
];

/// Why a target's file was not read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum FileError {
    #[error(
        "memspy cannot take on the rights of the job's user {user}, and reads no files for it with its own: run \
         memspy as that user or as root (CAP_SETUID and CAP_SETGID)"
    )]
    Rights { user: u32 },
    #[error(
        "files named by another user's job are only read on Linux 5.6 and newer (openat2): run memspy as the job's user"
    )]
    NoOpenat2,
    #[error(
        "it is not certain whose rights count: the process has become another program, was started with raised rights \
         (set-user-id), or runs as several users"
    )]
    Changed,
    #[error("it is not a stored file")]
    NotRegular,
    #[error("it has {bytes} bytes")]
    TooLarge { bytes: u64 },
    #[error("its file system did not answer within {seconds} s")]
    NoAnswer { seconds: u64 },
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Errno> for FileError {
    fn from(error: Errno) -> Self {
        FileError::Io(error.into())
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io(error) => error,
            other => io::Error::other(other),
        }
    }
}

/// Its addresses differ from start to start.
pub(super) fn auxiliary_vector(pid: u32) -> Option<Vec<u8>> {
    let vector = proc_files::read(pid, "auxv", proc_files::MAX_FIELDS).ok()?.bytes;
    Some(vector).filter(|vector| !vector.is_empty())
}

fn has_raised_rights(auxiliary_vector: &[u8]) -> bool {
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let mut entries = auxiliary_vector.chunks_exact(16);
    entries.any(|entry| word(entry) == AT_SECURE && word(&entry[8..]) != 0)
}

#[derive(Debug)]
struct UserRights {
    root: OwnedFd,
    user: u32,
    group: u32,
    groups: BTreeSet<u32>,
    /// To read what file modes forbid.
    capabilities: CapabilitySet,
    /// Paths mean the same as for memspy.
    same_root: bool,
}

impl UserRights {
    /// Fails if `process` became another program: else a job could make memspy read with the rights
    /// of a privileged program that took over its pid.
    fn new(process: &Process, started_with: Option<&[u8]>) -> Result<UserRights, FileError> {
        let pid = process.through();
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(proc_files::path(pid, "root"), directory, Mode::empty())?;
        let status = process.status().map_err(|error| io::Error::other(error.to_string()))?;
        let same = |name: &str| {
            let own = proc_files::link("self", name).ok();
            own.is_some() && own == proc_files::link(pid, name).ok()
        };
        let same_root = same("ns/mnt") && same("root");
        // Capabilities of another user namespace mean nothing here.
        let capabilities = match same("ns/user") {
            true => CapabilitySet::from_bits_truncate(status.capeff),
            false => CapabilitySet::empty(),
        };
        // Last, to prove that all this belongs to one program.
        let now = auxiliary_vector(pid);
        let unchanged = now.is_some() && now.as_deref() == started_with;
        let users = [status.ruid, status.euid, status.suid, status.fuid];
        let group_ids = [status.rgid, status.egid, status.sgid, status.fgid];
        let alike = |ids: [u32; 4]| ids.iter().all(|id| *id == ids[0]);
        if !unchanged
            || now.is_some_and(|now| has_raised_rights(&now))
            || !alike(users)
            || !alike(group_ids)
        {
            return Err(FileError::Changed);
        }
        Ok(UserRights {
            root,
            user: status.ruid,
            group: status.rgid,
            groups: status.groups.into_iter().collect(),
            capabilities: capabilities
                & (CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH),
            same_root,
        })
    }

    /// For this thread, for good.
    fn assume(&self) -> Result<(), FileError> {
        let own_user = rustix::process::geteuid().as_raw();
        let own_group = rustix::process::getegid().as_raw();
        let own_groups: BTreeSet<u32> =
            rustix::process::getgroups()?.into_iter().map(|group| group.as_raw()).collect();
        let cannot = FileError::Rights { user: self.user };
        let mut fits = true;
        if self.groups != own_groups {
            let groups: Vec<_> =
                self.groups.iter().map(|id| rustix::thread::Gid::from_raw(*id)).collect();
            fits &= rustix::thread::set_thread_groups(&groups).is_ok();
        }
        if self.group != own_group {
            let group = nix::unistd::Gid::from_raw(self.group);
            setfsgid(group);
            // The call returns the previous id, not success.
            fits &= setfsgid(group) == group;
        }
        // More groups than the job's are fine if the user is memspy's.
        if !fits && self.user != own_user {
            return Err(cannot);
        }
        if self.user != own_user {
            let user = nix::unistd::Uid::from_raw(self.user);
            setfsuid(user);
            if setfsuid(user) != user {
                return Err(cannot);
            }
        }
        let own = rustix::thread::capabilities(None)?;
        let kept = own.permitted & self.capabilities;
        let sets = CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        };
        Ok(rustix::thread::set_capabilities(None, sets)?)
    }

    fn find(&self, path: &Path) -> Result<OwnedFd, FileError> {
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..MAX_ATTEMPTS {
            match rustix::fs::openat2(&self.root, path, FOUND, Mode::empty(), inside) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::NOSYS) => return self.find_without_openat2(path),
                found => return Ok(found?),
            }
        }
        Err(Errno::AGAIN.into())
    }

    /// Only if the job shares memspy's user and root.
    fn find_without_openat2(&self, path: &Path) -> Result<OwnedFd, FileError> {
        if !self.same_root || self.user != rustix::process::getuid().as_raw() {
            return Err(FileError::NoOpenat2);
        }
        Ok(rustix::fs::open(path, FOUND, Mode::empty())?)
    }
}

/// Only stored files: opening others may block or have effects.
pub(super) fn open_stored(found: BorrowedFd<'_>) -> Result<(File, u64), FileError> {
    let stat = rustix::fs::fstat(found)?;
    let kind = rustix::fs::fstatfs(found)?.f_type as u32;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || GENERATED.contains(&kind) {
        return Err(FileError::NotRegular);
    }
    let name = proc_files::own_descriptor(found);
    // Do not wait for a file lease.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(name, flags, Mode::empty())?;
    Ok((File::from(file), stat.st_size as u64))
}

fn open_exact(name: &Path) -> Result<File, FileError> {
    let found = rustix::fs::open(name, FOUND, Mode::empty())?;
    open_stored(found.as_fd()).map(|(file, _)| file)
}

impl Process {
    /// Whether files can be read with its user's rights.
    pub fn check_files(&self) -> Result<(), FileError> {
        if self.core().is_some() {
            return Err(FileError::Io(io::Error::other("a core file holds no files")));
        }
        let rights = UserRights::new(self, self.started_with())?;
        self.bounded().run(move || {
            rights.assume()?;
            rights.find(Path::new("/")).map(drop)
        })
    }

    /// Reads the stored file `path` (relative: from its working directory), at most `limit` bytes,
    /// with its user's rights.
    ///
    /// # Errors
    /// Its user may not read it; not stored; its file system does not answer.
    pub fn read_file(&self, path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
        self.read_from(&self.files()?, path, limit)
    }

    /// Rights that outlive the process.
    pub fn files(&self) -> Result<JobFiles, FileError> {
        if self.core().is_some() {
            // The file on disk may be another version, or another machine's.
            return Err(FileError::Io(io::Error::other("a core file holds no files")));
        }
        let folder = self.folder();
        let rights = UserRights::new(self, self.started_with())?;
        Ok(JobFiles { rights: Arc::new(rights), folder: folder.ok() })
    }

    /// Reads with kept, perhaps outdated rights.
    pub fn read_from(
        &self,
        files: &JobFiles,
        path: &Path,
        limit: u64,
    ) -> Result<Vec<u8>, FileError> {
        let path = files.whole(path)?;
        let rights = Arc::clone(&files.rights);
        self.bounded().run(move || {
            rights.assume()?;
            let (file, bytes) = open_stored(rights.find(&path)?.as_fd())?;
            if bytes > limit {
                return Err(FileError::TooLarge { bytes });
            }
            let mut content = Vec::new();
            // A growing file might not end.
            file.take(bytes).read_to_end(&mut content)?;
            Ok(content)
        })
    }

    pub(super) fn open_named(&self, path: &Path) -> Result<File, FileError> {
        let path = path.to_owned();
        let rights = UserRights::new(self, self.started_with())?;
        self.bounded().run(move || {
            rights.assume()?;
            open_stored(rights.find(&path)?.as_fd()).map(|(file, _)| file)
        })
    }

    /// With memspy's rights: the job has it open.
    pub(super) fn open_exact(&self, name: &str) -> Result<File, FileError> {
        let name = proc_files::path(self.through(), name);
        self.bounded().run(move || open_exact(&name))
    }

    /// Runs `work` on one of its files.
    pub fn work_on_file<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, FileError> {
        self.bounded().run(move || work().map_err(FileError::Io))
    }

    fn folder(&self) -> Result<PathBuf, FileError> {
        let folder = self.directory().ok_or_else(nowhere)?;
        let root = proc_files::link(self.through(), "root")?;
        let inside = folder.strip_prefix(&root).map_err(|_| nowhere())?;
        Ok(Path::new("/").join(inside))
    }
}

fn nowhere() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "its working directory is not in its root")
}

/// Root, working directory and rights of a process at one moment.
#[derive(Debug, Clone)]
pub struct JobFiles {
    rights: Arc<UserRights>,
    folder: Option<PathBuf>,
}

impl JobFiles {
    fn whole(&self, path: &Path) -> Result<PathBuf, FileError> {
        if path.is_absolute() {
            return Ok(path.to_owned());
        }
        Ok(self.folder.as_ref().ok_or_else(nowhere)?.join(path))
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::bounded_worker::BoundedWorker;
    use super::*;

    fn own() -> Process {
        Process::open(std::process::id()).unwrap()
    }

    #[test]
    fn only_stored_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.py");
        std::fs::write(&path, "text").unwrap();
        let own = own();
        own.check_files().unwrap();
        assert_eq!(own.read_file(&path, 4).unwrap(), b"text");
        assert!(matches!(own.read_file(&path, 3), Err(FileError::TooLarge { bytes: 4 })));
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let others = ["/dev/zero", "/dev/ptmx", "/", "/proc/self/environ", "/proc/self/maps"];
        for other in others.iter().map(Path::new).chain([pipe.as_path()]) {
            let refused = own.read_file(other, 1 << 20);
            assert!(
                matches!(refused, Err(FileError::NotRegular)),
                "{}: {refused:?}",
                other.display()
            );
        }
        let magic = format!("/proc/{}/fd/0", std::process::id());
        assert!(own.read_file(Path::new(&magic), 1 << 20).is_err());
    }

    #[test]
    fn a_relative_path_starts_at_the_working_directory() {
        let text = own().read_file(Path::new("src/target/job_files.rs"), 1 << 20).unwrap();
        assert_eq!(text, std::fs::read("src/target/job_files.rs").unwrap());
        assert!(own().read_file(Path::new("no/such/file"), 1).is_err());
    }

    #[test]
    fn another_users_rights_stay_on_one_thread() {
        let rights = UserRights::new(&own(), own().started_with());
        let (user, group, groups) = (65534, 65534, BTreeSet::new());
        let capabilities = CapabilitySet::empty();
        let rights = UserRights { user, group, groups, capabilities, ..rights.unwrap() };
        let before = rustix::thread::capabilities(None).unwrap();
        let root = rustix::process::geteuid().is_root();
        assert!(root, "this test has to run as root");
        let there = BoundedWorker::default().run(move || {
            rights.assume()?;
            let ids = std::fs::read_to_string("/proc/thread-self/status")?;
            Ok((
                ids,
                File::open("/etc/shadow").is_err(),
                rustix::thread::capabilities(None)?.effective,
            ))
        });
        let (ids, refused, capabilities) = there.unwrap();
        let ids: Vec<&str> =
            ids.lines().filter(|l| l.starts_with("Uid") || l.starts_with("Groups")).collect();
        assert_eq!(ids[0], "Uid:\t0\t0\t0\t65534");
        assert_eq!(ids[1].trim_end(), "Groups:");
        assert!(refused && capabilities.is_empty());
        assert_eq!(rustix::thread::capabilities(None).unwrap(), before);
        File::open("/etc/shadow").unwrap();
    }

    #[test]
    fn without_openat2_other_users_and_roots_are_refused() {
        let rights = || UserRights::new(&own(), own().started_with()).unwrap();
        rights().find_without_openat2(Path::new("/etc/passwd")).unwrap();
        let others =
            [UserRights { user: 65534, ..rights() }, UserRights { same_root: false, ..rights() }];
        for other in others {
            let refused = other.find_without_openat2(Path::new("/etc/passwd"));
            assert!(matches!(refused, Err(FileError::NoOpenat2)), "{refused:?}");
        }
    }

    #[test]
    fn the_auxiliary_vector_shows_raised_rights() {
        let vector = |secure: u64| -> Vec<u8> {
            [6, 4096, AT_SECURE, secure, 0, 0]
                .iter()
                .flat_map(|word: &u64| word.to_le_bytes())
                .collect()
        };
        assert!(has_raised_rights(&vector(1)) && !has_raised_rights(&vector(0)));
        assert!(!has_raised_rights(own().started_with().unwrap()));
    }

    #[test]
    fn a_program_that_replaced_the_job_lends_no_rights() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; exec cat"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // Until exec the child is a copy of this program; then it waits for a line.
        let name = format!("/proc/{}/comm", child.id());
        let process = loop {
            let process = Process::open(child.id()).unwrap();
            let waits = process.thread_state(child.id()) == Some('S');
            if waits && std::fs::read(&name).unwrap() == b"sh\n" {
                break Process::open(child.id()).unwrap();
            }
            std::thread::yield_now();
        };
        process.read_file(Path::new("/etc/passwd"), 1 << 20).unwrap();
        io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
        while process.same_start() {
            std::thread::yield_now();
        }
        let refused = process.read_file(Path::new("/etc/passwd"), 1 << 20);
        assert!(matches!(refused, Err(FileError::Changed)), "{refused:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
