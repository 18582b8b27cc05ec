//! Stopping all threads of a process for a moment, in a way that always lets them go on.
//!
//! By ptrace(2), seized and not attached: no signal is sent to the process, and a tracer that ends, in whatever
//! way, is detached by the kernel, which lets the threads run. SIGSTOP would leave them stopped if memspy were killed.

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

/// Looks for threads that threads not yet stopped have started meanwhile.
const MAX_ROUNDS: usize = 16;
/// How often a thread is asked for again whose tracer left at that moment.
const MAX_RETRIES: usize = 8;
/// A thread that does not stop within this time is busy in the kernel (a page being read, a driver).
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Why a process could not be stopped. Whatever had been stopped runs again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// The kernel refuses.
    #[error("permission to stop process {pid} for a moment was denied")]
    Denied {
        /// The pid.
        pid: u32,
    },
    /// A debugger or another profiler holds it.
    #[error(
        "process {pid} is being traced by another process ({program}, {tracer}): only one can stop it"
    )]
    Traced {
        /// The pid.
        pid: u32,
        /// Pid of the tracer, or of the thread of it that traces.
        tracer: u32,
        /// What that is called.
        program: String,
    },
    /// A thread would not stop.
    #[error(
        "thread {thread} of process {pid} did not stop within {} ms: it sits in the kernel",
        waited.as_millis()
    )]
    Stubborn {
        /// The pid.
        pid: u32,
        /// The thread.
        thread: u32,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The process is gone.
    #[error("process {pid} has exited")]
    Gone {
        /// The pid.
        pid: u32,
    },
    /// Any other answer of the kernel.
    #[error("stopping process {pid} failed: {errno}")]
    Os {
        /// The pid.
        pid: u32,
        /// The answer.
        errno: Errno,
    },
}

/// All threads of a process, stopped; dropped, they go on. Belongs to the thread of memspy that made it, as the kernel
/// has it, and whose end lets go of whatever is still held: make that thread one that ends soon.
pub struct PtraceStop {
    pid: u32,
    /// Each thread and the signal it was about to receive.
    threads: FxHashMap<i32, Option<Signal>>,
    since: Instant,
    /// When a thread that has not stopped by then is given up, and with it all.
    until: Option<Instant>,
    /// Other threads of memspy cannot detach.
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

/// A process that stands still while this lives, for any thread of memspy: the [`PtraceStop`] belongs to a thread of its own, which
/// ends with it, or lets the process go on by itself when the time is up, whatever the others are doing by then.
pub struct StoppedProcess {
    since: Instant,
    gone_on: GoneOn,
    /// Closed to let the process go on.
    hold: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

/// Whether a process that was stopped has been let go. Set before the first of its threads runs: what was read before a look at
/// this that says no was read while it stood still.
#[derive(Debug, Clone, Default)]
pub struct GoneOn(Arc<Release>);

#[derive(Debug, Default)]
struct Release {
    begun: AtomicBool,
    /// Nanoseconds for which the process was stopped, once all of its threads run.
    stopped_for: AtomicU64,
}

impl GoneOn {
    /// Whether it goes on, or is just about to.
    pub fn is_set(&self) -> bool {
        self.0.begun.load(Ordering::SeqCst)
    }
}

impl StoppedProcess {
    /// Stops all threads of `process`.
    pub fn stop(process: &Process) -> Result<StoppedProcess, StopError> {
        Self::for_at_most(process, Duration::MAX)
    }

    /// Stops all threads of `process`, which go on after `limit` at the latest, counted from when the first was stopped.
    pub fn for_at_most(process: &Process, limit: Duration) -> Result<StoppedProcess, StopError> {
        Self::start(process, limit, false).map(|(stopped, _)| stopped)
    }

