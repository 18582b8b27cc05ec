//! A process, named by its pid and the moment it started, so that a reused pid is noticed.

mod thread_watch;
mod threads;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use procfs::{Current, ProcError};

use crate::model::CoreOrigin;

use super::bounded_worker::BoundedWorker;
use super::core_file::{CoreError, CoreFile};
use super::job_files::{FileError, auxiliary_vector};
use super::mappings::{Mapping, Mappings};
use super::memory::LiveMemory;
use super::process_memory::ProcessMemory;

pub use thread_watch::{ThreadTurns, ThreadWatch};
pub use threads::OsThread;

/// Why something about a process could not be learned.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no process with this pid.
    #[error("there is no process with pid {pid}")]
    NotFound {
        /// The pid.
        pid: u32,
    },
    /// The pid belongs to another process now, or the process has exited.
    #[error("process {pid} has exited")]
    Exited {
        /// The pid.
        pid: u32,
    },
    /// The kernel does not let this user look.
    #[error("permission denied when trying to {action} process {pid}")]
    Denied {
        /// What was attempted.
        action: &'static str,
        /// The pid.
        pid: u32,
    },
    /// Something else went wrong.
    #[error("cannot {action} process {pid}: {why}")]
    Other {
        /// What was attempted.
        action: &'static str,
        /// The pid.
        pid: u32,
        /// What went wrong.
        why: String,
    },
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
}

/// A process to be looked at: one that runs, or one that a core file is of.
///
/// A core file stands for a process that stands still for ever. What only the kernel of a running process tells is unknown then.
#[derive(Debug)]
pub struct Process {
    source: ProcessSource,
    pid: u32,
    start_time: u64,
    executable: Option<(u64, u64)>,
    /// Its auxiliary vector when it was opened.
    started_with: Option<Vec<u8>>,
    bounded: BoundedWorker,
}

/// Where what is known of a process comes from.
#[derive(Debug)]
enum ProcessSource {
    Live(procfs::process::Process),
    Core(Arc<CoreFile>),
}

impl Process {
    /// Opens the process that the core file `path` is of.
    ///
    /// # Errors
    /// It cannot be read, is no core file, or is damaged where nothing can be done without.
    pub fn open_core(path: &Path) -> Result<Self, CoreError> {
        Ok(Process::of_core(Arc::new(CoreFile::open(path)?)))
    }

    fn of_core(core: Arc<CoreFile>) -> Self {
        Process {
            pid: core.pid(),
            start_time: 0,
            executable: None,
            started_with: Some(core.auxiliary_vector().to_vec()),
            bounded: core.bounded().clone(),
            source: ProcessSource::Core(core),
        }
    }

    /// The core file, if it is one.
    pub(super) fn core(&self) -> Option<&CoreFile> {
        match &self.source {
            ProcessSource::Live(_) => None,
            ProcessSource::Core(core) => Some(core),
        }
    }

    /// Whether it is a core file: then it never changes, and cannot and need not be stopped.
    pub fn is_core(&self) -> bool {
        self.core().is_some()
    }

    /// What the core file says of itself, as far as was asked for until now; `None` for a process that runs.
    pub fn core_origin(&self) -> Option<CoreOrigin> {
        self.core().map(CoreFile::origin)
    }

    /// What the kernel tells of it.
    fn live(&self) -> Option<&procfs::process::Process> {
        match &self.source {
            ProcessSource::Live(live) => Some(live),
            ProcessSource::Core(_) => None,
        }
    }

    fn live_or(&self, action: &'static str) -> Result<&procfs::process::Process, ProcessError> {
        let why = || "it is a core file, which does not tell".to_owned();
        self.live().ok_or_else(|| ProcessError::Other { action, pid: self.pid, why: why() })
    }

