//! Other processes on a job's GPUs that perhaps nobody needs.

use std::collections::BTreeMap;

use super::readers::{TargetIdentity, TargetReaders, TorchState};
use crate::model::{AllocatorBackend, DeviceProcess, GpuNeighbour, NeighbourRole, StackTable};
use crate::target::left_behind::orphan;

/// Each takes some 0.1 s to attach to.
const MAX_WORKERS: usize = 16;
/// PyTorch's smallest segment.
const MAX_RESERVED: i64 = 2 << 20;
/// Loops of workers: of PyTorch's DataLoader, pools, executors.
const WORKERS: [(&str, &str); 3] = [
    ("_worker_loop", "torch/utils/data/_utils/worker.py"),
    ("worker", "multiprocessing/pool.py"),
    ("_process_worker", "concurrent/futures/process.py"),
];
/// Where they wait for work.
const WAITING: (&str, &str) = ("get", "multiprocessing/queues.py");

/// Empty without the driver's list. The job itself counts if it is an orphan.
pub fn read_neighbours(readers: &TargetReaders) -> Vec<GpuNeighbour> {
    let own = readers.process.pid();
    let listed = listed_beside(readers, own);
    let workers = if listed.len() > 1 { readers.process.descendants() } else { Vec::new() };
    let mut waiting = 0;
    let neighbour = |(pid, (process, gpus)): (u32, (DeviceProcess, Vec<u32>))| {
        let role = if workers.contains(&pid) {
            waiting += 1;
            (waiting <= MAX_WORKERS && is_idle_worker(pid)).then_some(NeighbourRole::IdleWorker)?
        } else {
            // Without a known launcher it may be a service.
            let launcher = orphan(pid).filter(|orphan| orphan.is_adopted)?.launcher?;
            NeighbourRole::Orphan { launcher, is_job: pid == own }
        };
        Some(GpuNeighbour { pid, command: process.command, gpus, bytes: process.bytes, role })
    };
    listed.into_iter().filter_map(neighbour).collect()
}

/// All processes on the GPUs of the job, by pid, with these GPUs.
fn listed_beside(readers: &TargetReaders, own: u32) -> BTreeMap<u32, (DeviceProcess, Vec<u32>)> {
    let mut all: BTreeMap<u32, (DeviceProcess, Vec<u32>)> = BTreeMap::new();
    let Ok(driver) = &readers.gpu else { return all };
    for device in readers.devices() {
        let (Some(number), Some(index)) = (device.cuda_index, device.nvml_index) else { continue };
        let Ok(Ok(processes)) = driver.processes(index) else { continue };
        if processes.iter().all(|process| process.pid != Some(own)) {
            continue;
        }
        for process in processes {
            let Some(pid) = process.pid else { continue };
            match all.get_mut(&pid) {
                Some((known, gpus)) => {
                    known.bytes = known.bytes.zip(process.bytes).map(|(known, more)| known + more);
                    gpus.push(number.0);
                }
                None => _ = all.insert(pid, (process, vec![number.0])),
            }
        }
    }
    all
}

fn is_idle_worker(pid: u32) -> bool {
    let attached = TargetIdentity::open(pid).and_then(|process| process.attach());
    let Ok(mut readers) = attached else { return false };
    is_waiting_worker(&mut readers) && has_no_tensors(&mut readers)
}

fn has_no_tensors(readers: &mut TargetReaders) -> bool {
    let counters = readers.counters_between_calls();
    let TorchState::Attached(torch) = &readers.torch else { return false };
    *torch.backend() == AllocatorBackend::Native
        && !counters.is_empty()
        && counters.iter().all(|(_, counters)| counters.reserved() <= MAX_RESERVED)
}

fn is_waiting_worker(readers: &mut TargetReaders) -> bool {
    let (mut table, mut samples) = (StackTable::new(), Vec::new());
    let Some(python) = &mut readers.python else { return false };
    if python.sample(&mut table, &mut samples).is_err() {
        return false;
    }
    samples.iter().any(|sample| {
        let has = |(name, file): (&str, &str)| {
            table.frames(sample.stack).any(|frame| {
                table.get_function(frame.function).is_some_and(|function| {
                    let is_it = function.name.rsplit('.').next() == Some(name);
                    is_it && function.file.ends_with(file)
                })
            })
        };
        has(WAITING) && WORKERS.into_iter().any(has)
    })
}
