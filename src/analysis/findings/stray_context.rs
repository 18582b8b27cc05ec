//! A context on a GPU that the job hardly uses.

use super::{Finding, FindingFacts, GpuFacts};
use crate::model::{JobThreads, OwnershipSnapshot, TensorDevice, bytes};

/// PyTorch's smallest segment.
const MAX_RESERVED: u64 = 2 << 20;
/// The other GPU has at least so many times as much.
const MIN_FACTOR: u64 = 16;
/// A context takes more.
const MIN_CONTEXT: u64 = 64 << 20;

pub(super) fn find(facts: &FindingFacts<'_>) -> Vec<Finding> {
    let most = facts.gpus.iter().filter_map(|gpu| Some((gpu.reserved?, gpu.gpu))).max();
    let Some((most, main)) = most else { return Vec::new() };
    let found = facts.gpus.iter().filter(|gpu| gpu.gpu != main).filter_map(|gpu| {
        let (allocated, reserved) = (gpu.allocated?, gpu.reserved?);
        let context = gpu.outside.filter(|outside| *outside >= MIN_CONTEXT)?;
        let is_stray = reserved <= MAX_RESERVED && most >= reserved.max(MAX_RESERVED) * MIN_FACTOR;
        is_stray.then(|| finding(facts, gpu, main, allocated, reserved + context))
    });
    found.collect()
}

fn finding(
    facts: &FindingFacts<'_>,
    gpu: &GpuFacts,
    main: u32,
    allocated: u64,
    size: u64,
) -> Finding {
    let owner = facts.snapshot.and_then(|snapshot| owner_on(snapshot, gpu.gpu));
    let thread = owner.as_deref().and_then(|owner| thread_of(facts.threads?, owner));
    let whose = match (&owner, thread) {
        (Some(owner), Some(thread)) => format!(" ({owner}, of thread {thread})"),
        (Some(owner), None) => format!(" ({owner})"),
        (None, _) => String::new(),
    };
    let problem = match allocated {
        0 => format!("GPU {}: a CUDA context and no tensor", gpu.gpu),
        _ => format!("GPU {}: a CUDA context for {} of tensors{whose}", gpu.gpu, bytes(allocated)),
    };
    Finding::new("stray context", size, problem)
        .change(format!("call torch.cuda.set_device({main}) at the beginning of each thread"))
        .frees(size)
        .command("devices", &[])
}

/// The name of its largest tensor.
fn owner_on(snapshot: &OwnershipSnapshot, gpu: u32) -> Option<String> {
    let on_it = |device: TensorDevice| device.is_cuda() && device.index.map(u32::from) == Some(gpu);
    let rows = snapshot.tensors.iter().filter(|row| row.tensor.device.is_some_and(on_it));
    let named = rows.filter(|row| !row.names.is_empty());
    named.max_by_key(|row| row.tensor.logical_bytes())?.names.first().map(|name| name.to_string())
}

/// The name of the thread whose stack has the function of `FUNCTION: VARIABLE`.
fn thread_of(threads: &JobThreads, owner: &str) -> Option<String> {
    let (function, _) = owner.split_once(": ")?;
    let runs = |name: &String| name.rsplit('.').next() == Some(function);
    let thread = threads.threads.iter().find(|thread| thread.functions.iter().any(runs))?;
    thread.name.as_ref().map(|name| format!("\"{name}\""))
}
