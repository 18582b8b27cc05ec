//! The readers of one target, attached: what can be read of it, and why the rest cannot.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::forked_copy::{self, ForkedCopy};
use crate::gpu::{CudaVisibility, GpuError, GpuReader};
use crate::model::{AllocatorBackend, AllocatorCounters, CoreOrigin, CudaIndex, GpuDevice};
use crate::owners::{AnnounceStop, OwnerReader, torch_version};
use crate::python::{PythonError, PythonReader};
use crate::target::{CoreError, Process, ProcessError};
use crate::torch::{TorchError, TorchReader};

/// Why a target could not be attached to at all.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The process could not be opened.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The core file could not be read.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// Its Python could not be read.
    #[error("cannot read the Python of process {pid}: {source}")]
    Python {
        /// The pid.
        pid: u32,
        /// Why.
        source: PythonError,
    },
    /// The Python in a core file could not be read.
    #[error("cannot read the Python of the core file {file}: {}", core_reason(source, missing))]
    CorePython {
        /// The file.
        file: String,
        /// Why.
        source: PythonError,
        /// What is missing in it.
        missing: Vec<String>,
    },
}

/// Why the Python in a core file cannot be read: for what is missing in it, if anything is.
fn core_reason(source: &PythonError, missing: &[String]) -> String {
    match missing {
        [] => source.to_string(),
        _ => format!("{}; read it where these files are as they were", missing.join("; ")),
    }
}

impl AttachError {
    /// Whether it is Python that is only starting (or ending).
    pub fn is_starting(&self) -> bool {
        matches!(self, AttachError::Python { source, .. } if source.is_transient())
    }

    /// Whether the process is not Python now, but may become it by an `exec` or by starting up.
    pub fn may_become_python(&self) -> bool {
        self.is_starting()
            || matches!(
                self,
                AttachError::Python {
                    // A read that fails may have met the moment of the exec.
                    source: PythonError::NotPython { .. } | PythonError::Unreadable { .. },
                    ..
                }
            )
    }

    /// Whether the kernel refused to let memspy look.
    pub fn is_denied(&self) -> bool {
        matches!(
            self,
            AttachError::Process(ProcessError::Denied { .. })
                | AttachError::Python { source: PythonError::Denied { .. }, .. }
                | AttachError::Python {
                    source: PythonError::Process(ProcessError::Denied { .. }),
                    ..
                }
        )
    }

    /// Whether the process is not Python.
    pub fn is_not_python(&self) -> bool {
        matches!(self, AttachError::Python { source: PythonError::NotPython { .. }, .. })
            || matches!(
                self,
                // Else nobody knows.
                AttachError::CorePython { source: PythonError::NotPython { .. }, missing, .. }
                    if missing.is_empty()
            )
    }
}

/// PyTorch in the target, as far as it could be attached to.
pub(super) enum TorchState {
    /// Its CUDA part is not loaded.
    NotLoaded,
    /// It is loaded and can be read.
    Attached(Box<TorchReader>),
    /// It is loaded and cannot be read.
    Refused(TorchError),
}

impl TorchState {
    /// What reads it.
    pub(super) fn reader_mut(&mut self) -> Option<&mut TorchReader> {
        match self {
            TorchState::Attached(torch) => Some(torch),
            TorchState::NotLoaded | TorchState::Refused(_) => None,
        }
    }
}

/// Everything that reads one target.
pub struct TargetReaders {
    /// The process.
    pub(super) process: Arc<Process>,
    /// Its Python; `None` in a process that has none, or when it is of no interest.
    pub(super) python: Option<PythonReader>,
    /// Its PyTorch.
    pub(super) torch: TorchState,
    /// The driver.
    pub(super) gpu: Result<Arc<GpuReader>, GpuError>,
    /// What its environment says about devices.
    pub(super) visibility: CudaVisibility,
    /// How long attaching took.
    pub(super) took: Duration,
    /// What reads its owners, once that was asked for.
    pub(super) owners: Option<OwnerReader>,
    /// Whose allocator it has a copy of, where it is not its own.
    pub(super) copy: Option<ForkedCopy>,
    /// The version of PyTorch of such a process.
    copied_version: Option<String>,
    /// Is told of a long stop before it.
    pub(super) announce: Option<AnnounceStop>,
}

