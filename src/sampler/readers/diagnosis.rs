//! Facts about a target, for messages and `doctor`.

use std::time::{Duration, Instant};

use crate::gpu::DriverError;
use crate::model::{
    AllocatorBackend, AllocatorCounters, AllocatorSnapshot, CoreOrigin, CudaIndex, DeviceUsage,
    Nanos,
};
use crate::target::AccessFacts;
use crate::torch::AllocatorError;

use super::{TargetIdentity, TargetReaders, TorchState};

/// How Python stacks are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackCoverage {
    /// The CPython version.
    pub version: String,
    /// The source of its structure layout.
    pub layout: String,
    /// What is not read, one sentence each.
    pub uncovered: Vec<&'static str>,
}

/// A snapshot of a device's blocks.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct TimedSnapshot {
    pub snapshot: Result<AllocatorSnapshot, AllocatorError>,
    pub took: Duration,
}

impl TargetIdentity {
    /// What the core file says about itself.
    pub fn core_origin(&self) -> Option<CoreOrigin> {
        self.process().core_origin()
    }

    /// The pid.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// The command line; empty if unreadable.
    pub fn command(&self) -> Vec<String> {
        self.process().command().unwrap_or_default()
    }

    /// The pids from memspy's pid namespace down to its own.
    pub fn pids(&self) -> Vec<u32> {
        self.process().pids()
    }

    /// What decides whether its memory may be read.
    pub fn access(&self) -> AccessFacts {
        AccessFacts::to(self.process())
    }

    /// Child processes with their command lines.
    pub fn children(&self) -> Vec<(u32, Vec<String>)> {
        self.process().children()
    }

    /// Whether thread `id` sleeps by its own choice.
    pub fn is_asleep(&self, id: u32) -> Option<bool> {
        self.process().is_asleep(id)
    }
}

impl TargetReaders {
    /// The pid.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether the process still runs.
    pub fn is_alive(&self) -> bool {
        self.process.is_alive()
    }

    /// How long attaching took.
    pub fn attach_time(&self) -> Duration {
        self.took
    }

    /// The CPython version; `None` without Python.
    pub fn python_version(&self) -> Option<&str> {
        self.python.as_ref().map(|python| python.version())
    }

    /// How stacks are read; `None` without Python.
    pub fn stack_coverage(&self) -> Option<StackCoverage> {
        let coverage = self.python.as_ref()?.coverage();
        Some(StackCoverage {
            version: coverage.version,
            layout: coverage.layout.to_string(),
            uncovered: coverage.uncovered,
        })
    }

    /// Why no source text can be read.
    pub fn source_refusal(&self) -> Option<String> {
        self.process.check_files().err().map(|error| error.to_string())
    }

    /// Whether PyTorch's CUDA part is readable.
    pub fn has_torch(&self) -> bool {
        matches!(self.torch, TorchState::Attached(_))
    }

    /// Why the loaded PyTorch cannot be read.
    pub fn torch_refusal(&self) -> Option<&AllocatorError> {
        match &self.torch {
            TorchState::Refused(error) => Some(error),
            TorchState::NotLoaded | TorchState::Attached(_) => None,
        }
    }

    /// Counters of PyTorch's native allocator, if it has one.
    pub fn counters(
        &mut self,
    ) -> Option<Result<Vec<(CudaIndex, AllocatorCounters)>, AllocatorError>> {
        let TorchState::Attached(torch) = &mut self.torch else { return None };
        if *torch.backend() != AllocatorBackend::Native {
            return None;
        }
        let mut counters = Vec::new();
        Some(torch.counters(&mut counters).map(|_| counters))
    }

    /// A snapshot of `device`; `None` if PyTorch cannot be read.
    pub fn snapshot(&mut self, device: CudaIndex) -> Option<TimedSnapshot> {
        let TorchState::Attached(torch) = &mut self.torch else { return None };
        let begun = Instant::now();
        let snapshot = torch.blocks(device, &|| Nanos(0));
        Some(TimedSnapshot { snapshot, took: begun.elapsed() })
    }

    /// Why the driver's figures cannot be read.
    pub fn driver_refusal(&self) -> Option<&DriverError> {
        self.gpu.as_ref().err()
    }

    /// The driver's version, if any.
    pub fn driver_version(&self) -> Option<Result<String, DriverError>> {
        self.gpu.as_ref().ok().map(|gpu| gpu.driver_version())
    }

    /// The driver's figures for a device, if any.
    pub fn device_usage(&self, nvml_index: u32) -> Option<Result<DeviceUsage, DriverError>> {
        self.gpu.as_ref().ok().map(|gpu| gpu.usage(nvml_index, Nanos(0)))
    }
}
