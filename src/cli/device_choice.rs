//! The device that a report is about.

use anyhow::{Result, bail};

use crate::analysis::{Profile, peak};
use crate::model::{AllocatorBackend, CudaIndex};

/// Advice for memory without a device; the option to leave out follows.
pub(super) const DRIVER_MEMORY_ADVICE: &str =
    "the recording has only the driver's events; draw it without";

/// The requested device, else the one with the highest peak.
pub(super) fn device(profile: &Profile, gpu: Option<u32>) -> Result<CudaIndex> {
    let is_driver_only = || profile.exact().is_some_and(|exact| exact.events() > 0);
    match (peak::main_gpu(profile), gpu) {
        (Some(main), asked) => Ok(asked.map_or(main, CudaIndex)),
        // Driver memory may be on any device.
        (None, None) if is_driver_only() => Ok(CudaIndex(0)),
        (None, Some(asked)) if is_driver_only() => {
            bail!("the memory of GPU {asked} is unknown: {DRIVER_MEMORY_ADVICE} --gpu")
        }
        (None, _) => bail!("the recording has no GPU memory of PyTorch: {}", why_none(profile)),
    }
}

fn why_none(profile: &Profile) -> String {
    match profile.runtime().map(|r| &r.allocator) {
        None | Some(AllocatorBackend::Native) if profile.end().is_none() => {
            "it ends before the allocator's counters were first read".to_owned()
        }
        None | Some(AllocatorBackend::NotLoaded) => {
            "PyTorch's CUDA part was not loaded in the process".to_owned()
        }
        Some(AllocatorBackend::NotInitialized) => {
            "the process had loaded PyTorch and not used CUDA".to_owned()
        }
        Some(AllocatorBackend::Native) => {
            "the allocator's counters could not be read ('memspy doctor -p PID' says why for a running job)"
                .to_owned()
        }
        Some(AllocatorBackend::CudaMallocAsync) => {
            "its allocator was backend:cudaMallocAsync, which keeps no counters or blocks; run the job without it"
                .to_owned()
        }
        Some(AllocatorBackend::Pluggable(name)) => {
            format!("its allocator was the program's own ({name}), which keeps no counters or blocks")
        }
        Some(AllocatorBackend::Unknown(what)) => {
            format!("its allocator could not be read: {what}")
        }
    }
}