/// A process that was opened once, for whoever attaches to it later or once more: never to another one that has its pid by then.
#[derive(Debug, Clone)]
pub struct TargetIdentity(Arc<Process>);

impl TargetIdentity {
    /// The process that has this pid now.
    pub fn open(pid: u32) -> Result<TargetIdentity, AttachError> {
        Ok(TargetIdentity(Arc::new(Process::open(pid)?)))
    }

    /// How long ago it started; `None` where the kernel does not say.
    pub fn age(&self) -> Option<Duration> {
        self.0.age()
    }

    /// The process as it was opened.
    pub(super) fn process(&self) -> &Process {
        &self.0
    }

    /// As [`TargetReaders::attach`].
    pub fn attach(&self) -> Result<TargetReaders, AttachError> {
        let (start, process, pid) = (Instant::now(), self.same()?, self.0.pid());
        let python =
            PythonReader::attach(&process).map_err(|source| AttachError::Python { pid, source })?;
        Ok(TargetReaders::around(process, Some(python), start))
    }

    /// As [`TargetReaders::attach_any`].
    pub fn attach_any(&self) -> Result<TargetReaders, AttachError> {
        let (start, process, pid) = (Instant::now(), self.same()?, self.0.pid());
        let python = match PythonReader::attach(&process) {
            Ok(python) => Some(python),
            Err(PythonError::NotPython { .. }) => None,
            Err(source) => return Err(AttachError::Python { pid, source }),
        };
        Ok(TargetReaders::around(process, python, start))
    }

    /// A handle of the same process as it is now, which may have become another program since.
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
    /// The process, for whoever attaches to it once more.
    pub fn identity(&self) -> TargetIdentity {
        TargetIdentity::from(&self.process)
    }

    /// The counters of PyTorch's allocator on each device at a moment in which no thread is inside it; empty when there was no
    /// such moment, or no allocator that can be read.
    pub(super) fn counters_between_calls(&mut self) -> Vec<(CudaIndex, AllocatorCounters)> {
        let mut counters = Vec::new();
        if let TorchState::Attached(torch) = &mut self.torch
            && torch.counters_between_calls(&mut counters).is_err()
        {
            counters.clear();
        }
        counters
    }

    /// Attaches to process `pid`. Fails when it is not Python or may not be read; PyTorch and the
    /// driver may be missing.
    pub fn attach(pid: u32) -> Result<Self, AttachError> {
        TargetIdentity::open(pid)?.attach()
    }

    /// Attaches to the process that the core file `path` is of: all is as it was when that was written.
    ///
    /// # Errors
    /// It is no core file, or one without a Python that can be read: then with what is missing in it.
    pub fn attach_core(path: &Path) -> Result<Self, AttachError> {
        let (start, process) = (Instant::now(), Arc::new(Process::open_core(path)?));
        let python = PythonReader::attach(&process).map_err(|source| AttachError::CorePython {
            file: path.display().to_string(),
            source,
            missing: process.core_origin().map(|it| it.missing).unwrap_or_default(),
        })?;
        Ok(TargetReaders::around(process, Some(python), start))
    }

    /// What the core file says of itself that is read; `None` for a process that runs.
    pub fn core_origin(&self) -> Option<CoreOrigin> {
        self.process.core_origin()
    }

    /// As [`Self::attach`], but a process without Python is attached to as well.
    pub fn attach_any(pid: u32) -> Result<Self, AttachError> {
        TargetIdentity::open(pid)?.attach_any()
    }

