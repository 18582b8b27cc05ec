//! The readers of one target, and why others are missing.

mod diagnosis;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use diagnosis::{StackCoverage, TimedSnapshot};

use super::forked_copy::{self, ForkedCopy};
use crate::gpu::{CudaVisibility, DriverError, NvmlReader};
use crate::model::{
    AllocatorBackend, AllocatorCounters, CoreOrigin, CudaIndex, GpuDevice, Metric, Pool,
};
use crate::owners::{OwnerReader, torch_version};
use crate::python::{InterpreterError, InterpreterReader};
use crate::target::{CoreError, Process, ProcessError};
use crate::torch::{AllocatorError, AllocatorReader};

/// Why attaching failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AttachError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Core(#[from] CoreError),
    #[error("cannot read the Python of process {pid}: {source}")]
    Python { pid: u32, source: InterpreterError },
    #[error("cannot read the Python of the core file {file}: {}", core_reason(source, missing))]
    CorePython { file: String, source: InterpreterError, missing: Vec<String> },
}

fn core_reason(source: &InterpreterError, missing: &[String]) -> String {
    match missing {
        [] => source.to_string(),
        _ => format!("{}; read it where these files are unchanged", missing.join("; ")),
    }
}

impl AttachError {
    /// Whether Python is starting (or ending).
    pub fn is_starting(&self) -> bool {
        matches!(self, AttachError::Python { source, .. } if source.is_transient())
    }

    /// Whether the process may still become Python.
    pub fn may_become_python(&self) -> bool {
        self.is_starting()
            || matches!(
                self,
                AttachError::Python {
                    // A failed read may have met the exec.
                    source: InterpreterError::NotPython { .. }
                        | InterpreterError::Unreadable { .. },
                    ..
                }
            )
    }

    /// Whether the kernel refused access.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            AttachError::Process(ProcessError::Denied { .. })
                | AttachError::Python { source: InterpreterError::Denied { .. }, .. }
                | AttachError::Python {
                    source: InterpreterError::Process(ProcessError::Denied { .. }),
                    ..
                }
        )
    }

    /// Whether the process is not Python.
    pub fn is_not_python(&self) -> bool {
        matches!(self, AttachError::Python { source: InterpreterError::NotPython { .. }, .. })
            || matches!(
                self,
                AttachError::CorePython { source: InterpreterError::NotPython { .. }, missing, .. }
                    if missing.is_empty()
            )
    }
}

pub(super) enum TorchState {
    NotLoaded,
    Attached(Box<AllocatorReader>),
    Refused(AllocatorError),
}

impl TorchState {
    pub(super) fn reader_mut(&mut self) -> Option<&mut AllocatorReader> {
        match self {
            TorchState::Attached(torch) => Some(torch),
            TorchState::NotLoaded | TorchState::Refused(_) => None,
        }
    }
}

/// Everything that reads one target.
pub struct TargetReaders {
    pub(super) process: Arc<Process>,
    /// `None` without Python, or if not needed.
    pub(super) python: Option<InterpreterReader>,
    pub(super) torch: TorchState,
    pub(super) gpu: Result<Arc<NvmlReader>, DriverError>,
    pub(super) visibility: CudaVisibility,
    pub(super) took: Duration,
    pub(super) owners: Option<OwnerReader>,
    pub(super) copy: Option<ForkedCopy>,
    copied_version: Option<String>,
}

/// A process, never another with its pid.
#[derive(Debug, Clone)]
pub struct TargetIdentity(Arc<Process>);

impl TargetIdentity {
    /// The process that has this pid now.
    pub fn open(pid: u32) -> Result<TargetIdentity, AttachError> {
        Ok(TargetIdentity(Arc::new(Process::open(pid)?)))
    }

    /// Time since it started, if known.
    pub fn age(&self) -> Option<Duration> {
        self.0.age()
    }

    pub(super) fn process(&self) -> &Process {
        &self.0
    }

    /// See [`TargetReaders::attach`].
    pub fn attach(&self) -> Result<TargetReaders, AttachError> {
        let (start, process, pid) = (Instant::now(), self.same()?, self.0.pid());
        let python = InterpreterReader::attach(&process)
            .map_err(|source| AttachError::Python { pid, source })?;
        Ok(TargetReaders::around(process, Some(python), start))
    }

