//! Moves GPU memory to the host and back.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::gpu::{CudaVisibility, DriverError, NvmlReader};
use crate::model::{DeviceUsage, GpuDevice, Nanos, ProcessUsage};
use crate::target::{Process, ProcessError};

use super::checkpoint_api::{CheckpointApi, CheckpointError, CudaState};
use super::host_memory::HostMemory;
use super::pause_file::PauseFile;

const MIN_DRIVER: u32 = 570;
/// The driver needs one part in this many of the moved memory.
const OVERHEAD: u64 = 16;
const STEPS_BACK: u32 = 3;

/// Why memory was not moved.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MoveError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Gpu(#[from] DriverError),
    #[error(transparent)]
    Driver(#[from] CheckpointError),
    #[error("driver {version} cannot move the memory of processes: it needs {MIN_DRIVER} or newer")]
    DriverTooOld { version: String },
    #[error("process {pid} does not use CUDA: it has no GPU memory")]
    NoCuda { pid: u32 },
    #[error("the host has too little memory")]
    HostMemory { needed: u64, moved: u64, host: HostMemory },
    #[error("GPU {nvml_index} has too little memory free")]
    DeviceMemory { nvml_index: u32, needed: u64, free: u64 },
    #[error("process {pid} is paused already")]
    Paused { pid: u32, since: Option<Duration> },
    /// Its CUDA calls are locked, its memory on the GPU: a pause is under way or was
    /// interrupted.
    #[error(
        "the CUDA calls of process {pid} are locked already: a pause of it was interrupted, or is under way"
    )]
    Locked { pid: u32 },
    #[error("process {pid} is not paused: its CUDA calls run")]
    Running { pid: u32 },
    #[error(
        "the driver has marked process {pid} as failed in a checkpoint: it cannot be paused or resumed any more"
    )]
    Failed { pid: u32 },
    #[error("the driver is at work on process {pid} already (state {state})")]
    Busy { pid: u32, state: u32 },
    #[error("{source}; {outcome}")]
    Step { source: CheckpointError, outcome: JobState },
    #[error("interrupted; {outcome}")]
    Interrupted { outcome: JobState },
}

/// The job's state after a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// It runs, with its memory on the GPU.
    Runs,
    /// Its CUDA calls wait.
    Waits {
        /// Its memory is on the host.
        away: bool,
    },
    /// The driver marked it as failed.
    Failed,
    /// It has ended.
    Ended,
    /// Unknown, for this reason.
    Unknown(String),
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobState::Runs => f.write_str("the job goes on with its memory on the GPU"),
            JobState::Waits { away: false } => {
                f.write_str("the job waits in its next CUDA call, with its memory on the GPU")
            }
            JobState::Waits { away: true } => {
                f.write_str("the job waits in its next CUDA call, with its GPU memory on the host")
            }
            JobState::Failed => f.write_str("the driver has ended the job's CUDA"),
            JobState::Ended => f.write_str("the job has ended"),
            JobState::Unknown(why) => write!(f, "what the job does now is not known ({why})"),
        }
    }
}

/// The result of a move.
#[derive(Debug, Clone)]
pub struct CheckpointReport {
    /// Before and after: the job's and other changed devices.
    pub devices: Vec<(GpuDevice, DeviceUsage, DeviceUsage)>,
    /// The process's host bytes, before and after.
    pub process_host: (Option<u64>, Option<u64>),
    /// Host bytes available to it, before and after.
    pub host_available: (Option<u64>, Option<u64>),
    /// Time of locking; `None`: it was locked.
    pub lock: Option<Duration>,
    /// Time of moving; `None`: memory stayed.
    pub transfer: Option<Duration>,
    /// Time of unlocking; `None`: it waits.
    pub unlock: Option<Duration>,
}

struct MemoryFigures {
    devices: Vec<(GpuDevice, DeviceUsage)>,
    process_host: Option<u64>,
    host: Option<HostMemory>,
}

/// Moves the memory of one job.
pub struct Checkpointer {
    process: Process,
    gpu: NvmlReader,
    calls: CheckpointApi,
}