    /// Opens process `pid` (a thread id of it is accepted as the kernel does). Fails when there is none.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        let number = i32::try_from(pid).map_err(|_| ProcessError::NotFound { pid })?;
        let error = |e| ProcessError::from_proc("open", number, e);
        let proc = procfs::process::Process::new(number).map_err(error)?;
        let stat = proc.stat().map_err(error)?;
        if matches!(stat.state, 'Z' | 'X') {
            return Err(ProcessError::Exited { pid });
        }
        Ok(Process {
            source: ProcessSource::Live(proc),
            pid,
            start_time: stat.starttime,
            executable: executable_identity(pid),
            started_with: auxiliary_vector(pid),
            bounded: BoundedWorker::default(),
        })
    }

    /// Another handle of the same process, for whoever needs one of its own.
    ///
    /// # Errors
    /// [`ProcessError::Exited`] when it has ended, also when another process has its pid by now.
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

    /// Its pid, in memspy's pid namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time in clock ticks since boot: with the pid, its identity.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// How long ago it started, to about 10 ms; `None` when the kernel does not say how long it has been up.
    pub fn age(&self) -> Option<Duration> {
        self.live()?;
        let up = procfs::Uptime::current().ok()?.uptime_duration();
        let started = self.start_time as f64 / procfs::ticks_per_second() as f64;
        Some(up.saturating_sub(Duration::from_secs_f64(started)))
    }

    /// Its memory.
    pub fn memory(&self) -> ProcessMemory {
        match &self.source {
            ProcessSource::Live(_) => ProcessMemory::Live(LiveMemory::new(self.pid)),
            ProcessSource::Core(core) => ProcessMemory::of_core(Arc::clone(core)),
        }
    }

    /// Whether this very process still runs: the pid exists, was not reused and is no zombie. What a core file holds never ends.
    pub fn is_alive(&self) -> bool {
        if self.is_core() {
            return true;
        }
        // A fresh handle: the one kept would go on describing the old process.
        procfs::process::Process::new(self.pid as i32)
            .and_then(|p| p.stat())
            .is_ok_and(|s| s.starttime == self.start_time && !matches!(s.state, 'Z' | 'X'))
    }

    /// Whether no `exec` has happened in it since it was opened, of another program or of the same one again (`true` where that
    /// cannot be seen: the same program again without address space layout randomization).
    pub fn same_start(&self) -> bool {
        if self.is_core() {
            return true;
        }
        match (&self.started_with, auxiliary_vector(self.pid)) {
            (Some(before), Some(now)) => *before == now,
            _ => self.same_executable(),
        }
    }

    fn same_executable(&self) -> bool {
        match (self.executable, executable_identity(self.pid)) {
            (Some(before), Some(now)) => before == now,
            _ => true,
        }
    }

    /// What is mapped in it now.
    pub fn mappings(&self) -> Result<Mappings, ProcessError> {
        match &self.source {
            ProcessSource::Live(live) => Mappings::read(live),
            ProcessSource::Core(core) => Ok(core.mappings().clone()),
        }
    }

    /// Its command line; empty for a kernel thread.
    pub fn command(&self) -> Result<Vec<String>, ProcessError> {
        match &self.source {
            ProcessSource::Live(live) => {
                command_of(live).map_err(|e| self.error("read the command line of", e))
            }
            ProcessSource::Core(core) => Ok(core.command()),
        }
    }

    /// Its working directory, as its mount namespace names it.
    pub fn directory(&self) -> Option<PathBuf> {
        self.live()?.cwd().ok()
    }

    /// The program it runs, as its mount namespace names it (without ` (deleted)`).
    pub fn program(&self) -> Result<PathBuf, ProcessError> {
        if let Some(core) = self.core() {
            let why = || "its file is not named in the core file".to_owned();
            let (action, pid) = ("find the program of", self.pid);
            return core.program().ok_or_else(|| ProcessError::Other { action, pid, why: why() });
        }
        let action = "find the program of";
        let path = self.live_or(action)?.exe().map_err(|e| self.error(action, e))?;
        Ok(match path.to_str().and_then(|p| p.strip_suffix(" (deleted)")) {
            Some(kept) => PathBuf::from(kept),
            None => path,
        })
    }

    /// The value of `name` in the environment it was started with.
    pub fn environment(&self, name: &str) -> Result<Option<String>, ProcessError> {
        if let Some(core) = self.core() {
            return Ok(core.environment(name));
        }
        let action = "read the environment of";
        let all = self.live_or(action)?.environ().map_err(|e| self.error(action, e))?;
        Ok(all.get(std::ffi::OsStr::new(name)).map(|v| v.to_string_lossy().into_owned()))
    }

    /// User id of its owner.
    pub fn owner(&self) -> Result<u32, ProcessError> {
        let action = "find the owner of";
        match self.core().and_then(CoreFile::user) {
            Some(user) => Ok(user),
            None => self.live_or(action)?.uid().map_err(|e| self.error(action, e)),
        }
    }

    /// Its pids from memspy's pid namespace down to its own; several when it runs in a container.
    pub fn pids(&self) -> Vec<u32> {
        let nested = self.live().and_then(|live| live.status().ok()?.nspid);
        match nested {
            Some(ids) if !ids.is_empty() => ids.into_iter().map(|id| id as u32).collect(),
            _ => vec![self.pid],
        }
    }

    /// The pid under which its parent runs.
    pub fn parent(&self) -> Option<u32> {
        self.live()?.stat().ok().and_then(|s| u32::try_from(s.ppid).ok())
    }

    /// Its child processes, with their command lines; those that cannot be read are left out.
    pub fn children(&self) -> Vec<(u32, Vec<String>)> {
        let tasks = self.live().and_then(|live| live.tasks().ok());
        let tasks = tasks.into_iter().flatten().flatten();
        let mut children: Vec<(u32, Vec<String>)> = tasks
            .flat_map(|task| task.children().unwrap_or_default())
            .filter_map(|pid| {
                let child = procfs::process::Process::new(pid as i32).ok()?;
                Some((pid, command_of(&child).ok()?))
            })
            .collect();
        children.sort();
        children
    }

    /// Its child processes, theirs, and so on: pids in order. Those that end meanwhile may be missing.
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
            // Taken out, so that a tree that changes while it is read cannot go round.
            let here = children.remove(&parent).unwrap_or_default();
            found.extend(here.iter().map(|pid| *pid as u32));
            waiting.extend(here);
        }
        found.sort_unstable();
        found
    }

    /// Whether `other` was forked from this process, or from one that this one was forked from, without an `exec` since: the
    /// kernel gives each program it starts an auxiliary vector with addresses of its own.
    pub fn shares_program_start(&self, other: &Process) -> bool {
        if self.is_core() || other.is_core() {
            return false;
        }
        let vector = |pid: u32| std::fs::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
        let own = vector(self.pid);
        !own.is_empty() && own == vector(other.pid)
    }

    /// Opens the file behind a mapping: the very inode that is mapped. Where the kernel does not allow
    /// that (it needs CAP_CHECKPOINT_RESTORE), by name, as its own user could; a deleted file then cannot be opened.
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

    /// Opens the very file of the program it runs.
    pub fn open_program(&self) -> io::Result<File> {
        self.live_or("open the program of").map_err(io::Error::other)?;
        Ok(self.open_exact("exe")?)
    }

    /// What the kernel says of it.
    pub(super) fn status(&self) -> Result<procfs::process::Status, ProcessError> {
        let action = "read the status of";
        self.live_or(action)?.status().map_err(|e| self.error(action, e))
    }

    /// Its auxiliary vector when it was opened; `None` where the kernel did not show it.
    pub(super) fn started_with(&self) -> Option<&[u8]> {
        self.started_with.as_deref()
    }

    /// What waits for its files.
    pub(super) fn bounded(&self) -> &BoundedWorker {
        &self.bounded
    }

    fn error(&self, action: &'static str, error: ProcError) -> ProcessError {
        ProcessError::from_proc(action, self.pid as i32, error)
    }
}

/// The words of a process's command line that are not empty. They may be any bytes: what is no UTF-8 is spelled `\xff`.
pub(super) fn command_of(process: &procfs::process::Process) -> procfs::ProcResult<Vec<String>> {
    let mut line = Vec::new();
    process.open_relative("cmdline")?.read_to_end(&mut line)?;
    Ok(line.split(|&b| b == 0).filter(|word| !word.is_empty()).map(text_of).collect())
}

fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Device and inode of the program a process runs.
fn executable_identity(pid: u32) -> Option<(u64, u64)> {
    let meta = std::fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((meta.dev(), meta.ino()))
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
