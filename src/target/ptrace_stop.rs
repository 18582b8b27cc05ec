//! Stops all threads of a process such that they always continue.
//!
//! ptrace(2) seizes them without a signal, and the kernel lets them run whenever the tracer ends.
//! SIGSTOP would leave them stopped if memspy were killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use rustc_hash::FxHashMap;

use super::proc_files;
use super::process::Process;
use super::registers::ThreadRegisters;

/// For threads started meanwhile.
const MAX_ROUNDS: usize = 16;
/// For a thread whose tracer is leaving.
const MAX_RETRIES: usize = 8;
/// A thread that takes longer is busy in the kernel (reading a page, in a driver).
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Why a process could not be stopped. Its threads run again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum StopError {
    #[error("permission to stop process {pid} for a moment was denied")]
    Denied { pid: u32 },
    #[error(
        "process {pid} is being traced by another process ({program}, {tracer}): only one can stop it"
    )]
    Traced { pid: u32, tracer: u32, program: String },
    #[error(
        "thread {thread} of process {pid} did not stop within {} ms: it is in the kernel",
        waited.as_millis()
    )]
    Stubborn { pid: u32, thread: u32, waited: Duration },
    #[error("process {pid} has exited")]
    Gone { pid: u32 },
    #[error("stopping process {pid} failed: {errno}")]
    Os { pid: u32, errno: Errno },
}

/// A process with all threads stopped, until dropped.
///
/// Only the memspy thread that made it can release it. That thread's end releases all remaining
/// ones, so use one that ends soon.
pub struct PtraceStop {
    pid: u32,
    /// Pending signals.
    threads: FxHashMap<i32, Option<Signal>>,
    since: Instant,
    /// When to give up on a thread.
    until: Option<Instant>,
    /// Other memspy threads cannot detach.
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

/// A stopped process, for any memspy thread. The thread of its [`PtraceStop`] ends with this or at
/// the time limit.
pub struct StoppedProcess {
    since: Instant,
    resumed: Resumed,
    /// Dropped to release the process.
    hold: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// Whether a stopped process was released. Set before its first thread runs, so a read that finds
/// it unset was in the stop.
#[derive(Debug, Clone, Default)]
pub struct Resumed(Arc<Release>);

#[derive(Debug, Default)]
struct Release {
    begun: AtomicBool,
    /// Nanoseconds stopped, once all threads run.
    stopped_for: AtomicU64,
}

impl Resumed {
    /// Whether it runs or is about to.
    pub fn is_set(&self) -> bool {
        self.0.begun.load(Ordering::SeqCst)
    }
}

impl StoppedProcess {
    /// Stops all threads of `process`.
    pub fn stop(process: &Process) -> Result<StoppedProcess, StopError> {
        Self::for_at_most(process, Duration::MAX)
    }

    /// For at most `limit` from the first stop.
    pub fn for_at_most(process: &Process, limit: Duration) -> Result<StoppedProcess, StopError> {
        Self::start(process, limit, false).map(|(stopped, _)| stopped)
    }

    /// With its threads' registers.
    pub fn with_registers(
        process: &Process,
        limit: Duration,
    ) -> Result<(StoppedProcess, Vec<ThreadRegisters>), StopError> {
        Self::start(process, limit, true)
    }

    fn start(
        process: &Process,
        limit: Duration,
        with_registers: bool,
    ) -> Result<(StoppedProcess, Vec<ThreadRegisters>), StopError> {
        let pid = process.pid();
        let process = process.reopen().map_err(|_| StopError::Gone { pid })?;
        let (hold, held) = channel();
        let (sender, receiver) = channel();
        let resumed = Resumed::default();
        let release = Arc::clone(&resumed.0);
        let keep = move || match PtraceStop::within(&process, limit) {
            Ok(pause) => {
                let since = pause.since;
                let registers = if with_registers { pause.registers() } else { Vec::new() };
                if sender.send(Ok((since, registers))).is_ok() {
                    // Ends when `hold` is dropped or the time is up.
                    let _ = held.recv_timeout(limit.saturating_sub(since.elapsed()));
                }
                release.begun.store(true, Ordering::SeqCst);
                drop(pause);
                let stopped_for = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                release.stopped_for.store(stopped_for, Ordering::SeqCst);
            }
            Err(error) => drop(sender.send(Err(error))),
        };
        let failed = |errno| StopError::Os { pid, errno };
        let keeper = std::thread::Builder::new()
            .name("memspy-pause".to_owned())
            .spawn(keep)
            .map_err(|_| failed(Errno::EAGAIN))?;
        let (since, registers) = receiver.recv().map_err(|_| failed(Errno::ECANCELED))??;
        let stopped = StoppedProcess { since, resumed, hold: Some(hold), keeper: Some(keeper) };
        Ok((stopped, registers))
    }

    /// Whether it continued, even after this is gone.
    pub fn resumed(&self) -> Resumed {
        self.resumed.clone()
    }

    /// Time from the first thread's stop until it continued.
    pub fn elapsed(&self) -> Duration {
        match self.resumed.0.stopped_for.load(Ordering::SeqCst) {
            0 => self.since.elapsed(),
            nanos => Duration::from_nanos(nanos),
        }
    }

    /// Releases it; returns how long it was stopped.
    pub fn end(mut self) -> Duration {
        self.release();
        self.elapsed()
    }

    fn release(&mut self) {
        self.hold = None;
        if let Some(keeper) = self.keeper.take() {
            // Fails only by a printed panic; the kernel released the process.
            let _ = keeper.join();
        }
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        self.release();
    }
}

impl PtraceStop {
    /// Stops all threads of `process`.
    pub fn attach(process: &Process) -> Result<PtraceStop, StopError> {
        Self::within(process, Duration::MAX)
    }