    /// As [`Self::attach`], but leaves Python alone: enough for all that concerns devices.
    pub fn attach_devices(pid: u32) -> Result<Self, AttachError> {
        let start = Instant::now();
        Ok(Self::around(Arc::new(Process::open(pid)?), None, start))
    }

    fn around(process: Arc<Process>, python: Option<PythonReader>, start: Instant) -> Self {
        let visibility = CudaVisibility::of_process(&process);
        let gpu = GpuReader::open(&process).map(Arc::new);
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
            announce: None,
        };
        readers.find_torch();
        readers.tell_locks();
        readers.took = start.elapsed();
        readers
    }

    /// Lets `announce` know of each stop that may be long, before it.
    pub fn announce_long_stops(&mut self, announce: AnnounceStop) {
        self.announce = Some(announce);
    }

    /// Looks again for what was not there at the last look: PyTorch being imported, CUDA being
    /// initialised. Cheap when all is attached. Returns whether anything changed.
    pub fn refresh(&mut self) -> bool {
        let before = self.allocator();
        match &mut self.torch {
            TorchState::NotLoaded => self.find_torch(),
            TorchState::Attached(torch) => {
                // A target that goes away meanwhile is noticed by the next sample.
                let _ = torch.refresh();
            }
            TorchState::Refused(_) => {}
        }
        self.tell_locks();
        let changed = before != self.allocator();
        if changed {
            self.find_copy();
            // Programs choose their devices (os.environ) before they initialise CUDA.
            self.visibility = CudaVisibility::of_process(&self.process);
        }
        changed
    }

    /// Who waits for the allocator's lock is at work.
    fn tell_locks(&mut self) {
        if let (Some(python), TorchState::Attached(torch)) = (&mut self.python, &self.torch) {
            let locks = torch.counter_poller().map(|poller| poller.locks());
            python.set_allocator_locks(locks.unwrap_or_default());
        }
    }

    fn find_torch(&mut self) {
        self.attach_torch();
        self.find_copy();
    }

    /// Finds out whether the allocator, once it is there, is that of the process itself.
    fn find_copy(&mut self) {
        let is_set_up = matches!(&self.torch, TorchState::Attached(torch) if *torch.backend() == AllocatorBackend::Native);
        if is_set_up && let Some(copy) = forked_copy::find(&self.process) {
            self.copied_version = self.torch_version();
            self.copy = Some(copy);
            self.torch = TorchState::Refused(TorchError::ForkedCopy { of: copy.of });
        }
    }

    fn attach_torch(&mut self) {
        self.torch = match TorchReader::attach(&self.process) {
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

    /// Why its allocator can never be followed; `None` when it can be, now or once it is in use.
    pub fn follow_refusal(&self) -> Option<String> {
        match &self.python {
            None => Some("it runs no Python".to_owned()),
            Some(python) if !python.can_be_polled() => {
                Some(format!("the stacks of its Python {} cannot be polled", python.version()))
            }
            Some(_) => self.allocator_refusal(),
        }
    }

    /// Why its allocator can never be read; `None` when it can be, now or once it is in use.
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

    /// PyTorch's version; `None` when it is not loaded or does not say.
    pub fn torch_version(&self) -> Option<String> {
        match &self.torch {
            // Of a core file the modules tell: the file of the package may be another one by now.
            TorchState::Attached(torch) => match (torch.version(), &self.python) {
                (None, Some(python)) if self.process.is_core() => {
                    torch_version(&self.process, python)
                }
                (version, _) => version.map(str::to_owned),
            },
            _ => self.copied_version.clone(),
        }
    }

    /// The devices of the machine with the numbers the target gives them; empty without NVML.
    pub fn devices(&self) -> Vec<GpuDevice> {
        let listed = self.gpu.as_ref().ok().and_then(|gpu| gpu.devices(&self.visibility).ok());
        listed.unwrap_or_default()
    }
}