impl Checkpointer {
    /// Prepares without touching the job. Fails if its memory cannot be moved.
    pub fn new(pid: u32) -> Result<Checkpointer, MoveError> {
        let process = Process::open(pid)?;
        let gpu = NvmlReader::open(&process)?;
        let version = gpu.driver_version()?;
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major.is_some_and(|major| major < MIN_DRIVER) {
            return Err(MoveError::DriverTooOld { version });
        }
        if process.mappings()?.object(|name| name.starts_with("libcuda.so")).is_none() {
            return Err(MoveError::NoCuda { pid });
        }
        let calls = CheckpointApi::load()?;
        Ok(Checkpointer { process, gpu, calls })
    }

    /// Whether the job still runs.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// The command line; empty if unreadable.
    pub fn command(&self) -> Vec<String> {
        self.process.command().unwrap_or_default()
    }

    /// Whether it is still paused: it may have ended or been resumed.
    pub fn is_away(&self) -> bool {
        self.process.is_alive() && matches!(self.state(), Ok(CudaState::Checkpointed))
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn state(&self) -> Result<CudaState, MoveError> {
        self.calls.state(self.pid()).map_err(|error| match error {
            error if error.is_no_cuda() => MoveError::NoCuda { pid: self.pid() },
            error => error.into(),
        })
    }

    /// Moves the job's GPU memory to the host. Waits at most `timeout` for its kernels; leaves
    /// `keep_free` bytes of host memory. Calls `begin` right before touching the job; resumes it
    /// on failure or `stop`.
    pub fn suspend(
        &self,
        timeout: Duration,
        keep_free: u64,
        stop: &AtomicBool,
        begin: impl FnOnce(),
    ) -> Result<CheckpointReport, MoveError> {
        let pid = self.pid();
        match self.state()? {
            CudaState::Running => {}
            CudaState::Checkpointed => {
                let since = PauseFile::read(&self.process).and_then(|note| note.age());
                return Err(MoveError::Paused { pid, since });
            }
            CudaState::Locked => return Err(MoveError::Locked { pid }),
            CudaState::Failed => return Err(MoveError::Failed { pid }),
            CudaState::Other(state) => return Err(MoveError::Busy { pid, state }),
        }
        let before = self.situation()?;
        self.check_host(&before, keep_free)?;
        let step = |done: Result<(), CheckpointError>| -> Result<(), MoveError> {
            done.map_err(|source| MoveError::Step { source, outcome: self.undo() })?;
            match stop.load(Ordering::Relaxed) {
                true => Err(MoveError::Interrupted { outcome: self.undo() }),
                false => Ok(()),
            }
        };
        begin();
        let start = Instant::now();
        step(self.calls.lock(pid, timeout))?;
        let lock = start.elapsed();
        // Before the move: the paused job has its note even if memspy is killed.
        PauseFile::new(&before.devices, SystemTime::now()).write(&self.process);
        let start = Instant::now();
        if let Err(error) = step(self.calls.checkpoint(pid)) {
            PauseFile::remove(&self.process);
            return Err(error);
        }
        let transfer = start.elapsed();
        Ok(self.moved(before, Some(lock), Some(transfer), None))
    }

    /// Moves the memory back, also after an interrupted pause.
    pub fn resume(&self) -> Result<CheckpointReport, MoveError> {
        let pid = self.pid();
        let state = self.state()?;
        match state {
            CudaState::Checkpointed | CudaState::Locked => {}
            CudaState::Running => return Err(MoveError::Running { pid }),
            CudaState::Failed => return Err(MoveError::Failed { pid }),
            CudaState::Other(state) => return Err(MoveError::Busy { pid, state }),
        }
        let before = self.situation()?;
        let step = |done: Result<(), CheckpointError>| {
            done.map_err(|source| MoveError::Step { source, outcome: self.outcome() })
        };
        let mut transfer = None;
        if state == CudaState::Checkpointed {
            self.check_devices(&before)?;
            let start = Instant::now();
            step(self.calls.restore(pid))?;
            transfer = Some(start.elapsed());
        }
        let start = Instant::now();
        step(self.calls.unlock(pid))?;
        let unlock = start.elapsed();
        PauseFile::remove(&self.process);
        Ok(self.moved(before, None, transfer, Some(unlock)))
    }

    fn undo(&self) -> JobState {
        for _ in 0..STEPS_BACK {
            let done = match self.calls.state(self.pid()) {
                Ok(CudaState::Locked) => self.calls.unlock(self.pid()),
                Ok(CudaState::Checkpointed) => self.calls.restore(self.pid()),
                _ => break,
            };
            if done.is_err() {
                break;
            }
        }
        self.outcome()
    }

    fn outcome(&self) -> JobState {
        match self.calls.state(self.pid()) {
            _ if !self.process.is_alive() => JobState::Ended,
            Ok(CudaState::Running) => JobState::Runs,
            Ok(CudaState::Locked) => JobState::Waits { away: false },
            Ok(CudaState::Checkpointed) => JobState::Waits { away: true },
            Ok(CudaState::Failed) => JobState::Failed,
            Ok(CudaState::Other(state)) => JobState::Unknown(format!("driver state {state}")),
            Err(error) => JobState::Unknown(error.to_string()),
        }
    }

    fn situation(&self) -> Result<MemoryFigures, MoveError> {
        let mut devices = Vec::new();
        for device in self.gpu.devices(&CudaVisibility::of_process(&self.process))? {
            let Some(index) = device.nvml_index else { continue };
            devices.push((device, self.gpu.usage(index, Nanos(0))?));
        }
        let process_host = self.process.host_bytes();
        Ok(MemoryFigures { devices, process_host, host: HostMemory::read(&self.process).ok() })
    }

    fn check_host(&self, before: &MemoryFigures, keep_free: u64) -> Result<(), MoveError> {
        let device_bytes = bytes_of(&before.devices);
        let moved = device_bytes + device_bytes / OVERHEAD;
        let needed = moved.saturating_add(keep_free);
        let host = match &before.host {
            Some(host) => host.clone(),
            None => HostMemory::read(&self.process)?,
        };
        match host.available < needed {
            true => Err(MoveError::HostMemory { needed, moved, host }),
            false => Ok(()),
        }
    }

    /// A restore that fails half-way may be beyond repair.
    fn check_devices(&self, now: &MemoryFigures) -> Result<(), MoveError> {
        let Some(note) = PauseFile::read(&self.process) else { return Ok(()) };
        for (device, usage) in &now.devices {
            let taken = device.uuid.as_ref().and_then(|uuid| note.bytes_on(uuid));
            if let Some(needed) = taken.filter(|needed| *needed > usage.free) {
                let nvml_index = usage.nvml_index;
                return Err(MoveError::DeviceMemory { nvml_index, needed, free: usage.free });
            }
        }
        Ok(())
    }

    fn moved(
        &self,
        before: MemoryFigures,
        lock: Option<Duration>,
        transfer: Option<Duration>,
        unlock: Option<Duration>,
    ) -> CheckpointReport {
        let after = self.situation().ok();
        let host = |of: &MemoryFigures| of.host.as_ref().map(|host| host.available);
        let later = after.as_ref();
        let devices = before.devices.iter().filter_map(|(device, usage)| {
            let all = &later?.devices;
            let (_, after) = all.iter().find(|(_, a)| a.nvml_index == usage.nvml_index)?;
            let own = [usage, after].iter().any(|u| matches!(u.process, ProcessUsage::Bytes(_)));
            (own || usage.used != after.used)
                .then(|| (device.clone(), usage.clone(), after.clone()))
        });
        CheckpointReport {
            devices: devices.collect(),
            process_host: (before.process_host, later.and_then(|a| a.process_host)),
            host_available: (host(&before), later.and_then(host)),
            lock,
            transfer,
            unlock,
        }
    }
}

/// If the driver does not say, all used memory there may be the job's.
fn bytes_of(devices: &[(GpuDevice, DeviceUsage)]) -> u64 {
    let listed = devices.iter().any(|(_, u)| matches!(u.process, ProcessUsage::Bytes(_)));
    let on = |usage: &DeviceUsage| match usage.process {
        ProcessUsage::Bytes(bytes) => bytes,
        // Listed on another device, it would be listed here.
        ProcessUsage::Unknown(_) if listed => 0,
        ProcessUsage::Unknown(_) => usage.used,
    };
    devices.iter().map(|(_, usage)| on(usage)).sum()
}
