//! Processes that were forked after CUDA had begun, such as the workers of a `DataLoader`: they
//! carry a copy of their parent's allocator, which says what the parent had, and hold no GPU memory
//! of their own.

use std::sync::Arc;

use super::readers::TargetReaders;
use crate::gpu::{CudaVisibility, GpuReader};
use crate::model::{AllocatorBackend, Nanos, ProcessUsage};
use crate::target::Process;
use crate::torch::{TorchReader, is_in_bad_fork};

/// More processes than are forked one from the other.
const MAX_GENERATIONS: usize = 16;

/// Whose allocator a process has a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkedCopy {
    /// The process that CUDA began in; `None` where it has ended.
    pub of: Option<u32>,
}

/// What `process`, in which the allocator is set up, has a copy of; `None` where the allocator is
/// its own.
pub(super) fn find(process: &Process) -> Option<ForkedCopy> {
    if process.is_core() {
        return None;
    }
    match is_in_bad_fork(process) {
        Some(false) => None,
        Some(true) => {
            let began = |ancestor: &Process| is_in_bad_fork(ancestor) == Some(false);
            Some(ForkedCopy {
                of: ancestors(process).iter().find(|it| began(it)).map(Process::pid),
            })
        }
        // This PyTorch does not tell: the driver does, where it lists one of them and not the
        // other.
        None if holds_memory(process) => None,
        None => {
            let found = ancestors(process).into_iter().find(|ancestor| {
                let torch = TorchReader::attach(ancestor).ok().flatten();
                torch.is_some_and(|torch| *torch.backend() == AllocatorBackend::Native)
                    && holds_memory(ancestor)
            });
            found.map(|ancestor| ForkedCopy { of: Some(ancestor.pid()) })
        }
    }
}

/// The processes that it was forked from without an `exec` since, the nearest first.
fn ancestors(process: &Process) -> Vec<Process> {
    let mut found: Vec<Process> = Vec::new();
    while found.len() < MAX_GENERATIONS
        && let Some(parent) = found.last().unwrap_or(process).parent()
        && let Ok(parent) = Process::open(parent)
        && parent.shares_program_start(process)
    {
        found.push(parent);
    }
    found
}

/// Whether the driver says that memory is its own.
fn holds_memory(process: &Process) -> bool {
    let Ok(gpu) = GpuReader::open(process).map(Arc::new) else { return false };
    let devices = gpu.devices(&CudaVisibility::of_process(process)).unwrap_or_default();
    devices.iter().filter_map(|device| device.nvml_index).any(|device| {
        let usage = gpu.usage(device, Nanos(0));
        usage.is_ok_and(|usage| matches!(usage.process, ProcessUsage::Bytes(bytes) if bytes > 0))
    })
}

impl TargetReaders {
    /// What it has a copy of, as it was forked after CUDA began; `None` where its allocator is its
    /// own.
    pub fn forked_copy(&self) -> Option<ForkedCopy> {
        self.copy
    }
}