    /// See [`TargetReaders::attach_any`].
    pub fn attach_any(&self) -> Result<TargetReaders, AttachError> {
        let (start, process, pid) = (Instant::now(), self.same()?, self.0.pid());
        let python = match InterpreterReader::attach(&process) {
            Ok(python) => Some(python),
            Err(InterpreterError::NotPython { .. }) => None,
            Err(source) => return Err(AttachError::Python { pid, source }),
        };
        Ok(TargetReaders::around(process, python, start))
    }

    /// It may run another program by now.
    fn same(&self) -> Result<Arc<Process>, ProcessError> {
        self.0.reopen().map(Arc::new)
    }
}

impl From<&Arc<Process>> for TargetIdentity {
    fn from(process: &Arc<Process>) -> TargetIdentity {
        TargetIdentity(Arc::clone(process))
    }
}

impl TargetReaders {
    /// The copy of another process's allocator, if any.
    pub fn forked_copy(&self) -> Option<ForkedCopy> {
        self.copy
    }

    /// The process, for attaching once more.
    pub fn identity(&self) -> TargetIdentity {
        TargetIdentity::from(&self.process)
    }

    /// Read while no thread is inside the allocator; empty without such a moment.
    pub(super) fn counters_between_calls(&mut self) -> Vec<(CudaIndex, AllocatorCounters)> {
        let mut counters = Vec::new();
        if let TorchState::Attached(torch) = &mut self.torch
            && torch.counters_between_calls(&mut counters).is_err()
        {
            counters.clear();
        }
        counters
    }

    /// Allocations and frees a second, counted for this time; 0 without PyTorch's allocator.
    pub fn blocks_a_second(&mut self, time: Duration) -> f64 {
        let count = |readers: &mut TargetReaders| -> Option<(Instant, i64)> {
            let TorchState::Attached(torch) = &mut readers.torch else { return None };
            let mut counters = Vec::new();
            torch.counters(&mut counters).ok()?;
            let blocks = counters.iter().map(|(_, counters): &(_, AllocatorCounters)| {
                let blocks = counters.stat(Metric::Allocation, Pool::All);
                blocks.allocated.saturating_add(blocks.freed)
            });
            Some((Instant::now(), blocks.fold(0, i64::saturating_add)))
        };
        let Some((began, before)) = count(self) else { return 0.0 };
        std::thread::sleep(time);
        let Some((ended, after)) = count(self) else { return 0.0 };
        after.saturating_sub(before).max(0) as f64 / (ended - began).as_secs_f64().max(1e-3)
    }

    /// Attaches to a process with Python.
    pub fn attach(pid: u32) -> Result<Self, AttachError> {
        TargetIdentity::open(pid)?.attach()
    }

    /// Attaches to the process in a core file.
    ///
    /// # Errors
    /// No core file, or its Python cannot be read; says what the file lacks.
    pub fn attach_core(path: &Path) -> Result<Self, AttachError> {
        let (start, process) = (Instant::now(), Arc::new(Process::open_core(path)?));
        let python =
            InterpreterReader::attach(&process).map_err(|source| AttachError::CorePython {
                file: path.display().to_string(),
                source,
                missing: process.core_origin().map(|it| it.missing).unwrap_or_default(),
            })?;
        Ok(TargetReaders::around(process, Some(python), start))
    }

    /// What the core file says about itself.
    pub fn core_origin(&self) -> Option<CoreOrigin> {
        self.process.core_origin()
    }

    /// Like [`Self::attach`], also for a process without Python.
    pub fn attach_any(pid: u32) -> Result<Self, AttachError> {
        TargetIdentity::open(pid)?.attach_any()
    }

    /// Like [`Self::attach`], but skips Python: enough for devices.
    pub fn attach_devices(pid: u32) -> Result<Self, AttachError> {
        let start = Instant::now();
        Ok(Self::around(Arc::new(Process::open(pid)?), None, start))
    }

    fn around(process: Arc<Process>, python: Option<InterpreterReader>, start: Instant) -> Self {
        let visibility = CudaVisibility::of_process(&process);
        let gpu = NvmlReader::open(&process).map(Arc::new);
        let mut readers = TargetReaders {
            process,
            python,
            torch: TorchState::NotLoaded,
            gpu,
            visibility,
            took: Duration::ZERO,
            owners: None,
            copy: None,
            copied_version: None,
        };
        readers.find_torch();
        readers.set_locks();
        readers.took = start.elapsed();
        readers
    }