    /// The same, with the registers of its threads.
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
        let (tell, told) = channel();
        let gone_on = GoneOn::default();
        let release = Arc::clone(&gone_on.0);
        let keep = move || match PtraceStop::within(&process, limit) {
            Ok(pause) => {
                let since = pause.since;
                let registers = if with_registers { pause.registers() } else { Vec::new() };
                if tell.send(Ok((since, registers))).is_ok() {
                    // Ends when `hold` is dropped, or the time is up.
                    let _ = held.recv_timeout(limit.saturating_sub(since.elapsed()));
                }
                release.begun.store(true, Ordering::SeqCst);
                drop(pause);
                let stopped_for = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                release.stopped_for.store(stopped_for, Ordering::SeqCst);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let failed = |errno| StopError::Os { pid, errno };
        let keeper = std::thread::Builder::new()
            .name("memspy-pause".to_owned())
            .spawn(keep)
            .map_err(|_| failed(Errno::EAGAIN))?;
        let (since, registers) = told.recv().map_err(|_| failed(Errno::ECANCELED))??;
        let stopped = StoppedProcess { since, gone_on, hold: Some(hold), keeper: Some(keeper) };
        Ok((stopped, registers))
    }

    /// Tells whether the process goes on again, also when this is gone.
    pub fn gone_on(&self) -> GoneOn {
        self.gone_on.clone()
    }

    /// For how long the first thread has been stopped, or was, if the process goes on again.
    pub fn elapsed(&self) -> Duration {
        match self.gone_on.0.stopped_for.load(Ordering::SeqCst) {
            0 => self.since.elapsed(),
            nanos => Duration::from_nanos(nanos),
        }
    }

    /// Lets the process go on; for how long it was stopped.
    pub fn end(mut self) -> Duration {
        self.let_go();
        self.elapsed()
    }

    fn let_go(&mut self) {
        self.hold = None;
        if let Some(keeper) = self.keeper.take() {
            // Its only failure is a panic, which has been printed by then, and after which the kernel has let go.
            let _ = keeper.join();
        }
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl PtraceStop {
    /// Stops all threads of `process`.
    pub fn attach(process: &Process) -> Result<PtraceStop, StopError> {
        Self::within(process, Duration::MAX)
    }

    /// Stops all threads of `process`, or none of them after `limit`.
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

    /// The registers of its threads; those of one that was killed meanwhile are missing.
    fn registers(&self) -> Vec<ThreadRegisters> {
        self.threads.keys().filter_map(|id| ThreadRegisters::of_stopped(*id)).collect()
    }

    /// Seizes and interrupts these threads, then waits for all of them.
    fn stop(&mut self, ids: &[i32]) -> Result<(), StopError> {
        let mut seized = Vec::with_capacity(ids.len());
        for &id in ids {
            let thread = Pid::from_raw(id);
            match self.seize(thread)? {
                true => {
                    // From here on it has to be let go.
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

    /// Whether a thread could be seized; one that is ending cannot.
    fn seize(&self, thread: Pid) -> Result<bool, StopError> {
        for _ in 0..MAX_RETRIES {
            match ptrace::seize(thread, Options::empty()) {
                Ok(()) => return Ok(true),
                Err(Errno::ESRCH) => return Ok(false),
                Err(Errno::EPERM) => {}
                Err(errno) => return Err(StopError::Os { pid: self.pid, errno }),
            }
            // Another memspy may let go of one thread after the other.
            if let Some(tracer) = self.tracer_of(thread) {
                let program = proc_files::fields(tracer, "comm");
                let program =
                    program.map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned());
                return Err(StopError::Traced { pid: self.pid, tracer, program });
            }
            if !self.threads.is_empty() {
                // It is ending: others could be seized. The next round shows whether it is gone.
                return Ok(false);
            }
        }
        Err(StopError::Denied { pid: self.pid })
    }

    /// The thread that traces a thread.
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
                    // It takes some microseconds: less than a sleep would.
                    std::thread::yield_now();
                }
                // Stopped by the interruption.
                Ok(WaitStatus::PtraceEvent(..)) => return Ok(()),
                // Stopped on the way to a signal, which it gets when it goes on.
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

    /// What has become of a thread. The end of the process itself is left for its parent to learn of, which may be memspy.
    fn status(&self, thread: Pid) -> nix::Result<WaitStatus> {
        let now = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
        if thread.as_raw() != self.pid as i32 {
            return waitpid(thread, Some(now));
        }
        match waitid(Id::Pid(thread), now | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)? {
            ended @ (WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => Ok(ended),
            // Takes stops only: it may end between the two calls.
            _ => Ok(match waitid(Id::Pid(thread), now | WaitPidFlag::WSTOPPED)? {
                // What waitpid calls a stop on the way to a signal.
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
                // Not stopped yet, after an error; or killed, and then it waits for its tracer to take note.
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
        // What is left sits in the kernel. It is let go when this thread of memspy ends.
    }
}
