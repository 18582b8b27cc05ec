//! Memory outside PyTorch's allocator, and of other processes.

use std::collections::BTreeMap;

use super::{Finding, FindingFacts};
use crate::model::{JAX_ARRAY, bytes};

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

/// Bytes of JAX's arrays on this GPU; `None`: it has none.
fn jax_arrays(facts: &FindingFacts<'_>, gpu: u32) -> Option<u64> {
    let rows = facts.snapshot?.tensors.iter().map(|row| &row.tensor);
    let arrays = rows.filter(|tensor| *tensor.class == *JAX_ARRAY);
    let on_gpu = arrays.filter(|tensor| {
        tensor.device.is_some_and(|it| it.is_cuda() && it.index.map_or(0, u32::from) == gpu)
    });
    // Parts of an array share its memory.
    let storages = on_gpu.filter_map(|tensor| Some((tensor.storage?.at, tensor.storage?.bytes?)));
    let storages: BTreeMap<u64, u64> = storages.collect();
    (!storages.is_empty()).then(|| storages.values().sum())
}

fn of_jax(gpu: u32, size: u64, arrays: u64) -> Finding {
    let problem = format!(
        "GPU {gpu}: the process holds {}, and JAX's arrays are {} of it, as JAX takes memory in \
         advance",
        bytes(size),
        bytes(arrays)
    );
    Finding::new("outside PyTorch", size, problem)
        .change("XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION=.10")
        .command("devices", &[])
}

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let found = facts.gpus.iter().filter_map(|gpu| {
        let size = gpu.outside.filter(|bytes| *bytes > USUAL_OUTSIDE)?;
        if let Some(arrays) = jax_arrays(facts, gpu.gpu) {
            return Some(of_jax(gpu.gpu, size, arrays));
        }
        let problem = format!(
            "GPU {}: the process holds {} outside PyTorch; a CUDA context and NCCL take 0.4 to 2 GiB",
            gpu.gpu,
            bytes(size)
        );
        Some(Finding::new("outside PyTorch", size, problem).command("devices", &[]))
    });
    found.collect()
}