    /// Finds a newly imported PyTorch or initialised CUDA. Returns whether anything changed.
    pub fn refresh(&mut self) -> bool {
        let before = self.allocator();
        match &mut self.torch {
            TorchState::NotLoaded => self.find_torch(),
            TorchState::Attached(torch) => {
                // The next sample notices that a target is gone.
                let _ = torch.refresh();
            }
            TorchState::Refused(_) => {}
        }
        self.set_locks();
        let changed = before != self.allocator();
        if changed {
            self.find_copy();
            // Programs choose devices (os.environ) before they initialise CUDA.
            self.visibility = CudaVisibility::of_process(&self.process);
        }
        changed
    }

    /// A thread that waits for the allocator's lock is at work.
    fn set_locks(&mut self) {
        if let (Some(python), TorchState::Attached(torch)) = (&mut self.python, &self.torch) {
            let locks = torch.counter_poller().map(|poller| poller.locks());
            python.set_allocator_locks(locks.unwrap_or_default());
        }
    }

    fn find_torch(&mut self) {
        self.attach_torch();
        self.find_copy();
    }

    fn find_copy(&mut self) {
        let is_set_up = matches!(&self.torch, TorchState::Attached(torch) if *torch.backend() == AllocatorBackend::Native);
        if is_set_up && let Some(copy) = forked_copy::find(&self.process) {
            self.copied_version = self.torch_version();
            self.copy = Some(copy);
            self.torch = TorchState::Refused(AllocatorError::ForkedCopy { of: copy.of });
        }
    }

    fn attach_torch(&mut self) {
        self.torch = match AllocatorReader::attach(&self.process) {
            Ok(Some(torch)) => TorchState::Attached(Box::new(torch)),
            Ok(None) => TorchState::NotLoaded,
            Err(error) => TorchState::Refused(error),
        };
    }

    /// The allocator in use, as far as known.
    pub fn allocator(&self) -> AllocatorBackend {
        match &self.torch {
            TorchState::NotLoaded => AllocatorBackend::NotLoaded,
            TorchState::Attached(torch) => torch.backend().clone(),
            TorchState::Refused(error) => AllocatorBackend::Unknown(error.to_string()),
        }
    }

    /// Why its allocator can never be followed.
    pub fn follow_refusal(&self) -> Option<String> {
        match &self.python {
            None => Some("it runs no Python".to_owned()),
            Some(python) if !python.can_be_polled() => {
                Some(format!("the stacks of its Python {} cannot be polled", python.version()))
            }
            Some(_) => self.allocator_refusal(),
        }
    }

    /// Why its allocator can never be read.
    pub fn allocator_refusal(&self) -> Option<String> {
        match self.allocator() {
            AllocatorBackend::Native
            | AllocatorBackend::NotLoaded
            | AllocatorBackend::NotInitialized => None,
            AllocatorBackend::CudaMallocAsync => Some(
                "it uses backend:cudaMallocAsync, which keeps no counters or blocks".to_owned(),
            ),
            AllocatorBackend::Pluggable(name) => {
                Some(format!("it uses a CUDA allocator of its own ({name})"))
            }
            AllocatorBackend::Unknown(what) if self.copy.is_some() => {
                Some(format!("its CUDA allocator is {what}"))
            }
            AllocatorBackend::Unknown(what) => {
                Some(format!("its CUDA allocator cannot be read: {what}"))
            }
        }
    }

    /// PyTorch's version, if known.
    pub fn torch_version(&self) -> Option<String> {
        match &self.torch {
            // The package's file may be newer than the core file.
            TorchState::Attached(torch) => match (torch.version(), &self.python) {
                (None, Some(python)) if self.process.is_core() => {
                    torch_version(&self.process, python)
                }
                (version, _) => version.map(str::to_owned),
            },
            _ => self.copied_version.clone(),
        }
    }

    /// The machine's devices; empty without NVML.
    pub fn devices(&self) -> Vec<GpuDevice> {
        let listed = self.gpu.as_ref().ok().and_then(|gpu| gpu.devices(&self.visibility).ok());
        listed.unwrap_or_default()
    }
}
