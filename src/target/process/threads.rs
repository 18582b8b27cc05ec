//! The kernel's facts about threads, by ids in memspy's pid namespace.

use super::{Process, ProcessError, ProcessSource};
use crate::target::KernelWait;
use crate::target::proc_files;

/// A thread of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsThread {
    /// In memspy's pid namespace.
    pub id: u32,
    /// In its innermost pid namespace.
    pub id_in_target: u32,
    /// At most 15 bytes.
    pub name: String,
    /// Scheduling state, one of `RSDZTtXI`.
    pub state: char,
}

/// The main thread, else another running one. `None`: the process ended.
pub(super) fn shown_through(pid: u32, state: char) -> Option<u32> {
    if !has_ended(state) {
        return Some(pid);
    }
    let tasks = proc_files::folder(pid, "task").ok()?.flatten();
    let ids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    ids.into_iter().find(|id| state_of(pid, *id).is_some_and(|state| !has_ended(state)))
}

/// `None`: the process ended.
pub(in crate::target) fn running_thread(pid: u32) -> Option<u32> {
    shown_through(pid, state_of(pid, pid)?)
}

fn has_ended(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

fn state_of(pid: u32, id: u32) -> Option<char> {
    let thread = format!("{pid}/task/{id}");
    let stat = proc_files::read(thread, "stat", proc_files::MAX_FIELDS).ok()?.bytes;
    // The name before it may contain parentheses.
    let after = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(after + 2).map(|&state| char::from(state))
}

impl OsThread {
    fn from_task(task: &procfs::process::Task) -> Option<OsThread> {
        let stat = task.stat().ok()?;
        let nested = task.status().ok().and_then(|s| s.nspid).and_then(|ids| ids.last().copied());
        Some(OsThread {
            id: task.tid as u32,
            id_in_target: nested.unwrap_or(task.tid) as u32,
            name: stat.comm,
            state: stat.state,
        })
    }
}

impl Process {
    /// By id, without those that end meanwhile.
    pub fn threads(&self) -> Result<Vec<OsThread>, ProcessError> {
        if let Some(core) = self.core() {
            return Ok(core.os_threads().collect());
        }
        let action = "list the threads of";
        let tasks = self.live_or(action)?.tasks().map_err(|e| self.error(action, e))?;
        let mut threads: Vec<OsThread> =
            tasks.flatten().filter_map(|task| OsThread::from_task(&task)).collect();
        threads.sort_by_key(|t| t.id);
        Ok(threads)
    }

    /// Much cheaper than [`Self::threads`].
    pub fn thread_ids(&self) -> std::io::Result<Vec<u32>> {
        if let Some(core) = self.core() {
            return Ok(core.threads().iter().map(|thread| thread.id).collect());
        }
        let tasks = proc_files::folder(self.pid, "task")?;
        Ok(tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect())
    }

    /// Thread `id`, if it exists.
    pub fn thread(&self, id: u32) -> Option<OsThread> {
        match &self.source {
            ProcessSource::Live(live) => OsThread::from_task(&live.task_from_tid(id as i32).ok()?),
            ProcessSource::Core(core) => core.os_threads().find(|thread| thread.id == id),
        }
    }

    /// The scheduling state (`RSDZTtXI`).
    pub fn thread_state(&self, id: u32) -> Option<char> {
        self.live()?;
        state_of(self.pid, id)
    }

    /// Whether it sleeps (`time.sleep`), by its system call.
    pub fn is_asleep(&self, id: u32) -> Option<bool> {
        self.kernel_wait(id).map(|wait| wait == KernelWait::Sleep)
    }

    /// What it waits for, by its system call.
    pub fn kernel_wait(&self, id: u32) -> Option<KernelWait> {
        self.live()?;
        KernelWait::parse(str::from_utf8(&self.thread_file(id, "syscall")?).ok()?)
    }

    /// Its turns on a processor, if counted.
    pub fn thread_turns(&self, id: u32) -> Option<u64> {
        self.scheduling(id, 2)
    }

    /// How often it slept.
    pub fn thread_sleeps(&self, id: u32) -> Option<u64> {
        self.live()?;
        // The name in line 1 may not be UTF-8.
        let status = self.thread_file(id, "status")?;
        let text = String::from_utf8_lossy(&status);
        let sleeps = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        sleeps.trim().parse().ok()
    }

    /// Of Documentation/scheduler/sched-stats.rst.
    fn scheduling(&self, id: u32, field: usize) -> Option<u64> {
        self.live()?;
        let text = String::from_utf8(self.thread_file(id, "schedstat")?).ok()?;
        text.split_ascii_whitespace().nth(field)?.parse().ok()
    }

    fn thread_file(&self, id: u32, name: &str) -> Option<Vec<u8>> {
        let thread = format!("{}/task/{id}", self.pid);
        Some(proc_files::read(thread, name, proc_files::MAX_FIELDS).ok()?.bytes)
    }
}
