//! A process, by pid and start time.

mod thread_watch;
mod threads;

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use procfs::{Current, ProcError};

use crate::model::CoreOrigin;

use super::bounded_worker::BoundedWorker;
use super::core_file::{CoreError, CoreFile};
use super::job_files::{FileError, auxiliary_vector};
use super::mappings::{Mapping, Mappings, MappingsCache};
use super::memory::LiveMemory;
use super::proc_files::{self, FirstBytes, MAX_COMMAND_LINE, MAX_ENVIRONMENT};
use super::process_memory::ProcessMemory;

pub use thread_watch::{ThreadTurns, ThreadWatch};
pub use threads::OsThread;
pub(super) use threads::running_thread;

/// Why a process could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ProcessError {
    #[error("there is no process with pid {pid}")]
    NotFound { pid: u32 },
    #[error("process {pid} has exited")]
    Exited { pid: u32 },
    #[error("permission denied when trying to {action} process {pid}")]
    Denied { action: &'static str, pid: u32 },
    #[error("cannot {action} process {pid}: {why}")]
    Other { action: &'static str, pid: u32, why: String },
}

impl ProcessError {
    pub(super) fn from_proc(action: &'static str, pid: i32, error: ProcError) -> Self {
        let pid = pid as u32;
        match error {
            ProcError::NotFound(_) => ProcessError::NotFound { pid },
            ProcError::PermissionDenied(_) => ProcessError::Denied { action, pid },
            ProcError::Io(e, _) if e.raw_os_error() == Some(nix::libc::ESRCH) => {
                ProcessError::Exited { pid }
            }
            other => ProcessError::Other { action, pid, why: other.to_string() },
        }
    }

    pub(super) fn from_io(action: &'static str, pid: u32, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => ProcessError::NotFound { pid },
            io::ErrorKind::PermissionDenied => ProcessError::Denied { action, pid },
            _ if error.raw_os_error() == Some(nix::libc::ESRCH) => ProcessError::Exited { pid },
            _ => ProcessError::Other { action, pid, why: error.to_string() },
        }
    }
}

/// A live process, or a core file's, which acts as if stopped forever.
#[derive(Debug)]
pub struct Process {
    source: ProcessSource,
    pid: u32,
    /// Shows memory and files: the main thread, unless that ended.
    through: AtomicU32,
    start_time: u64,
    executable: Option<(u64, u64)>,
    /// Auxiliary vector at opening.
    started_with: Option<Vec<u8>>,
    bounded: BoundedWorker,
    mapped: MappingsCache,
}

#[derive(Debug)]
enum ProcessSource {
    Live(procfs::process::Process),
    Core(Arc<CoreFile>),
}

impl Process {
    /// Opens the process of a core file.
    pub fn open_core(path: &Path) -> Result<Self, CoreError> {
        Ok(Process::of_core(Arc::new(CoreFile::open(path)?)))
    }

    fn of_core(core: Arc<CoreFile>) -> Self {
        Process {
            pid: core.pid(),
            through: AtomicU32::new(core.pid()),
            start_time: 0,
            executable: None,
            started_with: Some(core.auxiliary_vector().to_vec()),
            bounded: core.bounded().clone(),
            mapped: MappingsCache::default(),
            source: ProcessSource::Core(core),
        }
    }

    pub(super) fn core(&self) -> Option<&CoreFile> {
        match &self.source {
            ProcessSource::Live(_) => None,
            ProcessSource::Core(core) => Some(core),
        }
    }

    /// Whether it never changes and need not be stopped.
    pub fn is_core(&self) -> bool {
        self.core().is_some()
    }

    /// What is known of the core file so far.
    pub fn core_origin(&self) -> Option<CoreOrigin> {
        self.core().map(CoreFile::origin)
    }

    fn live(&self) -> Option<&procfs::process::Process> {
        match &self.source {
            ProcessSource::Live(live) => Some(live),
            ProcessSource::Core(_) => None,
        }
    }

    fn live_or(&self, action: &'static str) -> Result<&procfs::process::Process, ProcessError> {
        let why = || "it is a core file, which does not say".to_owned();
        self.live().ok_or_else(|| ProcessError::Other { action, pid: self.pid, why: why() })
    }

