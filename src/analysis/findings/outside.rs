//! Memory outside PyTorch's allocator, and of other processes.

use super::{Finding, FindingFacts};
use crate::model::bytes;

/// A context with kernels takes 0.4 to 1 GiB, NCCL 0.5 GiB more.
const USUAL_OUTSIDE: u64 = 2 << 30;
/// Others count from a twentieth of the device.
const MIN_OTHERS_PART: u64 = 20;

pub(super) fn other_processes(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = facts.gpus.iter().filter_map(|gpu| {
        let (size, total) = (gpu.others?, gpu.total?);
        let problem =
            format!("GPU {}: other processes hold {} of {}", gpu.gpu, bytes(size), bytes(total));
        let found = Finding::new("other processes", size, problem).on_machine("devices");
        (size > 0 && size >= total / MIN_OTHERS_PART).then_some(found)
    });
    found.collect()
}

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = facts.gpus.iter().filter_map(|gpu| {
        let size = gpu.outside.filter(|bytes| *bytes > USUAL_OUTSIDE)?;
        let problem = format!(
            "GPU {}: the process holds {} outside PyTorch; a CUDA context and NCCL take 0.4 to 2 GiB",
            gpu.gpu,
            bytes(size)
        );
        Some(Finding::new("outside PyTorch", size, problem).command("devices", &[]))
    });
    found.collect()
}
