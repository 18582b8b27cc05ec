//! Processes forked after CUDA was initialised, such as `DataLoader` workers: their copy of the
//! allocator describes their parent's memory.

use std::sync::Arc;

use crate::gpu::{CudaVisibility, NvmlReader};
use crate::model::{AllocatorBackend, Nanos, ProcessUsage};
use crate::target::Process;
use crate::torch::{AllocatorReader, is_in_bad_fork};

const MAX_GENERATIONS: usize = 16;

/// The allocator that a process has copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkedCopy {
    /// The process that initialised CUDA, if alive.
    pub of: Option<u32>,
}

/// `None` if the allocator, which is set up, is the process's own.
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
        // The driver may list one of two processes and not the other.
        None if holds_memory(process) => None,
        None => {
            let found = ancestors(process).into_iter().find(|ancestor| {
                let torch = AllocatorReader::attach(ancestor).ok().flatten();
                torch.is_some_and(|torch| *torch.backend() == AllocatorBackend::Native)
                    && holds_memory(ancestor)
            });
            found.map(|ancestor| ForkedCopy { of: Some(ancestor.pid()) })
        }
    }
}

/// Ancestors by fork without a later `exec`, nearest first.
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

fn holds_memory(process: &Process) -> bool {
    let Ok(gpu) = NvmlReader::open(process).map(Arc::new) else { return false };
    let devices = gpu.devices(&CudaVisibility::of_process(process)).unwrap_or_default();
    devices.iter().filter_map(|device| device.nvml_index).any(|device| {
        let usage = gpu.usage(device, Nanos(0));
        usage.is_ok_and(|usage| matches!(usage.process, ProcessUsage::Bytes(bytes) if bytes > 0))
    })
}