    /// Opens process `pid`; a thread id works, too.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        let number = i32::try_from(pid).map_err(|_| ProcessError::NotFound { pid })?;
        let error = |e| ProcessError::from_proc("open", number, e);
        let proc = procfs::process::Process::new(number).map_err(error)?;
        let stat = proc.stat().map_err(error)?;
        let through =
            threads::shown_through(pid, stat.state).ok_or(ProcessError::Exited { pid })?;
        Ok(Process {
            source: ProcessSource::Live(proc),
            pid,
            through: AtomicU32::new(through),
            start_time: stat.starttime,
            executable: executable_identity(through),
            started_with: auxiliary_vector(through),
            bounded: BoundedWorker::default(),
            mapped: MappingsCache::default(),
        })
    }

    /// Another handle.
    ///
    /// # Errors
    /// [`ProcessError::Exited`], even if its pid is another's now.
    pub fn reopen(&self) -> Result<Process, ProcessError> {
        if let ProcessSource::Core(core) = &self.source {
            return Ok(Process::of_core(Arc::clone(core)));
        }
        let again = Process::open(self.pid)?;
        match again.start_time == self.start_time {
            true => Ok(again),
            false => Err(ProcessError::Exited { pid: self.pid }),
        }
    }

    /// In memspy's pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// To about 10 ms.
    pub fn age(&self) -> Option<Duration> {
        self.live()?;
        let up = procfs::Uptime::current().ok()?.uptime_duration();
        let started = self.start_time as f64 / procfs::ticks_per_second() as f64;
        Some(up.saturating_sub(Duration::from_secs_f64(started)))
    }

    /// Its memory.
    pub fn memory(&self) -> ProcessMemory {
        match &self.source {
            ProcessSource::Live(_) => {
                ProcessMemory::Live(LiveMemory::through(self.pid, self.through()))
            }
            ProcessSource::Core(core) => ProcessMemory::of_core(Arc::clone(core)),
        }
    }

    /// Whether it has the same start and is no zombie; always, for a core file.
    pub fn is_alive(&self) -> bool {
        if self.is_core() {
            return true;
        }
        // The kept handle still describes the old process.
        let now = procfs::process::Process::new(self.pid as i32).and_then(|p| p.stat());
        let Some(now) = now.ok().filter(|now| now.starttime == self.start_time) else {
            return false;
        };
        match threads::shown_through(self.pid, now.state) {
            Some(through) => {
                self.through.store(through, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    /// Its memory on the host (`VmRSS`), in bytes.
    pub fn resident(&self) -> Option<u64> {
        let status = proc_files::fields(self.pid, "status").ok().filter(|_| !self.is_core())?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    pub(super) fn through(&self) -> u32 {
        self.through.load(Ordering::Relaxed)
    }

    /// Whether it has ended or is ending: its memory goes first.
    pub fn is_ending(&self) -> bool {
        !self.is_alive() || !self.is_core() && auxiliary_vector(self.pid).is_none()
    }

    /// Whether it has executed no program since (unnoticed for the same one without address space
    /// layout randomization).
    pub fn same_start(&self) -> bool {
        if self.is_core() {
            return true;
        }
        match (&self.started_with, auxiliary_vector(self.through())) {
            (Some(before), Some(now)) => *before == now,
            _ => self.same_executable(),
        }
    }

    fn same_executable(&self) -> bool {
        match (self.executable, executable_identity(self.through())) {
            (Some(before), Some(now)) => before == now,
            _ => true,
        }
    }

    /// Cached: reading them takes at most a tenth of the time.
    pub fn mappings(&self) -> Result<Arc<Mappings>, ProcessError> {
        match &self.source {
            ProcessSource::Live(_) => self.mapped.get(|| Mappings::read(self.through())),
            ProcessSource::Core(core) => Ok(Arc::new(core.mappings().clone())),
        }
    }

    /// Its command line; empty for a kernel thread.
    pub fn command(&self) -> Result<Vec<String>, ProcessError> {
        match &self.source {
            ProcessSource::Live(_) => command_of(self.through()).map_err(|error| {
                ProcessError::from_io("read the command line of", self.pid, error)
            }),
            ProcessSource::Core(core) => Ok(core.command()),
        }
    }

    /// Its working directory in its mount namespace.
    pub fn directory(&self) -> Option<PathBuf> {
        self.live()?;
        proc_files::link(self.through(), "cwd").ok()
    }

    /// Its program in its mount namespace, without ` (deleted)`.
    pub fn program(&self) -> Result<PathBuf, ProcessError> {
        if let Some(core) = self.core() {
            let why = || "its file is not named in the core file".to_owned();
            let (action, pid) = ("find the program of", self.pid);
            return core.program().ok_or_else(|| ProcessError::Other { action, pid, why: why() });
        }
        let action = "find the program of";
        let error = |error| ProcessError::from_io(action, self.pid, error);
        let path = proc_files::link(self.through(), "exe").map_err(error)?;
        Ok(match path.to_str().and_then(|p| p.strip_suffix(" (deleted)")) {
            Some(kept) => PathBuf::from(kept),
            None => path,
        })
    }

    /// The value of `name` in its environment at the start.
    ///
    /// # Errors
    /// Unreadable, or longer than a program can start with.
    pub fn environment(&self, name: &str) -> Result<Option<String>, ProcessError> {
        if let Some(core) = self.core() {
            return Ok(core.environment(name));
        }
        let error = |error| ProcessError::from_io("read the environment of", self.pid, error);
        let read = proc_files::read(self.through(), "environ", MAX_ENVIRONMENT).map_err(error)?;
        if read.is_cut {
            return Err(error(io::Error::other("it is longer than 6 MiB")));
        }
        let value = |variable: &[u8]| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        Ok(read.bytes.split(|&byte| byte == 0).find_map(value))
    }

    /// Its user id.
    pub fn owner(&self) -> Result<u32, ProcessError> {
        let action = "find the owner of";
        match self.core().and_then(CoreFile::user) {
            Some(user) => Ok(user),
            None => self.live_or(action)?.uid().map_err(|e| self.error(action, e)),
        }
    }

    /// From memspy's pid namespace to its own.
    pub fn pids(&self) -> Vec<u32> {
        let nested = self.live().and_then(|live| live.status().ok()?.nspid);
        match nested {
            Some(ids) if !ids.is_empty() => ids.into_iter().map(|id| id as u32).collect(),
            _ => vec![self.pid],
        }
    }

    /// Its parent's pid.
    pub fn parent(&self) -> Option<u32> {
        self.live()?.stat().ok().and_then(|s| u32::try_from(s.ppid).ok())
    }

    /// Pids and command lines, if readable.
    pub fn children(&self) -> Vec<(u32, Vec<String>)> {
        let tasks = self.live().and_then(|live| live.tasks().ok());
        let tasks = tasks.into_iter().flatten().flatten();
        let mut children: Vec<(u32, Vec<String>)> = tasks
            .flat_map(|task| task.children().unwrap_or_default())
            .filter_map(|pid| Some((pid, command_of(pid).ok()?)))
            .collect();
        children.sort();
        children
    }

    /// Sorted; may lack some that end meanwhile.
    pub fn descendants(&self) -> Vec<u32> {
        if self.is_core() {
            return Vec::new();
        }
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for process in procfs::process::all_processes().into_iter().flatten().flatten() {
            if let Ok(stat) = process.stat() {
                children.entry(stat.ppid).or_default().push(stat.pid);
            }
        }
        let mut found = Vec::new();
        let mut waiting = vec![self.pid as i32];
        while let Some(parent) = waiting.pop() {
            // Prevents a loop if the tree changes meanwhile.
            let here = children.remove(&parent).unwrap_or_default();
            found.extend(here.iter().map(|pid| *pid as u32));
            waiting.extend(here);
        }
        found.sort_unstable();
        found
    }

    /// Whether `other` descends from it by forks without `exec`: each program start has its own
    /// auxiliary vector.
    pub fn shares_program_start(&self, other: &Process) -> bool {
        if self.is_core() || other.is_core() {
            return false;
        }
        let own = auxiliary_vector(self.through());
        own.is_some() && own == auxiliary_vector(other.through())
    }

    /// Opens the mapped inode. If refused (it needs CAP_CHECKPOINT_RESTORE), opens it by name with
    /// its user's rights, which fails for a deleted file.
    pub fn open_mapped(&self, mapping: &Mapping) -> io::Result<File> {
        if let Some(core) = self.core() {
            return core.open_mapped(mapping);
        }
        let name = format!("map_files/{:x}-{:x}", mapping.start.0, mapping.end.0);
        match self.open_exact(&name) {
            Ok(file) => return Ok(file),
            Err(error @ FileError::NoAnswer { .. }) => return Err(error.into()),
            Err(_) => {}
        }
        match &mapping.path {
            Some(path) if !mapping.deleted => Ok(self.open_named(path)?),
            Some(path) => Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} was deleted while mapped", path.display()),
            )),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "no file is mapped there")),
        }
    }

    /// Opens its program's inode.
    pub fn open_program(&self) -> io::Result<File> {
        self.live_or("open the program of").map_err(io::Error::other)?;
        Ok(self.open_exact("exe")?)
    }

    pub(super) fn status(&self) -> Result<procfs::process::Status, ProcessError> {
        let action = "read the status of";
        self.live_or(action)?.status().map_err(|e| self.error(action, e))
    }

    pub(super) fn started_with(&self) -> Option<&[u8]> {
        self.started_with.as_deref()
    }

    pub(super) fn bounded(&self) -> &BoundedWorker {
        &self.bounded
    }

    fn error(&self, action: &'static str, error: ProcError) -> ProcessError {
        ProcessError::from_proc(action, self.pid as i32, error)
    }
}

/// Bytes that are not UTF-8 become `\xff`. The last word says if the line is cut.
pub(super) fn command_of(pid: u32) -> io::Result<Vec<String>> {
    Ok(command_words(&proc_files::read(pid, "cmdline", MAX_COMMAND_LINE)?))
}

fn command_words(line: &FirstBytes) -> Vec<String> {
    let words = line.bytes.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let mut words: Vec<String> = words.map(text_of).collect();
    if line.is_cut {
        words.push(format!(
            "(the rest is left out: the command line is longer than {} KiB)",
            MAX_COMMAND_LINE >> 10
        ));
    }
    words
}

fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

fn executable_identity(pid: u32) -> Option<(u64, u64)> {
    let meta: Metadata = std::fs::metadata(proc_files::path(pid, "exe")).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