    /// All within `limit`, or none.
    fn within(process: &Process, limit: Duration) -> Result<PtraceStop, StopError> {
        let pid = process.pid();
        let since = Instant::now();
        let mut pause = PtraceStop {
            pid,
            threads: FxHashMap::default(),
            since,
            until: since.checked_add(limit),
            _of_this_thread: std::marker::PhantomData,
        };
        for _ in 0..MAX_ROUNDS {
            let listed = process.thread_ids().map_err(|_| StopError::Gone { pid })?;
            let new: Vec<i32> = listed
                .into_iter()
                .map(|id| id as i32)
                .filter(|id| !pause.threads.contains_key(id))
                .collect();
            if new.is_empty() {
                return if pause.threads.is_empty() {
                    Err(StopError::Gone { pid })
                } else {
                    Ok(pause)
                };
            }
            pause.stop(&new)?;
        }
        Err(StopError::Os { pid, errno: Errno::EAGAIN })
    }

    fn registers(&self) -> Vec<ThreadRegisters> {
        self.threads.keys().filter_map(|id| ThreadRegisters::of_stopped(*id)).collect()
    }

    fn stop(&mut self, ids: &[i32]) -> Result<(), StopError> {
        let mut seized = Vec::with_capacity(ids.len());
        for &id in ids {
            let thread = Pid::from_raw(id);
            match self.seize(thread)? {
                true => {
                    // Must be released from here on.
                    self.threads.insert(id, None);
                    seized.push(id);
                }
                false => continue,
            }
            match ptrace::interrupt(thread) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(StopError::Os { pid: self.pid, errno }),
            }
        }
        for id in seized {
            self.wait_for(id)?;
        }
        Ok(())
    }

    /// `false`: the thread is ending and cannot be seized.
    fn seize(&self, thread: Pid) -> Result<bool, StopError> {
        for _ in 0..MAX_RETRIES {
            match ptrace::seize(thread, Options::empty()) {
                Ok(()) => return Ok(true),
                Err(Errno::ESRCH) => return Ok(false),
                Err(Errno::EPERM) => {}
                Err(errno) => return Err(StopError::Os { pid: self.pid, errno }),
            }
            // Another memspy may be releasing threads one by one.
            if let Some(tracer) = self.tracer_of(thread) {
                let program = proc_files::fields(tracer, "comm");
                let program =
                    program.map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned());
                return Err(StopError::Traced { pid: self.pid, tracer, program });
            }
            if !self.threads.is_empty() {
                // Ending, as others could be seized. The next round shows whether it is gone.
                return Ok(false);
            }
        }
        Err(StopError::Denied { pid: self.pid })
    }

    fn tracer_of(&self, thread: Pid) -> Option<u32> {
        let task = format!("{}/task/{thread}", self.pid);
        let status = proc_files::read(task, "status", proc_files::MAX_FIELDS).ok()?.bytes;
        let status = String::from_utf8_lossy(&status);
        let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
        line.trim().parse().ok().filter(|&tracer| tracer != 0)
    }

    fn wait_for(&mut self, id: i32) -> Result<(), StopError> {
        let began = Instant::now();
        let until =
            self.until.map_or(began + STOP_TIMEOUT, |until| until.min(began + STOP_TIMEOUT));
        loop {
            match self.status(Pid::from_raw(id)) {
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => {
                    if Instant::now() >= until {
                        let waited = began.elapsed();
                        let (pid, thread) = (self.pid, id as u32);
                        return Err(StopError::Stubborn { pid, thread, waited });
                    }
                    // Takes microseconds, less than a sleep.
                    std::thread::yield_now();
                }
                // Stopped by the interruption.
                Ok(WaitStatus::PtraceEvent(..)) => return Ok(()),
                // Before a signal, which it gets when it continues.
                Ok(WaitStatus::Stopped(_, signal)) => {
                    self.threads.insert(id, Some(signal));
                    return Ok(());
                }
                Ok(_) | Err(Errno::ECHILD) => {
                    self.threads.remove(&id);
                    return Ok(());
                }
                Err(errno) => return Err(StopError::Os { pid: self.pid, errno }),
            }
        }
    }

    /// Leaves the process's end to its parent, perhaps memspy.
    fn status(&self, thread: Pid) -> nix::Result<WaitStatus> {
        let now = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
        if thread.as_raw() != self.pid as i32 {
            return waitpid(thread, Some(now));
        }
        match waitid(Id::Pid(thread), now | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)? {
            ended @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => Ok(ended),
            // Only stops: it may end between the calls.
            _ => Ok(match waitid(Id::Pid(thread), now | WaitPidFlag::WSTOPPED)? {
                // waitpid reports a stop before a signal like this.
                WaitStatus::PtraceEvent(pid, signal, 0) => WaitStatus::Stopped(pid, signal),
                other => other,
            }),
        }
    }
}

impl Drop for PtraceStop {
    fn drop(&mut self) {
        let until = Instant::now() + STOP_TIMEOUT;
        let mut left: Vec<(Pid, Option<Signal>)> =
            self.threads.iter().map(|(&id, &signal)| (Pid::from_raw(id), signal)).collect();
        while !left.is_empty() && Instant::now() < until {
            left.retain_mut(|(thread, signal)| {
                if ptrace::detach(*thread, *signal).is_ok() {
                    return false;
                }
                // Not stopped yet, after an error; or killed, waiting for its tracer.
                match self.status(*thread) {
                    Ok(WaitStatus::Stopped(_, now)) => *signal = Some(now),
                    Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return false,
                    Err(Errno::ECHILD) => return false,
                    _ => {}
                }
                true
            });
            if !left.is_empty() {
                std::thread::yield_now();
            }
        }
        // The rest is busy in the kernel; this memspy thread's end releases it.
    }
}
